"""A second model on the objects of the first: which of them go on, for how long, and what a failure costs."""

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_sdk.core.errors import SessionError, UsageError
from edge_sdk.core.frame import Classification, Detections, Frame, Result
from edge_sdk.inference.cascade import Cascade, CropSettings, Region
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.model import Model
from tests.support.bundles import coloured, open_real_bundle, write_real_bundle
from tests.support.logs import refusal
from tests.support.loops import MS, Camera, Clock, Collector
from tests.support.models import segmenter
from tests.support.results import make_frame

_WIDE = [(0.0, 0.0, 100.0, 100.0)]


def _found(boxes: list[tuple[float, float, float, float]], class_ids: list[int] | None = None) -> Detections:
    confidence = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
    ids = np.array(class_ids or [0] * len(boxes), np.int64)
    return Detections(make_frame(), 0, np.array(boxes, np.float32).reshape(-1, 4), confidence, ids)


class Scene:
    """A second model whose run takes as long as a test says, or fails."""

    def __init__(self, work_ms: float = 1.0, class_ids: frozenset[int] | None = None, **settings: Any) -> None:
        self.clock, self.work_ms, self.failure = Clock(), work_ms, ""
        self.regions, self.warned = list[Region](), list[str]()
        model: Any = self
        crops = CropSettings(**settings)
        self.cascade = Cascade(model, crops, class_ids, lambda name, _: self.warned.append(name), clock_ns=self.clock)

    def run_part(self, frame: Frame, region: Region) -> Result:
        self.regions.append(region)
        self.clock.advance(self.work_ms)
        if self.failure:
            raise SessionError(self.failure)
        return Classification(frame, 0, np.ones(1, np.float32), np.zeros(1, np.int64))

    def look(self, found: Detections, within_ms: float = math.inf) -> list[bool]:
        """For which of the objects there is a result."""
        result: Any = self.cascade(found, self.clock() + within_ms * MS)
        return [then is not None for then in result.then]

    def counts(self) -> tuple[int, int, int]:
        counts = self.cascade.counts
        return counts.run, counts.skipped, counts.failed


def test_what_is_cut_out_lies_in_the_frame() -> None:
    for box, margin, expected in (
        ((100.4, 100.6, 199.2, 149.1), 0.0, (100, 100, 200, 150)),
        ((100, 100, 200, 150), 0.1, (90, 95, 210, 155)),
        ((600, 440, 640, 480), 1.0, (560, 400, 640, 480)),
        ((639.9, 479.9, 640, 480), 0.0, (639, 479, 640, 480)),
        ((640, 10, 640, 20), 0.5, None),
        ((10, 20, 30, 20), 0.5, None),
        ((700, 10, 800, 20), 0.0, None),
        ((10, 10, math.nan, 20), 0.5, None),
        ((10, 10, math.inf, 20), 0.5, None),
    ):
        scene = Scene(margin=margin)
        assert scene.look(_found([box])) == [expected is not None]
        assert scene.regions == ([expected] if expected else [])


def test_the_most_confident_of_the_chosen_classes_go_on_and_an_empty_box_takes_no_place() -> None:
    scene = Scene(class_ids=frozenset({1}), max_crops=2, margin=0)
    boxes = [*_WIDE * 2, (5.0, 5.0, 5.0, 5.0), *_WIDE * 2]
    assert scene.look(_found(boxes, [0, 1, 1, 1, 1])) == [False, True, False, True, False]
    assert scene.look(_found([])) == []


def test_objects_go_on_while_the_frame_has_time_and_the_others_are_counted_and_said_once() -> None:
    scene = Scene(work_ms=30)
    for _ in range(2):
        assert scene.look(_found(_WIDE * 4), within_ms=100) == [True, True, True, False]
    assert (scene.counts(), scene.warned) == ((6, 2, 0), ["then_skipped"])


def test_a_second_model_that_never_fits_is_tried_now_and_then_and_soon_again_after_a_slow_spell() -> None:
    scene = Scene(work_ms=50)
    tries = sum(any(scene.look(_found(_WIDE * 4), within_ms=20)) for _ in range(500))
    assert 2 <= tries <= 20  # each makes one result late
    scene.work_ms = 2
    assert [any(scene.look(_found(_WIDE), within_ms=20)) for _ in range(200)].count(True) > 100


def test_a_failure_costs_its_frame_the_second_model_and_three_in_a_row_end_it() -> None:
    scene = Scene()
    for scene.failure in ("no luck", "", "no luck", "no luck", "no luck"):
        assert scene.look(_found(_WIDE * 2)) == [not scene.failure] * 2
    assert (scene.counts(), scene.warned) == ((2, 0, 8), ["then_failed"] * 2)
    rested = scene.cascade(found := _found(_WIDE))
    assert (rested, len(scene.regions)) == (found, 1 + 2 + 3)


def test_a_slow_second_model_costs_details_and_no_frames() -> None:
    scene = Scene(work_ms=40)
    camera, sink = Camera(scene.clock, 50, 200), Collector()

    def first(frame: Frame) -> Result:
        scene.clock.advance(20)
        return _found(_WIDE * 4)

    loop = Loop(camera, first, sink, Budget(100), then=scene.cascade, clock_ns=scene.clock)
    loop.run()
    assert (loop.counts[Tick.STALE], loop.counts[Tick.LATE]) == (0, 0)
    assert scene.cascade.counts.run >= len(sink.results) >= 99


def test_what_a_second_model_says_of_a_part_lies_in_the_frame(cell_bundle: Path, cell_pictures: Path) -> None:
    detector = Model.open(cell_bundle)
    found: Any = detector.then(Model.open(cell_bundle), margin=0)(cv2.imread(str(cell_pictures / "2.png")))
    assert len(found) >= 2
    for box, label, then in zip(found.xyxy, found.labels, found.then, strict=True):
        assert (then.labels[0], then.frame is found.frame) == (label, True)
        assert (then.xyxy[:, :2] >= np.floor(box[:2])).all()
        assert (then.xyxy[:, 2:] <= np.ceil(box[2:])).all()
    assert [one.then for one in found] == [(then,) for then in found.then]


def test_shares_are_those_of_what_was_cut_out_and_not_of_its_padding(tmp_path: Path) -> None:
    labels = {"labels.txt": b"none\nred\nblue\n"}
    model = segmenter(16)
    bundle = open_real_bundle(tmp_path / "areas.edge", model, task="segmentation", decoder="logits", extra=labels)
    image = np.zeros((64, 64, 3), np.uint8)
    image[16:32] = 0, 0, 255
    then: Any = Stages.open(bundle).run_part(Frame.of(image), (0, 16, 64, 32))
    assert then.shares.tolist() == [0, 1, 0]


def test_a_second_model_in_a_program(cell_bundle: Path, cell_pictures: Path, tmp_path: Path) -> None:
    colours = Model.open(write_real_bundle(tmp_path / "colours.edge", coloured()))
    model = Model.open(cell_bundle).then(colours, labels=["red"]).clone()
    found = model.detect(cv2.imread(str(cell_pictures / "0.png")))
    said = [None if then is None else then.labels[0] for then in found.then or ()]
    assert sorted(zip(found.labels, said, strict=True)) == [("blue", None), ("red", "red")]
    assert ["then" in one for one in found.to_dict()["detections"]] == [label == "red" for label in found.labels]
    for wrong, words in (({"labels": ["rde"]}, "then.labels: 'rde'"), ({"max_crops": 0}, "max_crops is 0")):
        assert words in refusal(UsageError, Model.open(cell_bundle).then, colours, **wrong)
    assert "detector, and tiny is for classification" in refusal(UsageError, colours.then, colours)
