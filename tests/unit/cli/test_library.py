"""The library: what `edge_sdk` names, loaded when it is used, with sources, sinks and pictures of one's own."""

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import CameraError, UsageError
from edge_sdk.core.frame import NO_CLASS, Frame, Image, Result
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.loop import Tick
from edge_sdk.model import Model
from tests.support.bundles import edit_manifest, write_graded
from tests.support.connections import until
from tests.support.logs import refusal
from tests.support.results import make_classification, make_detections, make_segmentation

_PICTURE: Image = np.random.default_rng(3).integers(0, 256, (48, 80, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge", latency_ms=50.0)


@pytest.fixture
def model(folder: Path) -> Model:
    return Model.open(folder)


def test_importing_loads_nothing_and_a_name_loads_what_it_needs() -> None:
    program = """
import os, sys
import edge_sdk
heavy = ("numpy", "cv2", "onnxruntime", "msgspec", "paho", "click", "cryptography")
print([name for name in heavy if name in sys.modules], sorted(n for n in sys.modules if n.startswith("edge_sdk")))
print(os.environ["OPENCV_THREAD_POOL_ACTIVE_WAIT_WORKER"])  # its threads burn no cores while they wait
from edge_sdk import EdgeError, SourceOptions
print([name for name in heavy if name in sys.modules])
from edge_sdk import Model
print(os.environ["ORT_DISABLE_TELEMETRY"], "onnxruntime" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENCV_", "ORT_"))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["[] ['edge_sdk']", "0", "['msgspec']", "1 True"]


def test_every_public_name_is_there_typed_and_loaded_once_and_no_other() -> None:
    tree = ast.parse(Path(edge_sdk.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module).removeprefix("edge_sdk.") for node in imports for alias in node.names}
    assert modules == edge_sdk._MODULES
    assert {*modules, "__version__"} == {*edge_sdk.__all__} <= {*dir(edge_sdk)}
    assert all(getattr(edge_sdk, name) is getattr(edge_sdk, name) for name in edge_sdk.__all__)
    assert not hasattr(edge_sdk, "Daemon")


# A model and its pictures.


def test_a_picture_gives_the_same_as_its_frame_of_any_size(model: Model) -> None:
    result = model.classify(_PICTURE)
    assert result.labels[0] in model.labels
    framed: Any = model(Frame.of(_PICTURE, seq=7, camera="mine"))
    assert (framed.frame.seq, framed.frame.camera, framed.frame.size_wh) == (7, "mine", (80, 48))
    assert np.array_equal(result.confidence, framed.confidence)
    assert result.confidence.sum() == pytest.approx(1)
    sure = [f"{label} {confidence:.2f}" for label, confidence in zip(result.labels, result.confidence, strict=True)]
    assert str(result).startswith(f"Classification({len(sure)}: {', '.join(sure[:4])}")
    other: Any = model(np.zeros((5, 900, 3), np.uint8))
    assert not np.array_equal(other.confidence, result.confidence)


def test_an_array_that_is_no_picture_is_one_line_that_says_what_is_one(model: Model) -> None:
    for given, found in (
        (None, "None, which cv2.imread gives for a file that it cannot read"),
        (_PICTURE[..., 0], "uint8 (48, 80)"),
        (_PICTURE.astype(np.float32), "float32 (48, 80, 3)"),
        (_PICTURE[None], "uint8 (1, 48, 80, 3)"),
        (_PICTURE[:0], "uint8 (0, 80, 3)"),
        (np.broadcast_to(_PICTURE[:1, :1], (200_000, 200_000, 3)), "uint8 (200000, 200000, 3)"),
    ):
        expected = f"{found}, expected a numpy array of uint8 (height, width, 3), BGR"
        for take in (model, Frame.of):
            assert refusal(UsageError, take, given).startswith(f"the picture is {expected}")
        loop = model.loop(Pictures(Frame(given, 0, 0.0, 0, "mine"), *_frames(1)))
        assert f"whose image is {expected}" in refusal(CameraError, loop.step)
        assert [result.frame.seq for result in loop] == [0]  # it goes on


def test_class_ids_have_the_labels_of_the_bundle(folder: Path, model: Model) -> None:
    ids = (0, 1, 2, -1, np.array([1])[0])
    assert model.labels == ("cat", "dog")
    assert [model.label_of(n) for n in ids] == ["cat", "dog", "class_2", "background", "dog"]
    edit_manifest(folder, classification={"top_k": 5, "background_class": True})
    assert [Model.open(folder).label_of(n) for n in (-1, 0, 1)] == ["cat", "dog", "class_1"]


def test_a_model_opens_with_another_variant_and_other_settings(folder: Path, model: Model) -> None:
    bundle = Bundle.open(folder)
    other = Model.open(bundle, variant="int8.8x8", settings=SessionSettings(intra_op_num_threads=2))
    assert [(one.variant, one.session.input_shape[-1]) for one in (model, other)] == [("int8", 16), ("int8.8x8", 8)]
    assert other.session.inference.get_session_options().intra_op_num_threads == 2
    assert len(other.session.run(np.zeros(other.session.input_shape, other.session.input_dtype))) == 1
    assert "fp64" in refusal(UsageError, Model.open, bundle, variant="fp64")


def test_objects_are_chosen_with_what_belongs_to_them_and_every_result_is_drawn() -> None:
    found = msgspec.structs.replace(make_detections(4), tracker_id=np.arange(4), data={"speed": np.arange(4) / 10})
    for chosen in (found[[False, True, False, True]], found[1::2], found[np.array([1, 3])]):
        assert (chosen.tracker_id.tolist(), chosen.data["speed"].tolist()) == ([1, 3], [0.1, 0.3])
        assert np.array_equal(chosen.xyxy, found.xyxy[1::2])
    assert [one.tracker_id.tolist() for one in found] == [[0], [1], [2], [3]]
    assert found.of_classes([1]).class_id.tolist() == [1] * int(found.class_id.sum())
    classes, segments = make_classification([2, 0, -1]), make_segmentation([0.25, 0.75])
    assert classes.of_classes([-1, 2]).class_id.tolist() == [2, -1]
    assert segments.of_classes([1]).shares.tolist() == [0.0, 0.75]
    assert set(segments.of_classes([1]).class_map.flat) == {NO_CLASS}
    canvas = np.full((480, 640, 3), 9, np.uint8)
    for result in (found, classes, msgspec.structs.replace(segments, names={0: "road", 1: "car"})):
        assert result.plot().any()
        assert not result.frame.image.any()
        assert (result.plot(canvas) == 9).any()


# Loops over sources and into sinks of one's own.


class Pictures:
    paced = False

    def __init__(self, *given: Any) -> None:
        self._given, self._next = given, 0

    @property
    def ended(self) -> bool:
        return self._next == len(self._given)

    def latest(self, timeout_s: float) -> Any:
        self._next += 1
        return self._given[self._next - 1]

    def close(self) -> None:
        pass


class Seqs:
    """A sink of one's own, that may fail at one frame."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.seqs: list[int] = []
        self._fails_at = fails_at

    def put(self, result: Result) -> None:
        if result.frame.seq == self._fails_at:
            raise ZeroDivisionError("of the user's own")
        self.seqs.append(result.frame.seq)


def _frames(count: int) -> list[Frame]:
    return [Frame.of(_PICTURE, seq=seq) for seq in range(count)]


def test_a_loop_gives_each_result_once_it_was_delivered(model: Model) -> None:
    sink, observer = Seqs(), Seqs()
    loop = model.loop(Pictures(None, *_frames(3), None), sink, latency_ms=1e6, observers=[observer])
    assert [(result.frame.seq, sink.seqs[-1]) for result in loop] == [(0, 0), (1, 1), (2, 2)]
    assert sink.seqs == observer.seqs == [0, 1, 2]
    assert loop.counts[Tick.ON_TIME] == 3


@pytest.mark.parametrize("role", ["sink", "observer"])
def test_an_error_of_a_sink_reaches_whoever_runs_the_loop_and_it_goes_on(model: Model, role: str) -> None:
    sink, source = Seqs(fails_at=1), Pictures(*_frames(4))
    loop = model.loop(source, sink) if role == "sink" else model.loop(source, None, observers=[sink])
    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        loop.run()
    loop.run()
    assert sink.seqs == [0, 2, 3]


def test_the_budget_is_the_bundles_unless_another_is_given(model: Model) -> None:
    class Live(Pictures):
        paced = True

    assert model.latency_budget_ms == 50.0
    old = [Frame(_PICTURE, 0, 0.0, seq, "old") for seq in range(5)]  # captured when the machine started
    for loop, on_time, late, stale in (
        (model.loop(Live(*old)), 0, 1, 4),  # one a second runs whatever its age
        (model.loop(Live(*old), latency_ms=1e12), 5, 0, 0),
        (model.loop(Pictures(*old)), 0, 5, 0),
    ):
        loop.run()
        assert [loop.counts[tick] for tick in (Tick.ON_TIME, Tick.LATE, Tick.STALE)] == [on_time, late, stale]
    for latency_ms in (0, float("nan"), float("inf")):
        assert "expected milliseconds above 0" in refusal(UsageError, model.loop, Pictures(), latency_ms=latency_ms)


def test_a_loop_over_a_source_that_never_ends_is_stopped_by_another_thread(model: Model) -> None:
    class Endless(Pictures):
        ended = False

        def latest(self, timeout_s: float) -> Frame:
            return Frame.of(_PICTURE)

    loop = model.loop(Endless(), latency_ms=1e6)
    with ThreadPoolExecutor(1) as beside:
        runs = beside.submit(loop.run)
        until(lambda: bool(loop.counts[Tick.ON_TIME]) or runs.done())  # though nothing takes the results
        loop.stop()
        runs.result(60)
    assert 0 < loop.last_run_ns <= loop.last_serial_ns <= loop.last_age_ns


def test_parts_of_the_wrong_kind_are_one_line(model: Model) -> None:
    assert "is for classification, and gives Classification" in refusal(UsageError, model.detect, _PICTURE)
    for confidence in (4, "0.4"):
        said = refusal(UsageError, model, _PICTURE, confidence=confidence)
        assert said == f"confidence is {confidence!r}, expected a number from 0 to 1"
    assert "the second model is 'b.edge', expected a Model" in refusal(UsageError, model.then, "b.edge")
    assert "the bundle is None, expected the path of" in refusal(UsageError, Model.open, None)
    assert "the source is '0', expected one with latest(); open_source" in refusal(UsageError, model.loop, "0")
    for parts in ({"sink": print}, {"observers": [Seqs(), print]}):
        said = refusal(UsageError, model.loop, Pictures(), **parts)
        assert re.search("the sink is .*print.*, expected an object with put", said)
    said = refusal(CameraError, model.loop(Pictures(_PICTURE)).run)
    assert "latest() gave ndarray, expected None or a Frame; Frame.of(image)" in said
