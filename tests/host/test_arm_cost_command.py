"""`edge-sdk arm-cost` as users call it: the table, the JSON, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from edge_sdk.cli.root import run
from edge_sdk.manifest import RuntimeRange
from edge_sdk.session import onnxruntime_version
from tests.device.bundles import make_manifest, write_bundle
from tests.host.test_arm_cost_setup import kept_counter

SAYS_VERSION = "printf 1.31.1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_SDK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.touch()
    return path


def test_a_table_and_an_estimate_that_says_so(cache: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_counter(cache, SAYS_VERSION)
    assert run(["arm-cost", "count", str(model), "--target", "raspberry_pi_5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "model.onnx on an emulated cortex-a76, ONNX Runtime 1.31.1, one thread" in out
    assert re.search(r"all │ 6\.00 │ 100\.0%", out)
    assert "estimate for raspberry_pi_5: 1.5 ms [1.1 to 2], at 2400 MHz and 0.59 cycles an instruction" in out
    assert out.endswith("not measured on a board")


def test_json(cache: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_counter(cache, SAYS_VERSION)
    assert run(["arm-cost", "count", str(model), "--target", "raspberry_pi_4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["target"] == "raspberry_pi_4"
    assert said["counts"]["total"] == 6_000_000
    assert said["estimate"]["latency_ms"] == pytest.approx(6 * 0.84 / 1.8)
    assert said["estimate"]["worst_error"] == 1.35


def test_a_board_without_a_clock_gets_no_estimate(
    cache: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_counter(cache, SAYS_VERSION)
    text = (Path(__file__).parents[2] / "targets" / "raspberry_pi_5.toml").read_text()
    own = tmp_path / "board.toml"
    own.write_text(re.sub(r"(?m)^clock_mhz.*\n", "", text).replace('"raspberry_pi_5"', '"board"', 1))
    assert run(["arm-cost", "count", str(model), "--target", str(own)]) == 0
    assert "no estimate of time: the clock of board is not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("jetson_orin_nano", "has cortex-a78; what can be counted is cortex-a72 or cortex-a76"),
        ("arm64", "has no core of its own"),
    ],
)
def test_a_board_that_cannot_be_counted(
    cache: Path, model: Path, capsys: pytest.CaptureFixture[str], target: str, expected: str
) -> None:
    assert run(["arm-cost", "count", str(model), "--target", target]) == 2
    assert expected in capsys.readouterr().err


def test_without_a_counter_nothing_is_claimed_and_nothing_fetched(
    cache: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["arm-cost", "count", str(model), "--target", "raspberry_pi_5"]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "edge-sdk: nothing is set up to count with; run `edge-sdk arm-cost setup`\n"
    assert not cache.exists()


@pytest.mark.parametrize(("machine", "code"), [("aarch64", 0), ("x86_64", 6)])
def test_of_a_bundle_its_model_is_counted_if_the_board_could_run_it(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, code: int
) -> None:
    kept_counter(cache, SAYS_VERSION)
    versions = RuntimeRange(minimum="1.20.1", maximum=onnxruntime_version())
    manifest = msgspec.structs.replace(make_manifest(), machine=machine, onnxruntime=versions)
    bundle = write_bundle(tmp_path / "tiny.edge", manifest)
    assert run(["arm-cost", "count", str(bundle), "--target", "raspberry_pi_5", "--json"]) == code
    captured = capsys.readouterr()
    if code:
        assert "built for x86_64" in captured.err
    else:
        assert json.loads(captured.out)["counts"]["model"] == "model.int8.ort"


def test_setting_up_says_where(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counter = kept_counter(cache, SAYS_VERSION)
    assert run(["arm-cost", "setup"]) == 0
    assert capsys.readouterr().out.startswith(f"ready: {counter.folder} counts for ONNX Runtime ")
    assert run(["arm-cost", "setup", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(counter.folder)


def test_without_apt_setting_up_is_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("apt-get") is None
    assert run(["arm-cost", "setup"]) == 8
    assert capsys.readouterr().err == "edge-sdk: apt-get is not installed, expected a Debian or Ubuntu machine\n"


def test_the_verb_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["arm-cost"]) == 0
    assert "count" in capsys.readouterr().out
