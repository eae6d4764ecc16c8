"""Rules that turn results into events: when a class appears on a camera and when it disappears.

`EventRule` has the numbers of a rule, and `SteadyCount` debounces the number of objects of one class with them in both
directions. `EventWatch` takes the results of a loop and publishes an event where a class comes or goes; `Occupancy` has
the numbers of all classes, by the same rules. A result with NaN among the model's outputs does not show that a class is
absent, and neither does time without results. `SnapshotSettings` says when pictures of a camera are made; it is here
because it needs no OpenCV.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import SettingError, UsageError
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.protocols import NAME_LIMIT, Event, EventSink, is_name
from edge_sdk.core.toml import check_fields, missing_labels, shown

_LONGEST_S = 86400.0


def _frames(description: str) -> Meta:
    return Meta(ge=1, le=1000, description=f"in how many results in a row a class must be {description}")


def _seconds(description: str) -> Meta:
    return Meta(ge=0, le=_LONGEST_S, description=description, extra={"unit": "seconds"})


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a class counts as appeared and as disappeared; each class of the rule counts by itself.

    For segmentation `confidence` is compared with the class's share of the picture. Both the number of frames and the
    seconds must be reached.

    Raises:
        SettingError: no label, a duplicate or invalid label, or a number outside its range.
    """

    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            min_length=1, description="the classes that the rule is for, by the bundle's labels; each counts by itself"
        ),
    ]
    confidence: Annotated[
        float, Meta(ge=0, le=1, description="an object with less confidence does not count as seen")
    ] = 0.5
    appear_frames: Annotated[int, _frames("seen until it counts as appeared")] = 2
    appear_s: Annotated[float, _seconds("how long a class must be seen until it counts as appeared")] = 0.0
    disappear_frames: Annotated[int, _frames("absent until it counts as disappeared")] = 2
    disappear_s: Annotated[float, _seconds("how long a class must be absent until it counts as disappeared")] = 2.0
    cooldown_s: Annotated[float, _seconds("how long after an appearance no other one is published")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, EventRule)
        odd = [label for label in self.labels if not is_name(label)]
        if odd:
            raise SettingError(
                f"labels: {shown(odd[0])} can be no event's, expected 1 to {NAME_LIMIT} printable characters"
            )
        if len(set(self.labels)) < len(self.labels):
            raise SettingError("labels: one is there twice")


class SteadyCount:
    """The number of objects of one class, without what single results miss or invent; 0 before any was seen.

    It rises once `appear_frames` results in a row, over `appear_s` seconds, have more objects: to the smallest of their
    numbers. It falls once `disappear_frames` results in a row, over `disappear_s` seconds, have fewer: to the largest.
    """

    def __init__(self, rule: EventRule) -> None:
        self.value = 0
        self._rule, self._nearest = rule, 0
        self._frames = self._watched_ns = 0  # number and duration of the latest results that contradict `value`

    @property
    def is_idle(self) -> bool:
        """Whether it is 0 and nothing was just seen, so that a result without an object changes nothing."""
        return self.value == 0 == self._frames

    def step(self, count: int, passed_ns: int) -> bool:
        """Take the number in the current result, `passed_ns` after the one before; return whether `value` changed."""
        if count == self.value:
            self._frames = 0
            return False
        is_more, rule = count > self.value, self._rule
        if self._frames == 0 or is_more is not (self._nearest > self.value):
            self._frames, self._watched_ns, self._nearest = 1, 0, count
        else:
            self._frames += 1
            self._watched_ns += passed_ns
            self._nearest = min(self._nearest, count) if is_more else max(self._nearest, count)
        wanted = (rule.appear_frames, rule.appear_s) if is_more else (rule.disappear_frames, rule.disappear_s)
        if self._frames < wanted[0] or self._watched_ns < wanted[1] * 1e9:
            return False
        self.value, self._frames = self._nearest, 0
        return True


Turn: TypeAlias = Literal["appeared", "disappeared"]


class Presence:
    """Decides whether one class is present; it is absent before it was seen."""

    def __init__(self, class_id: int, label: str, rule: EventRule) -> None:
        self.class_id, self.label, self._rule = class_id, label, rule
        self.least = rule.confidence
        self.is_seen = False  # in the current result
        self._count, self._is_told = SteadyCount(rule), False
        self.confidence, self.index = 0.0, 0  # of its latest sighting; `index` is the row of its box
        self.boxes_xyxy: NDArray[np.float32] | None = None
        self.since_ns = self.last_ns = 0  # its first and latest sighting of this presence
        self._told_ns: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the class is absent and was not just seen, so that a step without a sighting changes nothing."""
        return self._count.is_idle

    def see(self, confidence: float, boxes_xyxy: NDArray[np.float32] | None = None, index: int = 0) -> None:
        """Note that the class is in the current result; call it with the most confident sighting."""
        self.is_seen = True
        self.confidence, self.boxes_xyxy, self.index = confidence, boxes_xyxy, index

    def step(self, passed_ns: int, now_ns: int, *, is_known: bool) -> Turn | None:
        """Take the current result into account, and return the event to publish, if any.

        Args:
            passed_ns: nanoseconds since the previous result, without time in which no results came.
            now_ns: time of the frame's capture.
            is_known: whether a class that was not seen is absent; False where outputs were NaN.
        """
        is_seen, self.is_seen = self.is_seen, False
        if is_seen:
            self.last_ns = now_ns
            if self.is_idle:
                self.since_ns = now_ns
        elif not is_known:
            return None
        has_changed = self._count.step(int(is_seen), passed_ns)
        if is_seen:
            return self._appeared(now_ns) if self._count.value and not self._is_told else None
        was_told, self._is_told = self._is_told, self._is_told and not has_changed
        return "disappeared" if was_told and has_changed else None

    def _appeared(self, now_ns: int) -> Turn | None:
        """Report the appearance, unless the cooldown lasts; then the next result asks again."""
        if self._told_ns is not None and now_ns - self._told_ns < self._rule.cooldown_s * 1e9:
            return None
        self._is_told, self._told_ns = True, now_ns
        return "appeared"


_MAX_BETWEEN_NS = 1_000_000_000  # longest time between two results that counts as watched


class _ResultClock:
    """Tells how much time a camera was watched between two results, in nanoseconds; 0 for the first."""

    def __init__(self) -> None:
        self._last_ns: int | None = None

    def passed_ns(self, result: Result) -> int:
        now_ns = result.frame.captured_ns
        last_ns, self._last_ns = self._last_ns, now_ns
        return 0 if last_ns is None else min(max(0, now_ns - last_ns), _MAX_BETWEEN_NS)


class EventWatch:
    """Publishes an event when a class appears on one camera or disappears; an observer of the camera's loop.

    Classes that no rule names are ignored, and so are labels that no class has. `sink` takes the events, in the loop's
    thread. A UsageError says that two rules name the same label.
    """

    def __init__(self, rules: Iterable[EventRule], labels: Mapping[int, str], sink: EventSink) -> None:
        by_label = rules_by_label(rules)
        self._sink = sink
        self._watched = {
            class_id: Presence(class_id, label, by_label[label])
            for class_id, label in labels.items()
            if label in by_label
        }
        self._awake: list[Presence] = []  # present or just seen; the others need no step
        self._clock = _ResultClock()

    @classmethod
    def for_bundle(cls, bundle: Bundle, rules: Iterable[EventRule], sink: EventSink) -> EventWatch:
        """Make a watch for the results of a bundle.

        Raises:
            UsageError: two rules name the same label, or one names a label that the bundle does not have.
        """
        rules = [*rules]
        if unknown := unwatched(rules, bundle):
            raise UsageError(f"event rules: {'; '.join(unknown)}")
        return cls(rules, bundle.labels_by_id(), sink)

    def put(self, result: Result) -> None:
        """Take one result into account, and publish the events that it causes; called in the loop's thread."""
        passed_ns = self._clock.passed_ns(result)
        self._see(result)
        if self._awake:
            self._step(result, passed_ns)

    def _step(self, result: Result, passed_ns: int) -> None:
        now_ns, is_known = result.frame.captured_ns, result.is_finite
        has_sleepers = False
        for presence in self._awake:
            turn = presence.step(passed_ns, now_ns, is_known=is_known)
            if turn is not None:
                self._sink.put(_event(turn, presence, result.frame))
            has_sleepers = has_sleepers or presence.is_idle
        if has_sleepers:
            self._awake = [presence for presence in self._awake if not presence.is_idle]

    def _see(self, result: Result) -> None:
        class_ids = result.class_id.tolist()
        if not class_ids:
            return
        confidences, boxes = result.confidence.tolist(), result.xyxy
        found = self._watched.get
        for index, class_id in enumerate(class_ids):
            presence = found(class_id)
            # The most confident sighting of a class comes first. NaN is below every threshold.
            if presence is not None and not presence.is_seen and 0 < confidences[index] >= presence.least:
                if presence.is_idle:
                    self._awake.append(presence)
                presence.see(confidences[index], boxes, index)


class Occupancy:
    """The number of objects of each class that one camera shows at present, debounced for dashboards and automations.

    A class follows the rule that names it, and else one with `EventRule`'s defaults and the model's own threshold.

    Attributes:
        shown: the number of objects of each class that has any, by label; for a task without objects, 1 for the class
            that is steadily the likeliest. None until that is known.
    """

    def __init__(self, rules: Iterable[EventRule] = ()) -> None:
        self.shown: dict[str, int] | None = None
        self._rules, self._default = rules_by_label(rules), EventRule(labels=("any",), confidence=0.0)
        self._counts: dict[str, SteadyCount] = {}
        self._awaited: set[str] | None = None  # what the first result shows, which may be steady or not
        self._clock = _ResultClock()

    def take(self, result: Result) -> bool:
        """Take one result into account; return whether `shown` changed."""
        passed_ns = self._clock.passed_ns(result)
        if not result.is_finite:
            return False
        seen = self._seen(result)
        for label in seen:
            if label not in self._counts:
                self._counts[label] = SteadyCount(self._rules.get(label, self._default))
        has_changed = False
        for label, count in (*self._counts.items(),):
            if count.step(seen.get(label, 0), passed_ns):
                has_changed = True
                if count.value and result.xyxy is None:  # of a task without objects one class takes another's place
                    self._counts = {label: count}
                    break
            if count.is_idle:
                del self._counts[label]
        if self._awaited is None:
            self._awaited = {*seen}
        # What the first result shows is waited for, so that nothing is called empty that is not.
        if has_changed or (self.shown is None and self._awaited.isdisjoint(self._counts)):
            self.shown = {label: count.value for label, count in self._counts.items() if count.value}
            return True
        return False

    def _seen(self, result: Result) -> dict[str, int]:
        """Count the objects of each class in a result."""
        if result.xyxy is None:
            likeliest = result.summary(result.label)
            return {} if likeliest is None else {likeliest: 1}
        seen: dict[str, int] = {}
        for class_id, confidence in zip(result.class_id.tolist(), result.confidence.tolist(), strict=True):
            label = result.label(class_id)
            if confidence >= self._rules.get(label, self._default).confidence:
                seen[label] = seen.get(label, 0) + 1
        return seen


def rules_by_label(rules: Iterable[EventRule]) -> dict[str, EventRule]:
    """Return the rules by label; raise a UsageError if two rules name the same label."""
    by_label: dict[str, EventRule] = {}
    for rule in rules:
        for label in rule.labels:
            if by_label.setdefault(label, rule) is not rule:
                raise UsageError(f"event rules: two of them name {label!r}, expected one a label")
    return by_label


def unwatched(rules: Iterable[EventRule], bundle: Bundle) -> list[str]:
    """Return a line for each label of the rules that no class of a bundle has."""
    of = f"is no label of {bundle.manifest.name}, so nothing is told of it"
    return missing_labels(rules_by_label(rules), bundle.labels_by_id().values(), of)


def _event(turn: Turn, presence: Presence, frame: Frame) -> Event:
    """Make the event of a frame, with the confidence and the box of the latest sighting."""
    box = None if presence.boxes_xyxy is None else presence.boxes_xyxy[presence.index].tolist()
    is_usable = box is not None and all(map(math.isfinite, box))
    now_ns, stayed_ns = frame.captured_ns, presence.last_ns - presence.since_ns
    if turn == "appeared":
        detail = {"after_s": round((now_ns - presence.since_ns) / 1e9, 3)}
    else:
        detail = {"after_s": round((now_ns - presence.last_ns) / 1e9, 3), "stayed_s": round(stayed_ns / 1e9, 3)}
    return Event(
        kind=turn,
        camera=frame.camera,
        at=datetime.fromtimestamp(frame.captured_at, timezone.utc),
        label=presence.label,
        class_id=presence.class_id,
        confidence=min(1.0, presence.confidence),
        box_xyxy=tuple(box) if box is not None and is_usable else None,
        frame_wh=frame.size_wh,
        frame_seq=frame.seq,
        detail={**detail},
    )


WORST_QUALITY = 20
_PAUSE = Meta(ge=0.1, le=_LONGEST_S, description="from one picture to the next", extra={"unit": "seconds"})
_Interval = Annotated[float, _PAUSE]
_Rate = Annotated[float, Meta(ge=0.001, le=10, description="pictures a second of one camera; the newest is kept")]


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When pictures of a camera are made, and how large.

    With `event` it is a picture of the frame in which an event was found, also where `max_per_s` (1 by default) holds
    it back; with `appeared`, of events of that kind only. With `interval`, which needs `interval_s`, pictures are made
    whether or not anything happens.

    Raises:
        SettingError: a number is outside its range, or is not for this way of making pictures.
    """

    on: Annotated[Literal["event", "appeared", "interval"], Meta(description="when a picture is made")]
    interval_s: _Interval | None = None
    max_per_s: _Rate | None = None
    width: Annotated[
        int, Meta(ge=16, le=4096, description="wider pictures are made smaller", extra={"unit": "pixels"})
    ] = 640
    quality: Annotated[int, Meta(ge=WORST_QUALITY, le=100, description="of JPEG")] = 80
    draw: Annotated[bool, Meta(description="draw what the model found: boxes with their class, outlines, texts")] = True

    def __post_init__(self) -> None:
        check_fields(self, SnapshotSettings)
        if self.on == "interval" and self.interval_s is None:
            raise SettingError('interval_s is missing, expected seconds, for on = "interval"')
        if self.on == "interval" and self.max_per_s is not None:
            raise SettingError('max_per_s is for on = "event"; expected interval_s alone')
        if self.on != "interval" and self.interval_s is not None:
            raise SettingError('interval_s is for on = "interval"; expected max_per_s, or nothing')

    @property
    def gap_s(self) -> float:
        """The least time from one picture to the next, in seconds."""
        return self.interval_s or 1 / (self.max_per_s or 1.0)
