"""What tables about events and publishing get wrong together."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from edge_sdk.config.config import Config
from edge_sdk.event import NAME_LIMIT, is_name
from edge_sdk.toml_file import nearest, shown


def broken_event_rules(config: Config) -> Iterator[str]:
    """One line a rule that is broken: the key, what is there, what is expected."""
    yield from _cameras(config)
    yield from _twice(config)
    if not isinstance(config.publish, UnsetType):
        if isinstance(config.mqtt, UnsetType):
            yield "publish is of what goes to a broker, and none is named; expected [mqtt] beside it"
        yield from _snapshots(config)


def _cameras(config: Config) -> Iterator[str]:
    names = [pipeline.name for pipeline in config.pipelines]
    for index, event in enumerate(config.events):
        for camera in event.cameras or ():
            if camera not in names:
                near = nearest(camera, names)
                hint = f"did you mean {shown(near)}?" if near else f"there are {', '.join(map(shown, names))}"
                yield f"events[{index}].cameras: {shown(camera)} is no pipeline's name; {hint}"


def _twice(config: Config) -> Iterator[str]:
    first: dict[tuple[str, str], int] = {}
    told: set[tuple[int, int, str]] = set()
    for index, event in enumerate(config.events):
        for label in event.labels:
            for pipeline in config.pipelines:
                if event.cameras and pipeline.name not in event.cameras:
                    continue
                before = first.setdefault((pipeline.name, label), index)
                if before == index or (before, index, label) in told:
                    continue
                told.add((before, index, label))
                yield (
                    f"events[{before}] and events[{index}] are both about {shown(label)} on {shown(pipeline.name)}, "
                    "expected one of them: each event would be told twice"
                )
        for label in event.labels:
            if not is_name(label):
                yield (
                    f"events[{index}].labels: {shown(label)} can be no event's, "
                    f"expected 1 to {NAME_LIMIT} printable characters"
                )
        if len(set(event.labels)) < len(event.labels):
            yield f"events[{index}].labels: one is there twice"


def _snapshots(config: Config) -> Iterator[str]:
    snapshots = config.publish.snapshots if not isinstance(config.publish, UnsetType) else UNSET
    if isinstance(snapshots, UnsetType):
        return
    if snapshots.on == "interval":
        if snapshots.interval_s is UNSET:
            yield 'publish.snapshots.interval_s is missing, expected seconds, for on = "interval"'
        if snapshots.max_per_s is not UNSET:
            yield 'publish.snapshots.max_per_s is for on = "event"; expected interval_s alone'
        return
    if snapshots.interval_s is not UNSET:
        yield 'publish.snapshots.interval_s is for on = "interval"; expected max_per_s, or nothing'
    if not config.events:
        yield 'publish.snapshots.on: "event", and there are no [[events]]; expected some, or on = "interval"'
