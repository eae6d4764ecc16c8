"""Labels that a configuration names, and that no class of a bundle has."""

from __future__ import annotations

from collections.abc import Collection

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.event_watch import labels_by_id, rules_by_label
from edge_sdk.home_assistant import HomeAssistantSettings
from edge_sdk.toml_file import nearest, shown


def unknown_labels(settings: PipelineSettings, bundle: Bundle) -> list[str]:
    """A line for each label of the stream's events that no class of its bundle has.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
    """
    labels = labels_by_id(bundle).values()
    missing = [label for label in rules_by_label(settings.events) if label not in labels]
    of = f"is no label of {bundle.manifest.name}, so nothing is told of it"
    return [f"[[events]] labels: {shown(label)} {of}{_hint(label, labels)}" for label in missing]


def unknown_home_labels(settings: HomeAssistantSettings | None, labels: Collection[str]) -> list[str]:
    """A line for each label that Home Assistant shall be told of, and that is none of these.

    Args:
        settings: None: there is no Home Assistant.
        labels: of all bundles together: a camera may have what another one has not.
    """
    if settings is None or not settings.is_enabled:
        return []
    missing = [label for label in settings.labels if label not in labels]
    of = "is no label of a bundle here, so it has no entity"
    return [f"home_assistant.labels: {shown(label)} {of}{_hint(label, labels)}" for label in missing]


def _hint(label: str, labels: Collection[str]) -> str:
    near = nearest(label, labels)
    return f"; did you mean {shown(near)}?" if near else ""
