"""A stream's source, opened in a thread of its own."""

from __future__ import annotations

from edge_sdk.ahead import Ahead
from edge_sdk.camera import OpenedSource, open_source
from edge_sdk.daemon.settings import PipelineSettings


def source_ahead(settings: PipelineSettings, *, waits: bool) -> Ahead[OpenedSource]:
    """Begin to open it; who takes it closes it.

    Args:
        settings: of the stream.
        waits: a camera that is not there yet is waited for.
    """
    password = settings.source_password.reveal() if settings.source_password else None

    def open_it() -> OpenedSource:
        return open_source(
            settings.source,
            camera=settings.camera,
            password=password,
            realtime=not settings.every_frame,
            options=settings.source_options,
            waits=waits,
        )

    return Ahead(open_it, "edge-source", undo=lambda source: source.close())
