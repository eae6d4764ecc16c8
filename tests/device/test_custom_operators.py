"""Custom operators: from a package that is installed, or from a bundle that a trusted key signed; else refused."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import helper

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import BundleError, IncompatibleError, MissingDependencyError
from edge_sdk.manifest import SIGNATURE_FILE
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings
from edge_sdk.signing import sign
from edge_sdk.stages import Stages
from tests.device import tiny
from tests.device.troubled import SIDE, write_real_bundle
from tests.device.unmixing import MIX, unmixing

HAS_EXTENSIONS = importlib.util.find_spec("onnxruntime_extensions") is not None
needs_extensions = pytest.mark.skipif(not HAS_EXTENSIONS, reason="onnxruntime-extensions is not installed here")
OPERATOR = "ai.onnx.contrib:Inverse"


def _red_or_blue() -> onnx.ModelProto:
    """Two classes by their colours' means, of 0-255: so simple that its outputs are known without running it."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["means"]),
        helper.make_node("MatMul", ["means", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    weights = {"w": np.array([[1, 0], [0, 0], [0, 1]], np.float32) / 255}
    return tiny.model(nodes, [1, 3, SIDE, SIDE], {"probabilities": [1, 2]}, weights)


def _expected(image: np.ndarray) -> np.ndarray:
    means = image.transpose(2, 0, 1)[::-1].reshape(3, -1).mean(axis=1)  # BGR to RGB
    unmixed = np.linalg.inv(MIX.astype(np.float64)) @ means
    powers = np.exp(unmixed[[0, 2]] / 255)
    return powers / powers.sum()


def _bundle(folder: Path) -> Path:
    """As a builder would write it: whose golden output is known without the operator."""
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    golden = [(image, _expected(image).astype(np.float32)[None])]
    return write_real_bundle(folder, unmixing(classifier=_red_or_blue()), golden=golden, operators=(OPERATOR,))


@needs_extensions
def test_an_operator_of_the_extensions_runs_in_a_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(_bundle(tmp_path / "a.edge"))
    stages = Stages.open(bundle)  # golden was computed without the operator
    image = np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    [found] = stages.session.run(Prepare.of(bundle.manifest).normalise(image))
    assert found[0] == pytest.approx(_expected(image), abs=1e-5)


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    bundle = Bundle.open(_bundle(tmp_path / "a.edge"))
    with pytest.raises(MissingDependencyError) as caught:
        Stages.open(bundle)
    assert caught.value.exit_code == 8
    assert "Inverse" in str(caught.value)
    assert "pip install 'onnxruntime-extensions>=0.15'" in str(caught.value)


def test_the_package_is_not_touched_without_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    Stages.open(Bundle.open(write_real_bundle(tmp_path / "a.edge", tiny.classifier(classes=2))))


def test_inspect_names_custom_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(_bundle(tmp_path / "a.edge"))]) == 0
    assert OPERATOR in capsys.readouterr().out


def _library(folder: Path) -> bytes:
    """A real library with the one function that ONNX Runtime calls; this one leaves a mark."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler here")
    source, library = folder / "mark.c", folder / "mark.so"
    source.write_text(
        "#include <stdlib.h>\n"
        "void *RegisterCustomOps(void *options, const void *api) {\n"
        '  setenv("EDGE_SDK_TEST_MARK", "loaded", 1);\n'
        "  return 0;\n"
        "}\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library.read_bytes()


def _mark() -> bool:
    """Whether the library was called in a process; Python's own copy of the environment does not see it."""
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found = getenv(b"EDGE_SDK_TEST_MARK") == b"loaded"
    ctypes.CDLL(None).unsetenv(b"EDGE_SDK_TEST_MARK")
    return found


def _signed(folder: Path) -> Bundle:
    key = Ed25519PrivateKey.generate()
    (folder / SIGNATURE_FILE).write_bytes(sign((folder / "manifest.json").read_bytes(), key))
    return Bundle.open(folder, [key.public_key()])


def _with_library(tmp_path: Path) -> Path:
    model = tiny.classifier(classes=2)
    return write_real_bundle(tmp_path / "a.edge", model, extra={"mark.so": _library(tmp_path)}, libraries=("mark.so",))


def test_a_library_of_a_signed_bundle_is_loaded(tmp_path: Path) -> None:
    bundle = _signed(_with_library(tmp_path))
    assert not _mark()
    Stages.open(bundle)
    assert _mark()


def test_a_library_of_an_unsigned_bundle_is_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = _with_library(tmp_path)
    with pytest.raises(BundleError, match=r"carries mark\.so, .* only from a bundle that is signed") as caught:
        Session.open(Bundle.open(folder))
    assert caught.value.exit_code == 7
    _signed(folder)  # a signature that nobody checked is none
    assert run(["inspect", str(folder), "--profile"]) == 7
    assert not _mark()


def test_a_library_that_was_swapped_after_the_check_is_not_loaded(tmp_path: Path) -> None:
    bundle = _signed(_with_library(tmp_path))
    data = bytearray((bundle.path / "mark.so").read_bytes())
    data[-1] ^= 1
    (bundle.path / "mark.so").write_bytes(data)
    with pytest.raises(BundleError, match=r"mark\.so: altered"):
        Session.open(bundle)
    assert not _mark()


def test_a_file_that_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    model = tiny.classifier(classes=2)
    folder = write_real_bundle(tmp_path / "a.edge", model, extra={"ops.so": b"no library"}, libraries=("ops.so",))
    with pytest.raises(IncompatibleError) as caught:
        Session.open(_signed(folder))
    assert "\n" not in str(caught.value)


def test_a_library_that_is_no_file_of_the_bundle_is_refused(tmp_path: Path) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", tiny.classifier(classes=2), libraries=("/lib/evil.so",))
    with pytest.raises(BundleError, match="promised but not among the files"):
        Bundle.open(folder)


@needs_extensions
def test_a_real_library_of_operators_runs_from_a_signed_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extensions' own library as a file of the bundle, and the package out of reach."""
    import onnxruntime_extensions

    data = Path(onnxruntime_extensions.get_library_path()).read_bytes()
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    folder = tmp_path / "a.edge"
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    golden = [(image, _expected(image).astype(np.float32)[None])]
    model = unmixing(classifier=_red_or_blue())
    write_real_bundle(
        folder, model, golden=golden, operators=(OPERATOR,), extra={"ops.so": data}, libraries=("ops.so",)
    )
    Stages.open(_signed(folder), SessionSettings())
