"""Labels that a configuration names, and that no class of a bundle has."""

from __future__ import annotations

from collections.abc import Collection

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.event_watch import missing_labels, unwatched
from edge_sdk.home_assistant import HomeAssistantSettings


def unknown_labels(settings: PipelineSettings, bundle: Bundle) -> list[str]:
    """A line for each label of the stream's events that no class of its bundle has.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
    """
    return [f"[[events]] labels: {line}" for line in unwatched(settings.events, bundle)]


def unknown_home_labels(settings: HomeAssistantSettings | None, labels: Collection[str]) -> list[str]:
    """A line for each label that Home Assistant shall be told of, and that is none of these.

    Args:
        settings: None: there is no Home Assistant.
        labels: of all bundles together: a camera may have what another one has not.
    """
    if settings is None or not settings.is_enabled:
        return []
    of = "is no label of a bundle here, so it has no entity"
    return [f"home_assistant.labels: {line}" for line in missing_labels(settings.labels, labels, of)]
