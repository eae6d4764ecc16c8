"""Tuning and execution providers: what was missing when a board was tuned is not missing for ever."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import SessionError
from edge_sdk.session import available_providers
from edge_sdk.state_folder import state_folder
from edge_sdk.tuning import Limits, Machine, Tuned, Tuning
from edge_sdk.tuning.record import Records, Request
from tests.device.bundles import edit_manifest
from tests.device.measured import CPU, candidate, measurement
from tests.device.numbered import write_video
from tests.device.variant_bundles import write_variants

AZURE, CUDA = "AzureExecutionProvider", "CUDAExecutionProvider"  # the first is in every wheel, the second in none here
LIMITS = Limits(1000)

needs_azure = pytest.mark.skipif(AZURE not in available_providers(), reason="this ONNX Runtime has the CPU alone")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return write_variants(tmp_path / "a.edge")


def _promising(folder: Path, *providers: str) -> Bundle:
    edit_manifest(folder, providers=[*providers, *CPU])
    return Bundle.open(folder)


def _remember(bundle: Bundle, chosen: tuple[str, ...], started: tuple[str, ...]) -> None:
    """FP32 was chosen."""
    best = measurement(candidate("fp32", providers=chosen), 10, quality=1.0)
    tuned = Tuned.of([best], candidate(), LIMITS, metric="agreement", providers=started, fps=30, seconds=9)
    request = Request(digest=bundle.digest, camera="camera", variant=None, limits=LIMITS)
    Records(state_folder() / "tuning").remember(request, Machine.here(), tuned)


def _opened(bundle: Bundle) -> tuple[str, list[str]]:
    """The variant that a run begins with, and what was said."""
    said: list[str] = []
    tuning = Tuning(bundle, LIMITS, camera="camera", variant=None, say=said.append)
    return tuning.open().variant, said


@pytest.mark.parametrize(
    ("provider", "remembered", "news"),
    [
        pytest.param(AZURE, CPU, "can be used", marks=needs_azure, id="installed since"),
        pytest.param(CUDA, (CUDA, *CPU), "cannot be used any more", id="gone"),
    ],
)
def test_a_provider_that_came_or_went_is_noticed(
    folder: Path, provider: str, remembered: tuple[str, ...], news: str
) -> None:
    bundle = _promising(folder, provider)
    _remember(bundle, remembered, remembered)
    variant, [line] = _opened(bundle)
    assert variant == "int8"
    assert line.startswith(f"tuning anew: {provider} {news} since 20")


@needs_azure
def test_a_provider_that_was_passed_over_by_choice_is_no_news(folder: Path) -> None:
    bundle = _promising(folder, AZURE)
    _remember(bundle, CPU, (AZURE, *CPU))
    variant, [line] = _opened(bundle)
    assert variant == "fp32"
    assert line.startswith("tuned at 20")


def test_a_provider_that_is_still_missing_is_no_news(folder: Path) -> None:
    bundle = _promising(folder, CUDA)
    _remember(bundle, CPU, CPU)
    assert _opened(bundle)[0] == "fp32"


@needs_azure
def test_a_chain_that_was_cut_by_choice_is_tried_whole_at_another_rate(folder: Path) -> None:
    bundle = _promising(folder, AZURE)
    _remember(bundle, CPU, (AZURE, *CPU))
    tuning = Tuning(bundle, LIMITS, camera="camera", variant=None, say=lambda _line: None)
    tuner = tuning.supervisor(tuning.open(), 10, on_tuned=lambda _tuned, _remark: None)
    assert tuner.plan.providers == (AZURE, *CPU)


def test_a_candidate_whose_provider_does_not_start_is_not_measured_as_if_it_had(folder: Path) -> None:
    tuning = Tuning(_promising(folder, CUDA), LIMITS, camera="camera", variant=None, say=lambda _line: None)
    with pytest.raises(SessionError, match=f"{CUDA} does not start: not in this ONNX Runtime"):
        tuning.open_beside(candidate("fp32", providers=(CUDA, *CPU)))


def test_shortfalls_are_said_of_each_variant_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None keeps a budget of a nanosecond, so the start goes through all of them."""
    variants = msgspec.json.decode((folder / "manifest.json").read_bytes())["variants"]
    for variant, ms in zip(variants, (10.0, 1.0, 5.0), strict=True):  # int8, int8.8x8, fp32
        variant["host_latency_ms"] = ms
    edit_manifest(folder, providers=[CUDA, *CPU], variants=variants, latency_budget_ms=1e-6)
    video = write_video(tmp_path / "v.avi", range(20), fps=50)
    command = ["run", str(folder), "--source", str(video), "--best-effort", "--frames", "1"]
    assert run(command) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if CUDA in line]
    told = [line.partition(f": {CUDA} was asked for and is not used: not in this ONNX Runtime ")[0] for line in lines]
    assert told == [f"edge-sdk: warning: {variant}" for variant in ("int8", "fp32", "int8.8x8")]
