"""What runs a model: custom operators of a package or a signed bundle, and execution providers."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE
from edge_sdk.bundle.signing import sign
from edge_sdk.bundle.target import CudaOptions, ProviderOptions, TensorrtOptions
from edge_sdk.core.errors import BundleError, IncompatibleError, UsageError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import Providers, SessionSettings, options_of
from edge_sdk.inference.session import Session, Stages
from tests.support import models as tiny
from tests.support.bundles import (
    SIDE,
    SIDES,
    coloured,
    edit_manifest,
    open_real_bundle,
    write_real_bundle,
    write_variants,
)
from tests.support.logs import refusal
from tests.support.models import MIX, unmixing
from tests.support.program import Cli

HAS_EXTENSIONS = importlib.util.find_spec("onnxruntime_extensions") is not None
needs_extensions = pytest.mark.skipif(not HAS_EXTENSIONS, reason="onnxruntime-extensions is not installed here")
OPERATOR = "ai.onnx.contrib:Inverse"
PLAIN = tiny.classifier(classes=2)
NO_LIBRARY: dict[str, Any] = {"extra": {"ops.so": b"no library"}, "libraries": ("ops.so",)}
"""Whoever loads it fails with an `IncompatibleError`: every other error shows that it was not loaded."""


def _expected(image: np.ndarray) -> np.ndarray:
    means = image.transpose(2, 0, 1)[::-1].reshape(3, -1).mean(axis=1)  # BGR to RGB
    unmixed = np.linalg.inv(MIX.astype(np.float64)) @ means
    powers = np.exp(unmixed[[0, 2]] / 255)
    return powers / powers.sum()


def _bundle(folder: Path, **more: Any) -> Path:
    """As a builder would write it: its golden output is known without the operator."""
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    golden = [(image, _expected(image).astype(np.float32)[None])]
    model = unmixing(then=coloured())  # so simple that its outputs are known without running it
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


def test_a_missing_package_is_named_with_its_remedy_and_inspect_names_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    assert OPERATOR in cli(0, "inspect", _bundle(tmp_path / "a.edge")).out
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    said = cli(8, "bench", tmp_path / "a.edge").err
    assert re.search(r"Inverse .* pip install 'onnxruntime-extensions>=0\.15'", said)
    Stages.open(Bundle.open(write_real_bundle(tmp_path / "b.edge", PLAIN)))  # does without it


@needs_extensions
def test_a_library_of_operators_runs_from_a_signed_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extensions' own library as a file of the bundle, and the package out of reach."""
    import onnxruntime_extensions

    data = Path(onnxruntime_extensions.get_library_path()).read_bytes()
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    Stages.open(_signed(_bundle(tmp_path / "a.edge", extra={"ops.so": data}, libraries=("ops.so",))))


def test_a_file_that_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    refusal(IncompatibleError, Session.open, _signed(write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY)))


def test_a_library_of_an_unsigned_bundle_is_not_loaded(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY)
    said = refusal(BundleError, Session.open, Bundle.open(folder))
    assert re.search(r"carries ops\.so, .* only from a bundle that is signed", said)
    _signed(folder)  # a signature that nobody checked is none
    cli(7, "inspect", folder, "--profile")


def test_a_library_that_was_swapped_after_the_check_or_is_no_file_of_the_bundle_is_not_loaded(tmp_path: Path) -> None:
    bundle = _signed(write_real_bundle(tmp_path / "a.edge", PLAIN, **NO_LIBRARY))
    (bundle.path / "ops.so").write_bytes(b"NO library")
    assert "ops.so: altered" in refusal(BundleError, Session.open, bundle)
    elsewhere = write_real_bundle(tmp_path / "b.edge", PLAIN, libraries=("/lib/evil.so",))
    assert "promised but not among the files" in refusal(BundleError, Bundle.open, elsewhere)


# Execution providers: what is asked for and not got is said, with the reason.

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


def _session(*providers: str) -> Session:
    return Session(tiny.classifier().SerializeToString(), SessionSettings(providers=providers), "m")


def test_a_provider_that_this_runtime_lacks_is_named_with_its_package() -> None:
    session = _session(TENSORRT, CUDA, CPU)
    found = session.providers
    assert (found.asked, found.got, [*found.why_not]) == ((TENSORRT, CUDA, CPU), (CPU,), [TENSORRT, CUDA])
    for name, line in zip((TENSORRT, CUDA), found.shortfalls(), strict=True):
        assert line.startswith(f"{name} was asked for and is not used: not in this ONNX Runtime ")
        assert line.endswith("it comes with onnxruntime-gpu, in place of onnxruntime")
    assert np.isfinite(session.run(np.zeros((1, 3, 16, 16), np.float32))[0]).all()


def test_the_cpu_falls_short_of_nothing_and_comes_last_without_being_asked_for() -> None:
    assert _session(CPU).providers == Providers((CPU,), (CPU,), {}, {})
    assert _session(CUDA).providers.got == (CPU,)


def test_nodes_that_an_accelerator_leaves_to_the_cpu_are_counted() -> None:
    """Azure's provider is in every wheel and runs no operator of this model."""
    found = _session("AzureExecutionProvider", CPU).providers
    if found.why_not:
        pytest.skip("this ONNX Runtime has the CPU alone")
    assert found.got == ("AzureExecutionProvider", CPU)
    if found.nodes:  # ONNX Runtime tells since 1.24
        count = found.nodes[CPU]
        line = f"{count} of {count} nodes run on the CPU, though AzureExecutionProvider comes first"
        assert (count >= 4, found.shortfalls()) == (True, [line])


def _over_the_cpu(monkeypatch: pytest.MonkeyPatch, look: Callable[[list[Any]], object]) -> None:
    """Sessions that look at the providers they are given, and run on the last of them, the CPU."""
    real = onnxruntime.InferenceSession

    def session(model: bytes, options: object, *, providers: list[Any], **others: object) -> object:
        look(providers)
        return real(model, options, providers=providers[-1:], **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])


@pytest.mark.parametrize("raises", [True, False])
def test_a_provider_that_does_not_start_gives_way(monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    """ONNX Runtime either raises, or goes on without it."""

    def refuse(providers: list[Any]) -> None:
        if raises and len(providers) > 1:
            raise RuntimeError("no device")

    _over_the_cpu(monkeypatch, refuse)
    found = _session(CUDA, CPU).providers
    why = ": no device" if raises else "; ONNX Runtime says why on standard error"
    assert (found.got, found.why_not) == ((CPU,), {CUDA: f"it cannot be started{why}"})


OPTIONS = ProviderOptions(
    TensorrtOptions(trt_fp16_enable=True, trt_int8_enable=False), CudaOptions(gpu_mem_limit=2**30)
)


def test_the_options_of_a_bundle_reach_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what ONNX Runtime would be given, on its way to a real session of the CPU."""
    asked = {"providers": (TENSORRT, CUDA, CPU), "provider_options": OPTIONS}
    bundle, given = open_real_bundle(tmp_path / "a.edge", PLAIN, **asked), list[list[Any]]()
    _over_the_cpu(monkeypatch, given.append)
    settings = SessionSettings.of(bundle.manifest)
    Session.open(bundle, msgspec.structs.replace(settings, cache_folder=str(tmp_path / "new" / "engines")))
    [[(first, tensorrt), (second, cuda), last]] = given
    assert (first, second, last) == (TENSORRT, CUDA, (CPU, {}))
    assert (tensorrt["trt_fp16_enable"], tensorrt["trt_int8_enable"]) == ("1", "0")
    for cache in ("engine", "timing"):
        assert tensorrt[f"trt_{cache}_cache_enable"] == "1"
        assert tensorrt[f"trt_{cache}_cache_path"] == f"{tmp_path}/new/engines"
    defaults = {"arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
    assert cuda == {"gpu_mem_limit": str(2**30), **defaults}


def test_engines_are_kept_where_nobody_else_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    folder = tmp_path / "state" / "tensorrt"
    assert options_of(TENSORRT, SessionSettings())["trt_engine_cache_path"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert options_of(CPU, SessionSettings()) == {}
    openvino = options_of("OpenVINOExecutionProvider", SessionSettings(intra_op_num_threads=2))
    assert openvino == {"device_type": "CPU", "num_of_threads": "2"}
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "file"))
    own = {"trt_fp16_enable": "1", "trt_int8_enable": "0"}
    assert options_of(TENSORRT, SessionSettings(provider_options=OPTIONS)) == own


# Several models in one bundle: the one that is chosen runs, in its size, and replays its own golden inputs.


@pytest.mark.parametrize("name", list(SIDES))
def test_the_chosen_one_is_opened_with_its_size_and_its_golden_inputs(tmp_path: Path, name: str) -> None:
    whole = Bundle.open(write_variants(tmp_path / "a.edge"))
    for spelled in (name, f"model.{name}.ort"):
        bundle = whole.with_primary(spelled)
        names = [variant.name for variant in bundle.manifest.variants]
        assert (names[0], {*names}, bundle.digest) == (name, {*SIDES}, whole.digest)
        session = Session.open(bundle)
        assert session.input_shape == bundle.manifest.input.tensor_shape == (1, 3, SIDES[name], SIDES[name])
        assert session.replay_golden(bundle, Prepare(bundle.manifest.input)) == 0.0


@pytest.mark.parametrize("verb", [["run", "--source", "none.png"], ["bench"]])
def test_an_unknown_name_is_refused(tmp_path: Path, cli: Cli, verb: list[str]) -> None:
    folder = write_variants(tmp_path / "a.edge")
    error = cli(2, *verb, folder, "--variant", "int8.9x9").err.splitlines()[-1]
    assert "has no variant 'int8.9x9', expected one of: int8, int8.8x8, fp32" in error
    assert "has no variant ''" in refusal(UsageError, Bundle.open(folder).with_primary, "")


def _edit(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    document = msgspec.json.decode((folder / "manifest.json").read_bytes())
    edit(document["variants"])
    edit_manifest(folder, variants=document["variants"])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "golden.int8.8x8.npz").unlink(), "golden.int8.8x8.npz is missing"),
        (lambda f: _edit(f, lambda v: v[2]["golden"].update(file="g")), "'g' is promised but not among the files"),
        (lambda f: _edit(f, lambda v: v.append(v[1])), "a variant is there twice"),
        (lambda f: _edit(f, lambda v: v[0].update(size_wh=[8, 8])), "8x8, expected input.size_wh, 16x16"),
        (lambda f: _edit(f, lambda v: v[1].update(operators=["x:Y"])), "'x:Y', which operators does not name"),
    ],
)
def test_a_wrong_variant_refuses_the_bundle(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    folder = write_variants(tmp_path / "a.edge")
    damage(folder)
    assert expected in refusal(BundleError, Bundle.open, folder)
