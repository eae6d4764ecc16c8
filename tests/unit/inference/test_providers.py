"""Execution providers: what is asked for and not got is said, with the reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

from edge_sdk.bundle.target import CudaOptions, ProviderOptions, TensorrtOptions
from edge_sdk.inference.runtime import Providers, options_of
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from tests.support import models as tiny
from tests.support.bundles import open_real_bundle

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


def _session(*providers: str) -> Session:
    return Session(tiny.classifier().SerializeToString(), SessionSettings(providers=providers), "m")


def test_a_provider_that_this_runtime_lacks_is_named_with_its_package() -> None:
    session = _session(TENSORRT, CUDA, CPU)
    found = session.providers
    assert (found.asked, found.got) == ((TENSORRT, CUDA, CPU), (CPU,))
    assert list(found.why_not) == [TENSORRT, CUDA]
    assert len(found.shortfalls()) == 2
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
        assert found.nodes[CPU] >= 4
        [line] = found.shortfalls()
        count = found.nodes[CPU]
        assert line == f"{count} of {count} nodes run on the CPU, though AzureExecutionProvider comes first"


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (False, "it cannot be started: no device"),
        (True, "it cannot be started; ONNX Runtime says why on standard error"),
    ],
)
def test_a_provider_that_does_not_start_gives_way_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, starts: bool, expected: str
) -> None:
    """ONNX Runtime either raises, or goes on without it."""
    real = onnxruntime.InferenceSession

    def without(model: bytes, options: object, *, providers: list[tuple[str, object]], **others: object) -> object:
        if len(providers) > 1 and not starts:
            raise RuntimeError("no device")
        return real(model, options, providers=providers[-1:], **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", without)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    found = _session(CUDA, CPU).providers
    assert (found.got, found.why_not) == ((CPU,), {CUDA: expected})


OPTIONS = ProviderOptions(
    TensorrtOptions(trt_fp16_enable=True, trt_int8_enable=False), CudaOptions(gpu_mem_limit=2**30)
)


def test_the_options_of_a_bundle_reach_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what ONNX Runtime would be given, on its way to a real session of the CPU."""
    bundle = open_real_bundle(
        tmp_path / "a.edge", tiny.classifier(classes=2), providers=(TENSORRT, CUDA, CPU), provider_options=OPTIONS
    )
    given: list[list[tuple[str, dict[str, str]]]] = []
    real = onnxruntime.InferenceSession

    def note(model: bytes, options: object, *, providers: list[tuple[str, dict[str, str]]], **others: object) -> object:
        given.append(providers)
        return real(model, options, providers=providers[-1:], **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", note)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    settings = SessionSettings.of(bundle.manifest)
    Session.open(bundle, msgspec.structs.replace(settings, cache_folder=str(tmp_path / "new" / "engines")))
    [(first, tensorrt), (second, cuda), last] = given.pop()
    assert (first, second, last) == (TENSORRT, CUDA, (CPU, {}))
    assert (tensorrt["trt_fp16_enable"], tensorrt["trt_int8_enable"]) == ("1", "0")
    for cache in ("engine", "timing"):
        assert tensorrt[f"trt_{cache}_cache_enable"] == "1"
        assert tensorrt[f"trt_{cache}_cache_path"] == f"{tmp_path}/new/engines"
    defaults = {"arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
    assert cuda == {"gpu_mem_limit": str(2**30), **defaults}
    assert given == []


def test_engines_are_kept_where_nobody_else_writes_and_without_a_place_each_start_builds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    folder = tmp_path / "state" / "tensorrt"
    assert options_of(TENSORRT, SessionSettings())["trt_engine_cache_path"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert options_of(CPU, SessionSettings()) == {}
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "file"))
    own = {"trt_fp16_enable": "1", "trt_int8_enable": "0"}
    assert options_of(TENSORRT, SessionSettings(provider_options=OPTIONS)) == own
