"""`edge-sdk run` says no, each time in one line with its exit code, and `--check` says beforehand what will run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.inference.trial import prove_here
from tests.support.broker import Broker, Subscriber, free_port
from tests.support.bundles import write_bundle
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system


def _config(folder: Path, pipelines: Mapping[str, Table], **tables: Table) -> Path:
    return write_config(folder, config_text(pipelines, device={"name": "pi", "site": "home"}, **tables))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A private key; its public half lies beside it."""
    assert run(["keygen", str(tmp_path / "k")]) == 0
    return tmp_path / "k"


@pytest.fixture
def signed(cell_bundle: Path, tmp_path: Path, keys: Path) -> Path:
    """A copy of the bundle, signed."""
    bundle = tmp_path / "signed.edge"
    shutil.copytree(cell_bundle, bundle)
    assert run(["sign", str(bundle), "--key", str(keys)]) == 0
    return bundle


def test_what_is_wrong_with_the_model_is_said_before_what_is_wrong_with_the_source(
    cell_bundle: Path, tmp_path: Path
) -> None:
    """Though they are looked at side by side."""
    nobody = f"rtsp://127.0.0.1:{free_port()}/live"
    broken = write_bundle(tmp_path / "broken.edge")
    both = edge_sdk("run", broken, "--source", nobody, "--trial-seconds", 0)
    assert both.returncode == 6
    assert both.stderr.splitlines()[-1].startswith(f"edge-sdk: {broken}")
    assert "cannot load it" in both.stderr
    assert prove_here(Bundle.open(cell_bundle))
    source = edge_sdk("run", cell_bundle, "--source", nobody)
    assert (source.returncode, "connection refused" in source.stderr.splitlines()[-1]) == (1, True)


@pytest.mark.parametrize("options", [(), ("--check",), ("--check", "--json"), ("--check", "-q")])
def test_a_file_that_cannot_be_used_is_refused_without_its_secrets(
    cell_bundle: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    stream = {"source": "rtsp://bob:hunter2@h", "bundle": cell_bundle, "fsp": 3, "password": "hunter3"}
    path = _config(tmp_path, {"gate": stream}, mqtt={"url": "mqtt://edge:hunter4@h"})
    done = edge_sdk("run", *options, "--config", path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"edge-sdk: {path}: ")
    assert bool(done.stdout) is (len(options) > 0 and "-q" not in options)
    if done.stdout:
        assert "unknown key fsp; did you mean fps?" in done.stdout
        assert "more problem" in done.stderr
    assert "hunter" not in done.stdout + done.stderr


@pytest.mark.smoke
def test_what_was_checked_publishes_to_a_broker_with_its_password(
    signed: Path, keys: Path, video: Path, tmp_path: Path
) -> None:
    (tmp_path / "mqtt.password").write_text("hunter2\n")
    (tmp_path / "mqtt.password").chmod(0o600)
    with Broker(tmp_path, users={"edge": "hunter2"}) as broker:
        path = _config(
            tmp_path,
            {"gate": {"source": video.name, "bundle": "signed.edge", **AT_EASE}},
            mqtt={"url": f"mqtt://edge@127.0.0.1:{broker.port}", "password_file": "mqtt.password", "qos": 1},
            trust={"keys": ["k.pub"]},
        )
        checked = edge_sdk("run", "--check", "--config", path)
        with Subscriber(broker, username="edge", password="hunter2") as subscriber:
            done = edge_sdk("run", "--config", path, "--json")
            received = subscriber.messages("edge/v1/home/pi/result/gate")
    assert (checked.returncode, checked.stderr, done.returncode) == (0, "", 0)
    assert "edge/v1/home/pi/result/gate" in checked.stdout
    summary = msgspec.json.decode(done.stdout)
    assert (summary["ended_by"], summary["budget_ms"]) == ("end of source", 5000)
    assert len(received) == summary["publisher"]["sent"] > 0
    assert "warning" not in done.stderr
    assert "hunter2" not in checked.stdout + done.stdout + done.stderr


# What a check says; in this process.


class _Check:
    """Runs `edge-sdk run --check`; its reports are 80 columns wide."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """The exit code, the report with its white space made one, what went to standard error."""
        code = run(["run", "--check", *map(str, arguments)])
        self.lines = (said := self._capsys.readouterr()).out.splitlines()
        return code, " ".join(said.out.split()), said.err


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> _Check:
    monkeypatch.setenv("COLUMNS", "80")
    return _Check(capsys)


def test_a_check_says_what_will_run(
    check: _Check, signed: Path, keys: Path, cell_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    (tmp_path / "pw").write_text("hunter2\n")
    (tmp_path / "pw").chmod(0o644)
    yard = {"source": "rtsp://viewer@camera.local/stream", "password_file": "pw", "size_wh": [1280, 720], "fps": 15}
    path = _config(
        tmp_path,
        {"gate": {"source": cell_pictures, "latency_ms": 70}, "yard": {**yard, "variant": "int8"}},
        # Nobody listens there, and nobody asks.
        mqtt={"url": f"mqtt://edge@127.0.0.1:{free_port()}", "password_file": "pw"},
        trust={"keys": ["k.pub"]},
        defaults={"bundle": signed},
        commands={"allow": ["pause", "snapshot"]},
        home_assistant={},
    )
    code, text, errors = check("--config", path)
    assert (code, errors) == (0, "")
    for expected in (
        f"config {path} device pi broker 127.0.0.1:",
        "as edge with a password; not encrypted MQTT 5, QoS 0 status edge/v1/home/pi/status",
        "commands pause, snapshot home homeassistant/device/edge_v1_home_pi_",
        f"warning {tmp_path / 'pw'}: other users can read the MQTT password (mode 0644); chmod 600",
        "warning the MQTT password crosses the network as it is; mqtts:// encrypts it",
        f"gate source {cell_pictures} (images) bundle {signed}: ",
        "detection, 2 labels; signature verified models int8 budget 70 ms from capture to outbox; the bundle says",
        "yard source rtsp://camera.local/stream (a stream), 1280x720, 15 frames a second, tcp",
        "runs int8, 2 threads (the only one that may run)",
        "results edge/v1/home/pi/result/yard",
        "ready: 2 pipelines; cameras and broker were not contacted",
    ):
        assert expected in text
    # Only a single long word is longer than the terminal is wide.
    assert [line for line in check.lines if len(line) > 80 and len(line.split()) > 2] == []
    assert "hunter2" not in text
    assert "\x1b" not in text


def test_a_check_as_json_lists_all_problems_and_ends_with_the_worst(
    check: _Check, cell_bundle: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "altered.edge"
    shutil.copytree(cell_bundle, bundle)
    (bundle / "labels.txt").write_text("x")
    path = _config(
        tmp_path,
        {
            "gate": {"source": "97", "bundle": bundle},
            "yard": {"source": "none.mp4", "bundle": cell_bundle, "variant": "fp64"},
            "door": {"source": "/dev/video97", "bundle": bundle},
        },
        mqtt={"url": "mqtts://edge@h", "password_file": "none", "ca_file": "config.toml"},
    )
    code, report, errors = check("--config", path, "--json")
    document = msgspec.json.decode(report)
    assert (code, document["ok"], document["exit_code"]) == (7, False, 7)
    found = document["found"]
    password, authorities = found["problems"]
    assert (password["exit_code"], authorities["exit_code"]) == (2, 2)
    assert password["text"].startswith(f"mqtt.password_file: {tmp_path / 'none'}: the MQTT password cannot be read: ")
    assert authorities["text"].startswith(f"{path}: not a PEM file of CA certificates: ")
    assert found["warnings"] == [
        "no trusted key is given, so that no signature is checked",
        "gate and door both read /dev/video97, and most cameras serve one reader",
    ]
    gate, yard, door = found["pipelines"]
    assert door["problems"] == gate["problems"]
    assert [problem["exit_code"] for problem in gate["problems"]] == [1, 7]
    assert "/dev/video97: no such device" in gate["problems"][0]["text"]
    assert (gate["bundle"], gate["runs"], gate["kind"]) == (None, None, None)
    assert [problem["exit_code"] for problem in yard["problems"]] == [1, 2]
    assert (errors.count("\n"), "labels.txt" in errors, errors[-18:]) == (1, True, "(7 more problems)\n")


def test_a_check_of_flags(check: _Check, cell_bundle: Path, cell_pictures: Path) -> None:
    code, report, errors = check(cell_bundle, "--source", cell_pictures, "--no-tune")
    assert (code, errors) == (0, "")
    assert "warning no trusted key is given" in report
    assert "results lines of JSON on standard output" in report
    assert "(as the bundle promises, without tuning)" in report
    code, report, _ = check(cell_bundle, "--source", "rtsp://a:hunter2@h", "--json")
    assert (code, "hunter2" in report) == (2, False)
    assert "--source-password-file" in msgspec.json.decode(report)["found"]["problems"][0]["text"]


def test_a_check_names_what_tuning_remembers(
    check: _Check, cell_bundle: Path, long_video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _config(tmp_path, {"gate": {"source": long_video, "bundle": cell_bundle}})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert msgspec.json.decode(check("--config", path, "--json")[1])["found"]["pipelines"][0]["reason"].endswith(
        "the first start tunes"
    )
    tuned = edge_sdk("tune", cell_bundle, "--source", long_video, "--camera", "gate", "--json")
    assert tuned.returncode in (0, 4), tuned.stderr
    report = msgspec.json.decode(check("--config", path, "--json")[1])
    assert "as tuned here on 20" in report["found"]["pipelines"][0]["reason"]
