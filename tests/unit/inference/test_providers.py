"""Execution providers: what is asked for and not got is said, with the reason."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread

import msgspec
import numpy as np
import onnxruntime
import pytest

from edge_sdk.bundle.target import CudaOptions, ProviderOptions, TensorrtOptions
from edge_sdk.inference.runtime import Providers, not_started, options_of, standard_error_read
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from tests.support import models as tiny
from tests.support.bundles import open_real_bundle
from tests.support.connections import until

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
# What onnxruntime-gpu 1.31.1 writes to standard error on a machine without CUDA, folders shortened.
SAID = (
    "[E:onnxruntime:Default, provider_bridge_ort.cc:2430 operator()] provider_bridge_ort.cc:2043 Get() "
    "[ONNXRuntimeError] : 1 : FAIL : Failed to load library /capi/libonnxruntime_providers_tensorrt.so with error: "
    "libcublas.so.13: cannot open shared object file: No such file or directory\n"
    "[W:onnxruntime:Default, onnxruntime_pybind_state.cc:1295 CreateExecutionProviderFactoryInstance] Failed to create "
    "CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*. Please install all dependencies\n"
)


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
    ("provider", "said", "cause", "expected"),
    [
        (TENSORRT, SAID, "RuntimeError", "its library cannot be loaded: libcublas.so.13: cannot open shared object"),
        (CUDA, SAID, "", "it cannot be started: Require cuDNN 9.* and CUDA 13.*"),
        (CUDA, "", "no device", "it cannot be started: no device"),
        (CUDA, "", "", "it cannot be started: no reason was given"),
    ],
)
def test_the_reason_is_found_in_what_the_runtime_says(provider: str, said: str, cause: str, expected: str) -> None:
    assert not_started(provider, said, cause).startswith(expected)


def test_what_others_write_to_standard_error_meanwhile_is_passed_on_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    said, heard = list[str](), list[str]()

    def is_heard() -> bool:
        heard.append(capfd.readouterr().err)
        return any(heard)

    with standard_error_read(said):
        os.write(2, SAID.encode() + b"edge-sdk: install onnxruntime-gpu\n")
        until(is_heard)
        os.write(2, b"no end of a line")
    os.write(2, b"\nafter\n")
    assert "".join(said) == SAID
    lines = "".join([*heard, capfd.readouterr().err]).splitlines()
    assert lines == ["edge-sdk: install onnxruntime-gpu", "no end of a line", "after"]


def test_two_that_listen_at_once_leave_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    """One of them used to put back the other's file."""
    before = os.fstat(2)
    is_inside, may_leave = Event(), Event()

    def listen_first() -> None:
        with standard_error_read([]):
            is_inside.set()
            may_leave.wait(10)

    def listen_second() -> None:
        is_inside.wait(10)
        may_leave.set()
        with standard_error_read([]):
            first.join(10)

    first, second = Thread(target=listen_first), Thread(target=listen_second)
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join(20)
    assert os.path.samestat(os.fstat(2), before)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


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
