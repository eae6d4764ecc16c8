"""The library: what `edge_sdk` names, loaded when it is used, with sources, sinks and pictures of one's own."""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_sdk
from edge_sdk import Bundle, Classification, EdgeError, Frame, Image, Loop, Model, Result, SessionSettings, Tick
from edge_sdk.errors import BundleError, CameraError, ConfigError, IncompatibleError, UsageError
from edge_sdk.signing import generate_key
from tests.device.bundles import edit_manifest
from tests.device.graded import write_graded

_PICTURE: Image = np.random.default_rng(3).integers(0, 256, (48, 80, 3), np.uint8)


class Pictures:
    """A source of one's own, that gives what it was given."""

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
    """A sink of one's own."""

    def __init__(self) -> None:
        self.seqs: list[int] = []

    def put(self, result: Result) -> None:
        self.seqs.append(result.frame.seq)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge", latency_ms=50.0)


@pytest.fixture
def model(folder: Path) -> Model:
    return Model.open(Bundle.open(folder))


def _frames(count: int) -> list[Frame]:
    return [Frame.of(_PICTURE, seq=seq) for seq in range(count)]


def test_importing_loads_nothing_and_a_name_loads_what_it_needs() -> None:
    program = """
import os, sys
import edge_sdk
heavy = ("numpy", "cv2", "onnxruntime", "msgspec", "paho", "click", "cryptography")
print([name for name in heavy if name in sys.modules], sorted(n for n in sys.modules if n.startswith("edge_sdk")))
from edge_sdk import Budget, EdgeError, SourceOptions
print([name for name in heavy if name in sys.modules])
from edge_sdk import Model
print(os.environ["ORT_DISABLE_TELEMETRY"], "onnxruntime" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] ['edge_sdk']", "['msgspec']", "1 True"]


def test_every_public_name_is_there_typed_and_loaded_once() -> None:
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


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'edge_sdk' has no attribute 'Daemon'"):
        edge_sdk.Daemon  # noqa: B018
    with pytest.raises(ImportError, match="Daemon"):
        exec("from edge_sdk import Daemon")


def test_a_picture_gives_the_same_as_its_frame_of_any_size(model: Model) -> None:
    result = model(_PICTURE)
    assert isinstance(result, Classification)
    framed = model(Frame.of(_PICTURE, seq=7, camera="mine"))
    assert isinstance(framed, Classification)
    assert (framed.frame.seq, framed.frame.camera, framed.frame.size_wh) == (7, "mine", (80, 48))
    assert np.array_equal(result.confidences, framed.confidences)
    assert result.confidences.sum() == pytest.approx(1)
    other = model(np.zeros((5, 900, 3), np.uint8))
    assert isinstance(other, Classification)
    assert not np.array_equal(other.confidences, result.confidences)


@pytest.mark.parametrize(
    ("given", "found", "way"),
    [
        (None, "NoneType", "cv2.imread gives None"),
        ("street.jpg", "str", "cv2.imread(path)"),
        (_PICTURE[..., 0], "uint8 (48, 80)", "COLOR_GRAY2BGR"),
        (_PICTURE[..., :1], "uint8 (48, 80, 1)", "COLOR_GRAY2BGR"),
        (np.zeros((48, 80, 4), np.uint8), "uint8 (48, 80, 4)", "COLOR_BGRA2BGR"),
        (_PICTURE.astype(np.float32), "float32 (48, 80, 3)", "bring it to 0-255"),
        (_PICTURE.astype(np.uint16), "uint16 (48, 80, 3)", "bring it to 0-255"),
        (_PICTURE[None], "uint8 (1, 48, 80, 3)", "one picture at a time"),
        (_PICTURE.transpose(2, 0, 1), "uint8 (3, 48, 80)", "channels last"),
        (_PICTURE[:0], "uint8 (0, 80, 3)", "no pixels"),
    ],
)
def test_what_is_no_picture_is_one_line_that_says_how_it_becomes_one(
    model: Model, given: Any, found: str, way: str
) -> None:
    for take in (model, Frame.of):
        with pytest.raises(UsageError) as error:
            take(given)
        assert str(error.value).startswith(
            f"the picture is {found}, expected a numpy array of uint8 (height, width, 3)"
        )
        assert way in str(error.value)
        assert "\n" not in str(error.value)


def test_a_source_and_a_sink_of_ones_own(model: Model) -> None:
    sink, observer = Seqs(), Seqs()
    loop = model.loop(Pictures(*_frames(4)), sink, observers=[observer])
    assert isinstance(loop, Loop)
    loop.run()
    assert sink.seqs == observer.seqs == [0, 1, 2, 3]
    assert sum(loop.counts.values()) == 4


def test_a_loop_gives_each_result_once_it_was_delivered(model: Model) -> None:
    sink = Seqs()
    seen = []
    for result in model.loop(Pictures(None, *_frames(3), None), sink, latency_ms=1e6):
        assert sink.seqs[-1] == result.frame.seq
        seen.append(result.frame.seq)
    assert seen == sink.seqs == [0, 1, 2]


def test_without_a_sink_results_are_still_counted_and_timed(model: Model) -> None:
    loop = model.loop(Pictures(*_frames(3)), latency_ms=1e6)
    ages = [loop.last_age_ns for _ in loop]
    assert loop.counts[Tick.ON_TIME] == 3
    assert all(0 < loop.last_run_ns <= loop.last_serial_ns <= age for age in ages[-1:])


def test_the_budget_is_the_bundles_unless_another_is_given(model: Model) -> None:
    class Live(Pictures):
        paced = True

    old = [Frame(_PICTURE, 0, 0.0, seq, "old") for seq in range(5)]  # captured when the machine started
    assert model.latency_budget_ms == 50.0
    loop = model.loop(Live(*old))
    loop.run()
    assert (loop.counts[Tick.LATE], loop.counts[Tick.STALE]) == (1, 4)  # one a second runs whatever its age
    patient = model.loop(Live(*old), latency_ms=1e12)
    patient.run()
    assert patient.counts[Tick.ON_TIME] == 5
    in_turn = model.loop(Pictures(*old))
    in_turn.run()
    assert in_turn.counts[Tick.LATE] == 5


@pytest.mark.parametrize("latency_ms", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(model: Model, latency_ms: float) -> None:
    with pytest.raises(UsageError, match="expected milliseconds above 0"):
        model.loop(Pictures(), latency_ms=latency_ms)


def test_a_loop_over_a_source_that_never_ends_is_stopped_by_another_thread(model: Model) -> None:
    class Endless(Pictures):
        ended = False

        def latest(self, timeout_s: float) -> Frame:
            return Frame.of(_PICTURE)

    loop, sink = model.loop(Endless(), latency_ms=1e6), Seqs()
    runner = threading.Thread(target=loop.run)
    runner.start()
    while not loop.counts[Tick.ON_TIME]:
        assert runner.is_alive()
    loop.stop()
    runner.join(60)
    assert not runner.is_alive()
    assert sink.seqs == []


def test_a_source_that_gives_bare_arrays_is_told_how_to_make_frames(model: Model) -> None:
    loop = model.loop(Pictures(_PICTURE, *_frames(1)))
    with pytest.raises(CameraError, match=r"latest\(\) gave ndarray, expected None or a Frame; Frame\.of\(image\)"):
        loop.run()
    assert [result.frame.seq for result in loop] == [0]  # it goes on


def test_labels_of_class_ids(folder: Path, model: Model) -> None:
    assert model.labels == ("cat", "dog")
    assert [model.label_of(n) for n in (0, 1, 2, -1)] == ["cat", "dog", "class_2", "background"]
    assert model.label_of(np.array([1])[0]) == "dog"
    promise = model.bundle.manifest.classification
    edit_manifest(folder, classification={"top_k": promise.top_k, "background_class": True})
    counted_without = Model.open(Bundle.open(folder))
    assert [counted_without.label_of(n) for n in (-1, 0, 1)] == ["cat", "dog", "class_1"]
    result = counted_without(_PICTURE)
    assert isinstance(result, Classification)
    assert set(result.class_ids.tolist()) == {-1, 0}


def test_another_variant_and_other_settings(folder: Path, model: Model) -> None:
    bundle = Bundle.open(folder)
    other = Model.open(bundle, variant="int8.8x8", settings=SessionSettings(intra_op_num_threads=2))
    assert (model.variant, other.variant) == ("int8", "int8.8x8")
    assert (model.session.input_shape[-1], other.session.input_shape[-1]) == (16, 8)
    assert other.session.inference.get_session_options().intra_op_num_threads == 2
    assert len(other.session.run(np.zeros(other.session.input_shape, other.session.input_dtype))) == 1
    with pytest.raises(UsageError, match="fp64"):
        Model.open(bundle, variant="fp64")


def test_a_twin_has_buffers_of_its_own_and_loads_nothing(model: Model) -> None:
    twin = model.twin()
    assert twin.session.inference is model.session.inference
    expected, other = model(_PICTURE), model(_PICTURE[::2, ::3] // 2)
    assert isinstance(expected, Classification)
    assert isinstance(other, Classification)
    prepared = model.session.run(np.ones(model.session.input_shape, np.float32))
    first = [output.copy() for output in prepared]
    for picture, right in ((_PICTURE, expected), (_PICTURE[::2, ::3] // 2, other)):
        result = twin(picture)
        assert isinstance(result, Classification)
        assert np.array_equal(result.confidences, right.confidences)
    assert not np.array_equal(expected.confidences, other.confidences)
    assert all(np.array_equal(output, kept) for output, kept in zip(prepared, first, strict=True))


def test_twins_run_at_once(model: Model) -> None:
    pictures = [np.full((16, 16, 3), level, np.uint8) for level in (0, 255)]
    models, rows = [model, model.twin()], [list[list[float]](), list[list[float]]()]

    def run(number: int) -> None:
        for _ in range(100):
            result = models[number](pictures[number])
            assert isinstance(result, Classification)
            rows[number].append(result.confidences.tolist())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(rows[0]), len(rows[1])] == [100, 100]
    assert [rows[number].count(rows[number][0]) for number in range(2)] == [100, 100]
    assert rows[0][0] != rows[1][0]


def test_a_result_is_shown_without_its_pixels(model: Model) -> None:
    result = model(Frame.of(_PICTURE, seq=3, camera="gate"))
    assert repr(result).startswith("Classification(frame=Frame(shape=(48, 80, 3), seq=3, camera='gate', captured_at=")
    assert len(repr(result)) < 300
    assert "shape=None" in repr(Frame(None, 0, 0.0, 0, "none"))  # type: ignore[arg-type] # as a foreign source may


def test_a_bundle_for_another_machine_is_refused(folder: Path) -> None:
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    edit_manifest(folder, machine=other)
    with pytest.raises(IncompatibleError, match=f"built for {other}"):
        Model.open(Bundle.open(folder))


@pytest.mark.parametrize("is_list", [True, False])
def test_keys_are_taken_by_the_names_of_their_files(folder: Path, tmp_path: Path, is_list: bool) -> None:
    public = generate_key(tmp_path / "fleet.key")
    for key in (str(public), public):
        with pytest.raises(BundleError, match="not signed"):
            Bundle.open(folder, trusted_keys=[key] if is_list else key)  # type: ignore[arg-type] # one alone is meant
    with pytest.raises(ConfigError, match=r"none\.pub"):
        Bundle.open(folder, trusted_keys=[tmp_path / "none.pub"])


def test_parts_of_the_wrong_kind_are_one_line(folder: Path, model: Model) -> None:
    path: Any = folder
    with pytest.raises(UsageError, match=r"expected a Bundle; Bundle\.open\(path\)"):
        Model.open(path)
    location: Any = "0"
    with pytest.raises(UsageError, match=r"the source is '0', expected one with latest\(\); open_source"):
        model.loop(location)
    function: Any = print
    for parts in ({"sink": function}, {"observers": [Seqs(), function]}):
        with pytest.raises(UsageError, match=r"the sink is .*print.*, expected an object with put"):
            model.loop(Pictures(), **parts)


def test_every_refusal_is_an_edge_error(tmp_path: Path) -> None:
    with pytest.raises(EdgeError, match="no such bundle"):
        Bundle.open(tmp_path / "nothing.edge")
