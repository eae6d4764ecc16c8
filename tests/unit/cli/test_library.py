"""The library: what `edge_sdk` names, loaded when it is used, with sources, sinks and pictures of one's own."""

import ast
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import CameraError, UsageError
from edge_sdk.core.frame import NO_CLASS, Classification, Frame, Image, Result
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.loop import Tick
from edge_sdk.model import Model
from tests.support.bundles import edit_manifest, write_graded
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
from edge_sdk import EdgeError, SourceOptions
print([name for name in heavy if name in sys.modules])
from edge_sdk import Model
print(os.environ["ORT_DISABLE_TELEMETRY"], "onnxruntime" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] ['edge_sdk']", "['msgspec']", "1 True"]


def test_every_public_name_is_there_typed_and_loaded_once_and_no_other() -> None:
    tree = ast.parse(Path(edge_sdk.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    named = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == set(edge_sdk.__all__) - {"__version__"} == set(edge_sdk._MODULES)
    for name in edge_sdk.__all__:
        assert name in dir(edge_sdk)
        assert getattr(edge_sdk, name) is getattr(edge_sdk, name)
    for node in typed.body:
        assert isinstance(node, ast.ImportFrom)
        assert {edge_sdk._MODULES[alias.name] for alias in node.names} == {str(node.module).removeprefix("edge_sdk.")}
    with pytest.raises(AttributeError, match="module 'edge_sdk' has no attribute 'Daemon'"):
        edge_sdk.Daemon  # type: ignore[attr-defined]  # noqa: B018


# A model and its pictures.


def test_a_picture_gives_the_same_as_its_frame_of_any_size(model: Model) -> None:
    result = model.classify(_PICTURE)
    assert result.labels[0] in model.labels
    framed = model(Frame.of(_PICTURE, seq=7, camera="mine"))
    assert isinstance(framed, Classification)
    assert (framed.frame.seq, framed.frame.camera, framed.frame.size_wh) == (7, "mine", (80, 48))
    assert np.array_equal(result.confidence, framed.confidence)
    assert result.confidence.sum() == pytest.approx(1)
    other = model(np.zeros((5, 900, 3), np.uint8))
    assert isinstance(other, Classification)
    assert not np.array_equal(other.confidence, result.confidence)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, "NoneType"),
        (_PICTURE[..., 0], "uint8 (48, 80)"),
        (_PICTURE.astype(np.float32), "float32 (48, 80, 3)"),
        (_PICTURE[None], "uint8 (1, 48, 80, 3)"),
        (_PICTURE[:0], "uint8 (0, 80, 3)"),
        (np.broadcast_to(_PICTURE[:1, :1], (200_000, 200_000, 3)), "uint8 (200000, 200000, 3)"),
    ],
)
def test_an_array_that_is_no_picture_is_one_line_that_says_what_is_one(model: Model, given: Any, found: str) -> None:
    expected = f"{found}, expected a numpy array of uint8 (height, width, 3), BGR"
    for take in (model, Frame.of):
        assert refusal(UsageError, take, given).startswith(f"the picture is {expected}")
    loop = model.loop(Pictures(Frame(given, 0, 0.0, 0, "mine"), *_frames(1)))
    assert f"whose image is {expected}" in refusal(CameraError, loop.step)
    assert [result.frame.seq for result in loop] == [0]  # it goes on


def test_class_ids_have_the_labels_of_the_bundle(folder: Path, model: Model) -> None:
    assert model.labels == ("cat", "dog")
    assert [model.label_of(n) for n in (0, 1, 2, -1)] == ["cat", "dog", "class_2", "background"]
    assert model.label_of(np.array([1])[0]) == "dog"
    promise = model.bundle.manifest.classification
    edit_manifest(folder, classification={"top_k": promise.top_k, "background_class": True})
    counted_without = Model.open(Bundle.open(folder))
    assert [counted_without.label_of(n) for n in (-1, 0, 1)] == ["cat", "dog", "class_1"]
    result = counted_without(_PICTURE)
    assert isinstance(result, Classification)
    assert set(result.class_id.tolist()) == {-1, 0}


def test_a_model_opens_with_another_variant_and_other_settings(folder: Path, model: Model) -> None:
    bundle = Bundle.open(folder)
    other = Model.open(bundle, variant="int8.8x8", settings=SessionSettings(intra_op_num_threads=2))
    assert (model.variant, other.variant) == ("int8", "int8.8x8")
    assert (model.session.input_shape[-1], other.session.input_shape[-1]) == (16, 8)
    assert other.session.inference.get_session_options().intra_op_num_threads == 2
    assert len(other.session.run(np.zeros(other.session.input_shape, other.session.input_dtype))) == 1
    with pytest.raises(UsageError, match="fp64"):
        Model.open(bundle, variant="fp64")


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
    sink, observer, seen = Seqs(), Seqs(), list[int]()
    loop = model.loop(Pictures(None, *_frames(3), None), sink, latency_ms=1e6, observers=[observer])
    for result in loop:
        assert sink.seqs[-1] == result.frame.seq
        seen.append(result.frame.seq)
    assert seen == sink.seqs == observer.seqs == [0, 1, 2]
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

    old = [Frame(_PICTURE, 0, 0.0, seq, "old") for seq in range(5)]  # captured when the machine started
    assert model.latency_budget_ms == 50.0
    loops = [model.loop(Live(*old)), model.loop(Live(*old), latency_ms=1e12), model.loop(Pictures(*old))]
    for loop in loops:
        loop.run()
    own, patient, in_turn = (loop.counts for loop in loops)
    assert (own[Tick.LATE], own[Tick.STALE]) == (1, 4)  # one a second runs whatever its age
    assert (patient[Tick.ON_TIME], in_turn[Tick.LATE]) == (5, 5)
    for latency_ms in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="expected milliseconds above 0"):
            model.loop(Pictures(), latency_ms=latency_ms)


def test_a_loop_over_a_source_that_never_ends_is_stopped_by_another_thread(model: Model) -> None:
    class Endless(Pictures):
        ended = False

        def latest(self, timeout_s: float) -> Frame:
            return Frame.of(_PICTURE)

    loop = model.loop(Endless(), latency_ms=1e6)
    runner = threading.Thread(target=loop.run)
    runner.start()
    while not loop.counts[Tick.ON_TIME]:  # though nothing takes the results
        assert runner.is_alive()
    loop.stop()
    runner.join(60)
    assert not runner.is_alive()
    assert 0 < loop.last_run_ns <= loop.last_serial_ns <= loop.last_age_ns


def test_parts_of_the_wrong_kind_are_one_line(model: Model) -> None:
    location, function = "0", print
    with pytest.raises(UsageError, match="is for classification, and gives Classification"):
        model.detect(_PICTURE)
    with pytest.raises(UsageError, match="confidence is 4, expected 0 to 1"):
        model(_PICTURE, confidence=4)
    with pytest.raises(UsageError, match=r"the source is '0', expected one with latest\(\); open_source"):
        model.loop(location)  # type: ignore[arg-type]
    for parts in ({"sink": function}, {"observers": [Seqs(), function]}):
        with pytest.raises(UsageError, match=r"the sink is .*print.*, expected an object with put"):
            model.loop(Pictures(), **parts)  # type: ignore[arg-type]
    with pytest.raises(CameraError, match=r"latest\(\) gave ndarray, expected None or a Frame; Frame\.of\(image\)"):
        model.loop(Pictures(_PICTURE)).run()
