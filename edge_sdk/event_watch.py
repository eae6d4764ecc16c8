"""EventWatch: tells when a class appears on a camera and when it disappears, as an observer of its loop.

Owns what counts as having been looked at: a result whose outputs were no numbers says nothing of what is missing in it,
and time without results is no time in which something was gone. `presence` has the rules of one class.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone

from edge_sdk.bundle import Bundle
from edge_sdk.errors import UsageError
from edge_sdk.event import Event
from edge_sdk.event_rule import EventRule
from edge_sdk.frame import Classification, Detections, Frame, Result, Segmentation
from edge_sdk.presence import Presence, Turn
from edge_sdk.protocols import EventSink
from edge_sdk.toml_file import nearest, shown

_MOST_BETWEEN_NS = 1_000_000_000  # a camera that is away for an hour was looked at for none of it


class EventWatch:
    """Of one camera.

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
        """One for the results of a bundle.

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
        """Look at one result, and tell what it decided; in whose loop it is called."""
        now_ns = result.frame.captured_ns
        last_ns, self._last_ns = self._last_ns, now_ns
        passed_ns = 0 if last_ns is None else min(max(0, now_ns - last_ns), _MOST_BETWEEN_NS)
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
    """The labels of a bundle's classes by their ids in results, as messages have them.

    Raises:
        BundleError: when they changed since it was opened.
    """
    manifest = bundle.manifest
    has_background = manifest.task == "classification" and manifest.classification.background_class
    numbered = enumerate(bundle.labels(), start=-1 if has_background else 0)
    return {class_id: label or f"class_{class_id}" for class_id, label in numbered}


def rules_by_label(rules: Iterable[EventRule]) -> dict[str, EventRule]:
    """The rule of each label that has one.

    Raises:
        UsageError: two rules name the same label: each of its events would be told twice.
    """
    by_label: dict[str, EventRule] = {}
    for rule in rules:
        for label in rule.labels:
            if by_label.setdefault(label, rule) is not rule:
                raise UsageError(f"event rules: two of them name {label!r}, expected one a label")
    return by_label


def unwatched(rules: Iterable[EventRule], bundle: Bundle) -> list[str]:
    """A line for each label of the rules that no class of a bundle has.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
        UsageError: two rules name the same label.
    """
    of = f"is no label of {bundle.manifest.name}, so nothing is told of it"
    return missing_labels(rules_by_label(rules), labels_by_id(bundle).values(), of)


def missing_labels(named: Iterable[str], labels: Collection[str], of: str) -> list[str]:
    """A line for each label that is none of these, with the one that was probably meant.

    Args:
        named: the labels to look for.
        labels: that there are.
        of: what is to be said of one that is missing.
    """
    near = {label: nearest(label, labels) for label in named if label not in labels}
    return [f"{shown(label)} {of}" + (f"; did you mean {shown(like)}?" if like else "") for label, like in near.items()]


def _event(turn: Turn, presence: Presence, frame: Frame) -> Event:
    """At the capture of the frame that decided it; confidence and box are of the latest sighting."""
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
