"""Rules that make events of results: when a class appears on a camera and when it disappears.

`EventRule` has the numbers of a rule; `Presence` debounces one class both ways; `EventWatch` observes a loop and tells
events. A result whose outputs were no numbers says nothing of what is missing in it, and time without results is no
time in which something was gone. `SnapshotSettings` says when pictures of a camera are made; it stands here because it
needs no OpenCV, which makes them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import SettingError, UsageError
from edge_sdk.core.frame import Classification, Detections, Frame, Result, Segmentation
from edge_sdk.core.protocols import NAME_LIMIT, Event, EventSink, is_name
from edge_sdk.core.toml import check_fields, nearest, shown
from edge_sdk.tasks.spec import has_background

_LONGEST_S = 86400.0


def _frames(description: str) -> Meta:
    return Meta(ge=1, le=1000, description=f"in so many results in a row it is {description}")


def _seconds(description: str) -> Meta:
    return Meta(ge=0, le=_LONGEST_S, description=description, extra={"unit": "seconds"})


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """When classes count as appeared and as disappeared; each class for itself.

    Attributes:
        labels: labels of the classes; one or more, each of 1 to 100 printable characters.
        confidence: least confidence of a sighting, 0-1; for segmentation the class's share of the picture.
        appear_frames: consecutive results with the class before it has appeared; 1 to 1000.
        appear_s: seconds for which the class must also be seen before it has appeared, up to a day.
        disappear_frames: consecutive results without the class before it has disappeared.
        disappear_s: seconds for which the class must also be absent before it has disappeared.
        cooldown_s: seconds after a reported appearance in which no other one of that class is reported.

    Raises:
        SettingError: no label, a duplicate or invalid label, or a number outside its range.
    """

    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description="classes, by the bundle's labels; each for itself"),
    ]
    confidence: Annotated[float, Meta(ge=0, le=1, description="what is less confident is not seen")] = 0.5
    appear_frames: Annotated[int, _frames("seen before it has appeared")] = 2
    appear_s: Annotated[float, _seconds("for so long it is seen before it has appeared")] = 0.0
    disappear_frames: Annotated[int, _frames("not seen before it has disappeared")] = 2
    disappear_s: Annotated[float, _seconds("for so long it is not seen before it has disappeared")] = 2.0
    cooldown_s: Annotated[float, _seconds("for so long after an appearance no other one is told")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, EventRule)
        odd = [label for label in self.labels if not is_name(label)]
        if odd:
            raise SettingError(
                f"labels: {shown(odd[0])} can be no event's, expected 1 to {NAME_LIMIT} printable characters"
            )
        if len(set(self.labels)) < len(self.labels):
            raise SettingError("labels: one is there twice")


Turn: TypeAlias = Literal["appeared", "disappeared"]


class Presence:
    """Decides whether one class is present; it is absent before it was seen."""

    def __init__(self, class_id: int, label: str, rule: EventRule) -> None:
        self.class_id, self.label, self._rule = class_id, label, rule
        self.least = rule.confidence
        self.is_seen = False  # in the current result
        self._is_there = self._is_told = False
        self.confidence, self.index = 0.0, 0  # of its latest sighting; the box is a row of that result's
        self.boxes_xyxy: NDArray[np.float32] | None = None
        self.frames = self.watched_ns = 0  # results in a row that speak against what it is held to be, and how long
        self.since_ns = self.last_ns = 0  # its first and latest sighting of this presence
        self._told_ns: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it is not there, and nothing speaks for it: a step without a sighting would change nothing."""
        return not self._is_there and self.frames == 0

    def see(self, confidence: float, boxes_xyxy: NDArray[np.float32] | None = None, index: int = 0) -> None:
        """Note that the class is in the result at hand, most confidently so."""
        self.is_seen = True
        self.confidence, self.boxes_xyxy, self.index = confidence, boxes_xyxy, index

    def step(self, passed_ns: int, now_ns: int, *, is_known: bool) -> Turn | None:
        """Take one result into account, and return what is to be told; what was seen in it is forgotten.

        Args:
            passed_ns: nanoseconds since the result before, without time in which no results came.
            now_ns: when the frame was captured, monotonic nanoseconds.
            is_known: whether what was not seen is not there.
        """
        is_seen, self.is_seen = self.is_seen, False
        if is_seen:
            self.last_ns = now_ns
        elif not is_known:
            return None
        if is_seen is self._is_there:
            self.frames = 0
            return self._appeared(now_ns) if is_seen and not self._is_told else None
        if self.frames == 0:
            self.watched_ns = 0
            if is_seen:
                self.since_ns = now_ns
        else:
            self.watched_ns += passed_ns
        self.frames += 1
        rule = self._rule
        frames, seconds = (
            (rule.disappear_frames, rule.disappear_s) if self._is_there else (rule.appear_frames, rule.appear_s)
        )
        if self.frames < frames or self.watched_ns < seconds * 1e9:
            return None
        self._is_there = not self._is_there
        self.frames = 0
        if self._is_there:
            return self._appeared(now_ns)
        was_told, self._is_told = self._is_told, False
        return "disappeared" if was_told else None

    def _appeared(self, now_ns: int) -> Turn | None:
        """Report the appearance, unless the cooldown lasts; then the next result asks again."""
        if self._told_ns is not None and now_ns - self._told_ns < self._rule.cooldown_s * 1e9:
            return None
        self._is_told, self._told_ns = True, now_ns
        return "appeared"


_MAX_BETWEEN_NS = 1_000_000_000  # longest time between two results that counts as watched


class EventWatch:
    """Publishes an event when a class appears on one camera or disappears: a sink of its loop.

    Args:
        rules: when classes count as there; a class that none names is not looked at, nor a label that is no class's.
        labels: of the classes by their ids.
        sink: takes the events, from the loop's thread.

    Raises:
        UsageError: two rules name the same label.
    """

    def __init__(self, rules: Iterable[EventRule], labels: Mapping[int, str], sink: EventSink) -> None:
        by_label = rules_by_label(rules)
        self._sink = sink
        self._watched = {
            class_id: Presence(class_id, label, by_label[label])
            for class_id, label in labels.items()
            if label in by_label
        }
        self._awake: list[Presence] = []  # those that are there, or were just seen: of the rest there is nothing to do
        self._last_ns: int | None = None

    @classmethod
    def for_bundle(cls, bundle: Bundle, rules: Iterable[EventRule], sink: EventSink) -> EventWatch:
        """Make a watch for the results of a bundle.

        Raises:
            BundleError: when its labels changed since it was opened.
            UsageError: two rules name the same label, or one names a label that the bundle does not have.
        """
        rules = [*rules]
        unknown = unwatched(rules, bundle)
        if unknown:
            raise UsageError(f"event rules: {'; '.join(unknown)}")
        return cls(rules, labels_by_id(bundle), sink)

    def put(self, result: Result) -> None:
        """Take one result into account, and publish the events that it causes; called in the loop's thread."""
        now_ns = result.frame.captured_ns
        last_ns, self._last_ns = self._last_ns, now_ns
        passed_ns = 0 if last_ns is None else min(max(0, now_ns - last_ns), _MAX_BETWEEN_NS)
        if isinstance(result, Segmentation):
            self._see_shares(result)
        elif len(result.confidences):
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

    def _see(self, result: Detections | Classification) -> None:
        found = self._watched.get
        confidences = result.confidences.tolist()
        boxes = result.boxes_xyxy if isinstance(result, Detections) else None
        for index, class_id in enumerate(result.class_ids.tolist()):
            presence = found(class_id)
            # The most confident of a class comes first. What is no number is not seen.
            if presence is not None and not presence.is_seen and confidences[index] >= presence.least:
                self._wake(presence)
                presence.see(confidences[index], boxes, index)

    def _see_shares(self, result: Segmentation) -> None:
        for class_id, share in enumerate(result.shares.tolist()):
            presence = self._watched.get(class_id)
            if presence is not None and share >= presence.least and share > 0:
                self._wake(presence)
                presence.see(share)

    def _wake(self, presence: Presence) -> None:
        if presence.is_idle:
            self._awake.append(presence)


def labels_by_id(bundle: Bundle) -> dict[int, str]:
    """Return the labels of a bundle's classes by their ids in results, as messages have them."""
    manifest = bundle.manifest
    numbered = enumerate(bundle.labels(), start=-1 if has_background(manifest) else 0)
    return {class_id: label or f"class_{class_id}" for class_id, label in numbered}


def rules_by_label(rules: Iterable[EventRule]) -> dict[str, EventRule]:
    """Return the rules by label.

    Raises:
        UsageError: two rules name the same label, so that each of its events would be published twice.
    """
    by_label: dict[str, EventRule] = {}
    for rule in rules:
        for label in rule.labels:
            if by_label.setdefault(label, rule) is not rule:
                raise UsageError(f"event rules: two of them name {label!r}, expected one a label")
    return by_label


def unwatched(rules: Iterable[EventRule], bundle: Bundle) -> list[str]:
    """Return a line for each label of the rules that no class of a bundle has."""
    of = f"is no label of {bundle.manifest.name}, so nothing is told of it"
    return missing_labels(rules_by_label(rules), labels_by_id(bundle).values(), of)


def missing_labels(named: Iterable[str], labels: Collection[str], of: str) -> list[str]:
    """Return a line for each label that is none of these, with the one that was probably meant."""
    near = {label: nearest(label, labels) for label in named if label not in labels}
    return [f"{shown(label)} {of}" + (f"; did you mean {shown(like)}?" if like else "") for label, like in near.items()]


def _event(turn: Turn, presence: Presence, frame: Frame) -> Event:
    """Return the event, timed at the capture of its frame, with confidence and box of the latest sighting."""
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


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When pictures of a camera are made, and how large.

    Attributes:
        on: `event`: the frame in which one was found, or the next one. `interval`: whether or not anything happens.
        interval_s: seconds from one to the next, 0.1 to a day; for `interval`, which needs it.
        max_per_s: pictures a second at most, 0.001 to 10, for `event`; of what is more the newest is made. Else 1.
        width: pixels; wider pictures are made smaller, 16 to 4096.
        quality: of JPEG, 20 to 100.

    Raises:
        SettingError: a number is outside its range, or is not for this way of making pictures.
    """

    on: Annotated[Literal["event", "interval"], Meta(description="when a picture is made")]
    interval_s: (
        Annotated[
            float, Meta(ge=0.1, le=_LONGEST_S, description="from one picture to the next", extra={"unit": "seconds"})
        ]
        | None
    ) = None
    max_per_s: (
        Annotated[float, Meta(ge=0.001, le=10, description="pictures a second of one camera; the newest is kept")]
        | None
    ) = None
    width: Annotated[
        int, Meta(ge=16, le=4096, description="wider pictures are made smaller", extra={"unit": "pixels"})
    ] = 640
    quality: Annotated[int, Meta(ge=WORST_QUALITY, le=100, description="of JPEG")] = 80

    def __post_init__(self) -> None:
        check_fields(self, SnapshotSettings)
        if self.on == "interval" and self.interval_s is None:
            raise SettingError('interval_s is missing, expected seconds, for on = "interval"')
        if self.on == "interval" and self.max_per_s is not None:
            raise SettingError('max_per_s is for on = "event"; expected interval_s alone')
        if self.on == "event" and self.interval_s is not None:
            raise SettingError('interval_s is for on = "interval"; expected max_per_s, or nothing')

    @property
    def gap_s(self) -> float:
        """The least number of seconds from one picture to the next."""
        return self.interval_s or 1 / (self.max_per_s or 1.0)
