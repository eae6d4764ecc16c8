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
from edge_sdk import Bundle, Classification, EdgeError, Frame, Image, Model, SessionSettings
from edge_sdk.errors import BundleError, ConfigError, IncompatibleError, UsageError
from edge_sdk.signing import generate_key
from tests.device.bundles import edit_manifest
from tests.device.graded import write_graded

_PICTURE: Image = np.random.default_rng(3).integers(0, 256, (48, 80, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge", latency_ms=50.0)


@pytest.fixture
def model(folder: Path) -> Model:
    return Model.open(Bundle.open(folder))


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


def test_every_refusal_is_an_edge_error(tmp_path: Path) -> None:
    with pytest.raises(EdgeError, match="no such bundle"):
        Bundle.open(tmp_path / "nothing.edge")
