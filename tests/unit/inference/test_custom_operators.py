"""Custom operators: from a package that is installed, or from a bundle that a trusted key signed; else refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE
from edge_sdk.bundle.signing import sign
from edge_sdk.cli.root import run
from edge_sdk.core.errors import BundleError, IncompatibleError, MissingDependencyError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.stages import Stages
from tests.support import models as tiny
from tests.support.bundles import SIDE, write_real_bundle
from tests.support.models import MIX, unmixing

HAS_EXTENSIONS = importlib.util.find_spec("onnxruntime_extensions") is not None
needs_extensions = pytest.mark.skipif(not HAS_EXTENSIONS, reason="onnxruntime-extensions is not installed here")
OPERATOR = "ai.onnx.contrib:Inverse"
PLAIN = tiny.classifier(classes=2)
NO_LIBRARY: dict[str, Any] = {"extra": {"ops.so": b"no library"}, "libraries": ("ops.so",)}
"""Whoever loads it fails with an `IncompatibleError`: every other error shows that it was not loaded."""


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


def _bundle(folder: Path, **more: Any) -> Path:
    """As a builder would write it: its golden output is known without the operator."""
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    golden = [(image, _expected(image).astype(np.float32)[None])]
    model = unmixing(then=_red_or_blue())
    return write_real_bundle(folder, model, golden=golden, operators=(OPERATOR,), **more)


def _signed(folder: Path) -> Bundle:
    key = Ed25519PrivateKey.generate()
    (folder / SIGNATURE_FILE).write_bytes(sign((folder / "manifest.json").read_bytes(), key))
    return Bundle.open(folder, [key.public_key()])


@needs_extensions
def test_an_operator_of_the_extensions_runs_in_a_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(_bundle(tmp_path / "a.edge"))
    stages = Stages.open(bundle)  # golden was computed without the operator
    image = np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    [found] = stages.session.run(Prepare.of(bundle.manifest).normalise(image))
    assert found[0] == pytest.approx(_expected(image), abs=1e-5)


def test_a_missing_package_is_named_with_its_remedy_by_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(
        MissingDependencyError, match=r"Inverse .* pip install 'onnxruntime-extensions>=0\.15'"
    ) as caught:
        Stages.open(Bundle.open(_bundle(tmp_path / "a.edge")))
    assert caught.value.exit_code == 8
    Stages.open(Bundle.open(write_real_bundle(tmp_path / "b.edge", PLAIN)))  # does without it


def test_inspect_names_custom_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(_bundle(tmp_path / "a.edge"))]) == 0
    assert OPERATOR in capsys.readouterr().out


@needs_extensions
def test_a_library_of_operators_runs_from_a_signed_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extensions' own library as a file of the bundle, and the package out of reach."""
    import onnxruntime_extensions

    data = Path(onnxruntime_extensions.get_library_path()).read_bytes()
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    Stages.open(_signed(_bundle(tmp_path / "a.edge", extra={"ops.so": data}, libraries=("ops.so",))))


def test_a_file_that_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError) as caught:
        Session.open(_signed(write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY)))
    assert "\n" not in str(caught.value)


def test_a_library_of_an_unsigned_bundle_is_not_loaded(tmp_path: Path) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY)
    with pytest.raises(BundleError, match=r"carries ops\.so, .* only from a bundle that is signed") as caught:
        Session.open(Bundle.open(folder))
    assert caught.value.exit_code == 7
    _signed(folder)  # a signature that nobody checked is none
    assert run(["inspect", str(folder), "--profile"]) == 7


def test_a_library_that_was_swapped_after_the_check_or_is_no_file_of_the_bundle_is_not_loaded(tmp_path: Path) -> None:
    bundle = _signed(write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY))
    (bundle.path / "ops.so").write_bytes(b"NO library")
    with pytest.raises(BundleError, match=r"ops\.so: altered"):
        Session.open(bundle)
    with pytest.raises(BundleError, match="promised but not among the files"):
        Bundle.open(write_real_bundle(tmp_path / "b.edge", PLAIN, libraries=("/lib/evil.so",)))
