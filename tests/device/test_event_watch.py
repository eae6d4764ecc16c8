"""When a class has appeared and when it has disappeared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import UsageError
from edge_sdk.event import Event
from edge_sdk.event_rule import EventRule
from edge_sdk.event_watch import EventWatch, labels_by_id, rules_by_label
from edge_sdk.frame import Classification, Detections
from edge_sdk.model_spec import ClassificationSpec
from tests.device.bundles import FILES, make_manifest, write_bundle
from tests.device.results import make_classification, make_detections, make_frame, make_segmentation

CAT = EventRule(labels=("cat",), appear_frames=2, disappear_frames=2, disappear_s=0.0)
LABELS = {0: "cat", 1: "dog", 2: "cow"}
FRAME_S = 0.1


class Told(list[Event]):
    """A sink that keeps what it is told."""

    def put(self, event: Event, /) -> None:
        self.append(event)

    @property
    def words(self) -> list[str]:
        """By the frame that decided it."""
        return [f"{event.kind} {event.label} {event.frame_seq}" for event in self]


def _result(seq: int, found: dict[int, float], *, at_s: float | None = None, is_finite: bool = True) -> Detections:
    at_s = seq * FRAME_S if at_s is None else at_s
    order = sorted(found.items(), key=lambda item: -item[1])
    boxes = np.array([[i, i, i + 10, i + 10] for i, _ in order], np.float32).reshape(-1, 4)
    return Detections(
        make_frame(seq, captured_ns=round(at_s * 1e9), captured_at=1_700_000_000 + at_s),
        0,
        boxes,
        np.array([confidence for _, confidence in order], np.float32),
        np.array([class_id for class_id, _ in order], np.int64),
        is_finite,
    )


def _watched(sightings: str, rule: EventRule = CAT) -> list[str]:
    """Frame by frame: c: a cat, .: nothing, ?: outputs that were no numbers, and nothing found in them."""
    told = Told()
    watch = EventWatch([rule], LABELS, told)
    for seq, sign in enumerate(sightings):
        watch.put(_result(seq, {0: 0.9} if sign == "c" else {}, is_finite=sign != "?"))
    return [f"{word[0]}{seq}" for word, _, seq in map(str.split, told.words)]


@pytest.mark.parametrize(
    ("sightings", "expected"),
    [
        ("", []),
        (".......", []),
        ("ccccccc", ["a1"]),
        ("c.c.c.c", []),
        ("cc.c.c.", ["a1"]),
        ("..cc....cc", ["a3", "d5", "a9"]),
        ("cc.?.", ["a1", "d4"]),
        ("cc??????????cc", ["a1"]),
        ("c?c", ["a2"]),
        ("cc..", ["a1", "d3"]),
    ],
)
def test_what_is_seen_in_a_row_has_appeared_and_what_is_not_has_disappeared(
    sightings: str, expected: list[str]
) -> None:
    assert _watched(sightings) == expected


@pytest.mark.parametrize(
    ("rule", "sightings", "expected"),
    [
        (EventRule(labels=("cat",), appear_frames=1, disappear_frames=1, disappear_s=0.0), "c.c.", "a0 d1 a2 d3"),
        (EventRule(labels=("cat",), appear_frames=1, appear_s=0.25, disappear_s=0.0), "ccccc", "a3"),
        (EventRule(labels=("cat",), appear_frames=1, disappear_frames=1, disappear_s=0.25), "cc......", "a0 d5"),
        (EventRule(labels=("cat",), appear_frames=1, disappear_frames=5, disappear_s=0.0), "cc......", "a0 d6"),
        (EventRule(labels=("cat",), confidence=0.95), "ccccc", ""),
    ],
)
def test_how_many_results_and_how_long(rule: EventRule, sightings: str, expected: str) -> None:
    assert _watched(sightings, rule) == expected.split()


@pytest.mark.parametrize(
    ("sightings", "expected"),
    [
        ("cc....cc....", "a1 d3"),  # the second one came and went untold
        ("cc....cccccc....", "a1 d3 a11 d13"),  # it is still there when the pause is over
        ("cc..........cc", "a1 d3 a13"),
    ],
)
def test_appearances_are_told_with_a_pause_between_them_and_disappearances_only_of_those(
    sightings: str, expected: str
) -> None:
    rule = EventRule(labels=("cat",), disappear_s=0.0, cooldown_s=0.95)
    assert _watched(sightings, rule) == expected.split()


def test_time_without_results_is_no_time_in_which_something_was_gone() -> None:
    told = Told()
    watch = EventWatch([EventRule(labels=("cat",), disappear_s=2.0)], LABELS, told)
    times_s = (0.0, 0.1, 0.2, 3600.0, 3600.1, 3600.2)
    for seq, at_s in enumerate(times_s):
        watch.put(_result(seq, {0: 0.9} if seq < 2 else {}, at_s=at_s))
    assert told.words == ["appeared cat 1"]
    for seq in range(6, 30):
        watch.put(_result(seq, {}, at_s=3600.2 + 0.1 * (seq - 5)))
    assert told.words == ["appeared cat 1", "disappeared cat 13"]


def test_a_clock_that_runs_backwards_and_equal_times_are_borne() -> None:
    told = Told()
    watch = EventWatch([CAT], LABELS, told)
    for seq, at_s in enumerate((5.0, 5.0, 4.0, 4.0, 9.0)):
        watch.put(_result(seq, {0: 0.9} if seq < 3 else {}, at_s=at_s))
    assert told.words == ["appeared cat 1", "disappeared cat 4"]


def test_what_an_event_says() -> None:
    told = Told()
    watch = EventWatch([EventRule(labels=("cat",), disappear_s=0.15)], LABELS, told)
    for seq in range(3):
        watch.put(_result(seq, {1: 0.95, 0: 0.6 + seq / 10}))
    for seq in range(3, 7):
        watch.put(_result(seq, {1: 0.95}))
    appeared, disappeared = told
    assert (appeared.kind, appeared.label, appeared.class_id, appeared.camera) == ("appeared", "cat", 0, "door")
    assert appeared.confidence == pytest.approx(0.7)
    assert appeared.box_xyxy == (0.0, 0.0, 10.0, 10.0)
    assert (appeared.frame_wh, appeared.frame_seq) == ((640, 480), 1)
    assert appeared.at == datetime.fromtimestamp(1_700_000_000.1, timezone.utc)
    assert appeared.detail == {"after_s": 0.1}
    assert disappeared.confidence == pytest.approx(0.8)
    assert disappeared.frame_seq == 5
    assert disappeared.detail == {"after_s": 0.3, "stayed_s": 0.2}


def test_the_most_confident_of_a_class_counts_and_each_class_for_itself() -> None:
    told = Told()
    rules = [EventRule(labels=("cat", "dog"), appear_frames=1), EventRule(labels=("fox",))]
    watch = EventWatch(rules, LABELS, told)
    result = Detections(
        make_frame(),
        0,
        np.array([[0, 0, 9, 9], [1, 1, 9, 9], [2, 2, 9, 9], [3, 3, 9, 9]], np.float32),
        np.array([0.9, 0.8, 0.7, 0.4], np.float32),
        np.array([2, 0, 0, 1], np.int64),
    )
    watch.put(result)
    assert told.words == ["appeared cat 0"]
    assert told[0].box_xyxy == (1.0, 1.0, 9.0, 9.0)


def test_classes_of_a_classifier_and_shares_of_a_segmentation() -> None:
    told = Told()
    rule = EventRule(labels=("cat", "dog"), appear_frames=1, confidence=0.3)
    EventWatch([rule], LABELS, told).put(make_classification([1, 0]))
    assert told.words == ["appeared dog 0"]
    assert told[0].box_xyxy is None
    told.clear()
    EventWatch([rule], LABELS, told).put(make_segmentation([0.3, 0.29]))
    assert [event.label for event in told] == ["cat"]
    told.clear()
    none = EventRule(labels=("cow",), appear_frames=1, confidence=0.0)
    EventWatch([none], LABELS, told).put(make_segmentation([0.5, 0.5]))
    assert not told


def test_numbers_that_are_none_are_not_seen_and_make_no_event_that_cannot_be() -> None:
    told = Told()
    watch = EventWatch([EventRule(labels=("cat",), appear_frames=1)], LABELS, told)
    nan = float("nan")
    for confidence in (nan, 0.9):
        boxes = np.full((1, 4), nan, np.float32)
        confidences = np.array([confidence], np.float32)
        watch.put(Detections(make_frame(), 0, boxes, confidences, np.array([0]), is_finite=False))
    assert told.words == ["appeared cat 0"]
    assert told[0].box_xyxy is None
    told.clear()
    unknown = Classification(make_frame(), 0, np.array([nan], np.float32), np.array([0]), is_finite=False)
    EventWatch([EventRule(labels=("cat",), appear_frames=1)], LABELS, told).put(unknown)
    assert not told


@pytest.mark.parametrize("seed", range(30))
def test_of_any_sequence_appearances_and_disappearances_take_turns_and_are_borne_out(seed: int) -> None:
    chance = random.Random(seed)
    rule = EventRule(
        labels=("cat",),
        appear_frames=chance.randint(1, 4),
        appear_s=chance.choice((0.0, 0.25)),
        disappear_frames=chance.randint(1, 4),
        disappear_s=chance.choice((0.0, 0.25, 1.0)),
        cooldown_s=chance.choice((0.0, 0.0, 2.0)),
    )
    signs = "".join(chance.choices("c.?", (5, 5, 1), k=8) * 2 + [s * chance.randint(1, 15) for s in "c.c?.c."])
    signs = "".join(chance.sample(signs, len(signs) // 3)) + signs
    events = _watched(signs, rule)
    assert [event[0] for event in events] == [("a", "d")[i % 2] for i in range(len(events))]
    told_at = {int(event[1:]): event[0] for event in events}
    for seq, kind in told_at.items():
        known = [sign for sign in signs[: seq + 1] if sign != "?"]
        if kind == "d":
            assert set(known[-rule.disappear_frames :]) == {"."}
        else:
            assert signs[seq] == "c"
    spans = [seq for seq, kind in sorted(told_at.items()) if kind == "a"]
    assert all((b - a) * FRAME_S >= rule.cooldown_s - 1e-6 for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": ()},
        {"labels": ("cat", "cat")},
        {"labels": ("x" * 101,)},
        {"labels": ("a\tb",)},
        {"labels": "cat"},
        {"confidence": 1.1},
        {"confidence": float("nan")},
        {"appear_frames": 0},
        {"disappear_frames": 1001},
        {"disappear_s": -1.0},
        {"cooldown_s": 86401.0},
    ],
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="event rule: "):
        EventRule(**{"labels": ("cat",), **wrong})  # type: ignore[arg-type]


def test_two_rules_of_one_label_are_refused() -> None:
    with pytest.raises(UsageError, match="two of them name 'cat'"):
        rules_by_label([CAT, EventRule(labels=("dog", "cat"))])


def test_a_bundles_labels_are_counted_as_its_results_count_them(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "tiny.edge"))
    told = Told()
    watch = EventWatch.for_bundle(bundle, [EventRule(labels=("dog",), appear_frames=1)], told)
    watch.put(make_classification([1]))
    assert [event.class_id for event in told] == [1]


def test_a_label_that_the_bundle_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "tiny.edge"))
    rules = (EventRule(labels=labels) for labels in (("dog", "catt"), ("fox",)))
    with pytest.raises(UsageError) as refused:
        EventWatch.for_bundle(bundle, rules, Told())
    of = "is no label of tiny, so nothing is told of it"
    assert str(refused.value) == f"event rules: 'catt' {of}; did you mean 'cat'?; 'fox' {of}"


@pytest.mark.parametrize(
    ("background_class", "expected"), [(False, {0: "cat", 1: "class_1"}), (True, {-1: "cat", 0: "class_0"})]
)
def test_labels_are_those_of_messages(tmp_path: Path, background_class: bool, expected: dict[int, str]) -> None:
    files = FILES | {"labels.txt": b"cat\n\n"}
    spec = ClassificationSpec(background_class=background_class)
    manifest = msgspec.structs.replace(make_manifest(files), classification=spec)
    assert labels_by_id(Bundle.open(write_bundle(tmp_path / "tiny.edge", manifest, files))) == expected


def _of_labels(results: Iterable[Detections], rules: Sequence[EventRule]) -> list[str]:
    told = Told()
    watch = EventWatch(rules, LABELS, told)
    for result in results:
        watch.put(result)
    return told.words


def test_nothing_is_watched_without_rules() -> None:
    assert _of_labels((make_detections(20, make_frame(seq)) for seq in range(3)), []) == []
