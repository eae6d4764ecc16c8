"""Eventful: what a stream does beside results: it tells events, and has pictures made of them."""

from __future__ import annotations

import contextlib

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.labels import unknown_labels
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.event import Event
from edge_sdk.event_watch import EventWatch, labels_by_id
from edge_sdk.protocols import Sink
from edge_sdk.publishing import Stream
from edge_sdk.snapshots import Snapshots


class _Told:
    """Publishes an event, and has a picture made of it."""

    def __init__(self, stream: Stream, snapshots: Snapshots | None) -> None:
        self._stream, self._snapshots = stream, snapshots

    def put(self, event: Event, /) -> None:
        self._stream.put(event)
        if self._snapshots is not None:
            self._snapshots.ask()


def observers_of_events(
    settings: PipelineSettings, bundle: Bundle, stream: Stream, stack: contextlib.ExitStack, say: Say
) -> list[Sink]:
    """Observers for a stream's loop, in their order: a picture is made after what it shows was found.

    Args:
        settings: of the stream.
        bundle: that runs.
        stream: takes events and pictures.
        stack: closes what needs it.
        say: takes one line for people.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
    """
    observers: list[Sink] = []
    snapshots = None
    if settings.snapshots is not None:
        snapshots = Snapshots(settings.snapshots, stream.put_snapshot)
        stack.callback(snapshots.close)
    if settings.events:
        for line in unknown_labels(settings, bundle):
            say(f"warning: {line}")
        observers.append(EventWatch(settings.events, labels_by_id(bundle), _Told(stream, snapshots)))
    if snapshots is not None:
        observers.append(snapshots)
    return observers
