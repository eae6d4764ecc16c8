"""Execution providers: what is asked for and not got is said, with the reason."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event, Thread

import msgspec
import numpy as np
import onnxruntime
import pytest

from edge_sdk.provider_options import CudaOptions, ProviderOptions, TensorrtOptions
from edge_sdk.session import Providers, Session, SessionSettings
from edge_sdk.session.providers import not_started, options_of, standard_error_read
from tests.device import tiny
from tests.device.troubled import open_real_bundle

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


def test_the_cpu_alone_falls_short_of_nothing() -> None:
    assert _session(CPU).providers == Providers((CPU,), (CPU,), {}, {})


def test_the_cpu_comes_last_without_being_asked_for() -> None:
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
        (
            TENSORRT,
            SAID,
            "RuntimeError",
            "its library cannot be loaded: libcublas.so.13: cannot open shared object file: No such file or directory",
        ),
        (CUDA, SAID, "", "it cannot be started: Require cuDNN 9.* and CUDA 13.*"),
        (CUDA, "", "no device", "it cannot be started: no device"),
        (CUDA, "", "", "it cannot be started: no reason was given"),
    ],
)
def test_the_reason_is_found_in_what_the_runtime_says(provider: str, said: str, cause: str, expected: str) -> None:
    assert not_started(provider, said, cause) == expected


def test_what_others_write_to_standard_error_meanwhile_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with standard_error_read(said):
        os.write(2, SAID.encode() + b"the disk is full\nedge-sdk: install onnxruntime-gpu\n")
        os.write(2, b"no end of a line")
    os.write(2, b"\nafter\n")
    assert "".join(said) == SAID
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["the disk is full", "edge-sdk: install onnxruntime-gpu", "no end of a line", "after"]


def test_others_are_passed_on_before_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with standard_error_read([]):
        os.write(2, b"now\n")
        heard = ""
        for _ in range(500):
            heard += capfd.readouterr().err
            if heard:
                break
            time.sleep(0.01)
        assert heard == "now\n"


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
    kept = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": f"{tmp_path}/new/engines",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": f"{tmp_path}/new/engines",
    }
    tensorrt = {"trt_fp16_enable": "1", "trt_int8_enable": "0", **kept}
    cuda = {
        "gpu_mem_limit": str(2**30),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert given == [[(TENSORRT, tensorrt), (CUDA, cuda), (CPU, {})]]


def test_engines_are_kept_in_the_state_folder_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    folder = tmp_path / "state" / "tensorrt"
    assert options_of(TENSORRT, SessionSettings())["trt_engine_cache_path"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert options_of(CPU, SessionSettings()) == {}


def test_without_a_place_for_engines_each_start_builds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "file"))
    assert options_of(TENSORRT, SessionSettings(provider_options=OPTIONS)) == {
        "trt_fp16_enable": "1",
        "trt_int8_enable": "0",
    }
