"""`edge-sdk run --config` and `--check`: the program as a service runs it, and what it says beforehand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from edge_sdk.cli.root import run
from tests.support.broker import Broker, Subscriber, free_port
from tests.support.bundles import edit_manifest
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system


def _config(folder: Path, pipelines: Mapping[str, Table], **tables: Table) -> Path:
    return write_config(folder, config_text(pipelines, device={"name": "pi", "site": "home"}, **tables))


def _report(*arguments: object, **environment: str) -> tuple[int, str, str]:
    done = edge_sdk("run", "--check", *arguments, COLUMNS="80", **environment)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A private key; its public half lies beside it."""
    assert run(["keygen", str(tmp_path / "k")]) == 0
    return tmp_path / "k"


def test_a_check_says_what_may_be_asked(cell_bundle: Path, video: Path, tmp_path: Path) -> None:
    path = _config(
        tmp_path,
        {"gate": {"source": video, "bundle": cell_bundle}},
        mqtt={"url": "mqtt://127.0.0.1"},
        commands={"allow": ["pause", "snapshot"]},
        home_assistant={},
    )
    code, report, _ = _report("--config", path)
    words = " ".join(report.split())
    assert (code, "commands pause, snapshot home homeassistant/device/edge_v1_home_pi_" in words) == (0, True), report


@pytest.fixture
def signed(cell_bundle: Path, tmp_path: Path, keys: Path) -> Path:
    """A copy of the bundle, signed."""
    bundle = tmp_path / "signed.edge"
    shutil.copytree(cell_bundle, bundle)
    assert run(["sign", str(bundle), "--key", str(keys)]) == 0
    return bundle


@pytest.mark.smoke
def test_a_configured_stream_publishes_to_a_broker_with_its_password(
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
        code, report, errors = _report("--config", path)
        assert (code, errors) == (0, "")
        with Subscriber(broker, username="edge", password="hunter2") as subscriber:
            done = edge_sdk("run", "--config", path, "--duration", 4, "--json")
            received = subscriber.messages("edge/v1/home/pi/result/gate")
    assert done.returncode == 0
    summary = msgspec.json.decode(done.stdout.splitlines()[-1])
    assert summary["ended_by"] == "duration"
    assert summary["budget_ms"] == 5000
    assert len(received) == summary["publisher"]["sent"] > 0
    assert "warning" not in done.stderr
    assert "edge/v1/home/pi/result/gate" in report
    assert "hunter2" not in report + done.stdout + done.stderr


def test_a_check_says_what_will_run(signed: Path, keys: Path, cell_pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    (tmp_path / "pw").chmod(0o644)
    path = _config(
        tmp_path,
        {
            "gate": {"source": cell_pictures, "bundle": signed, "latency_ms": 70},
            "yard": {
                "source": "rtsp://viewer@camera.local/stream",
                "password_file": "pw",
                "bundle": signed,
                "variant": "int8",
                "size_wh": [1280, 720],
                "fps": 15,
            },
        },
        # Nobody listens there, and nobody asks.
        mqtt={"url": f"mqtt://edge@127.0.0.1:{free_port()}", "password_file": "pw"},
        trust={"keys": ["k.pub"]},
    )
    code, report, errors = _report("--config", path)
    assert (code, errors) == (0, "")
    text = " ".join(report.split())
    for expected in (
        f"config {path} device pi broker 127.0.0.1:",
        "as edge with a password; not encrypted MQTT 5, QoS 0 status edge/v1/home/pi/status",
        f"warning {tmp_path / 'pw'}: other users can read the MQTT password (mode 0644); chmod 600",
        "warning the MQTT password crosses the network as it is; mqtts:// encrypts it",
        f"gate source {cell_pictures} (images) bundle {signed}: ",
        "detection, 2 labels; signature verified models int8 budget 70 ms from capture to outbox; the bundle says",
        "yard source rtsp://camera.local/stream (a stream), 1280x720, 15 frames a second, tcp",
        "runs int8, 2 threads (the only one that may run)",
        "results edge/v1/home/pi/result/yard",
        "ready: 2 streams; cameras and broker were not contacted",
    ):
        assert expected in text
    words = [line for line in report.splitlines() if len(line) > 80 and len(line.split()) > 2]
    assert words == []  # only a single long word is longer than the terminal is wide
    assert "hunter2" not in report
    assert "\x1b" not in report


def test_a_check_as_json_lists_all_problems_and_ends_with_the_worst(cell_bundle: Path, tmp_path: Path) -> None:
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
    code, report, errors = _report("--config", path, "--json")
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
    assert [p["exit_code"] for p in gate["problems"]] == [1, 7]
    assert "/dev/video97: no such device" in gate["problems"][0]["text"]
    assert (gate["bundle"], gate["runs"], gate["kind"]) == (None, None, None)
    assert [p["exit_code"] for p in yard["problems"]] == [1, 2]
    assert "none.mp4: no such file or folder" in yard["problems"][0]["text"]
    assert "fp64" in yard["problems"][1]["text"]
    assert errors.count("\n") == 1
    assert "labels.txt" in errors
    assert errors.endswith("(7 more problems)\n")


def test_a_check_of_another_machine_and_of_a_missing_key(
    cell_bundle: Path, cell_pictures: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "other.edge"
    shutil.copytree(cell_bundle, bundle)
    edit_manifest(bundle, machine="aarch64" if os.uname().machine == "x86_64" else "x86_64")
    pipelines: dict[str, Table] = {"gate": {"source": cell_pictures, "bundle": bundle}}
    assert _report("--config", _config(tmp_path, pipelines))[0] == 6
    code, report, _ = _report("--config", _config(tmp_path, pipelines, trust={"keys": ["none.pub"]}))
    assert code == 2
    assert "none.pub: no such key file" in " ".join(report.split())
    assert "built for" not in report  # a bundle is not judged by half of the keys


def test_a_check_of_a_file_that_cannot_be_read(tmp_path: Path, cell_bundle: Path) -> None:
    path = _config(tmp_path, {"gate": {"source": "0", "bundle": cell_bundle, "fsp": 3, "password": "hunter2"}})
    code, report, errors = _report("--config", path)
    assert code == 2
    assert "unknown key fsp; did you mean fps?" in report
    assert "2 problems; nothing was started" in report
    assert "(1 more problem)" in errors
    assert "hunter2" not in report + errors
    quiet = edge_sdk("run", "--check", "--config", path, "-q")
    assert (quiet.returncode, quiet.stdout) == (2, "")
    assert quiet.stderr == errors


def test_a_check_of_flags(cell_bundle: Path, cell_pictures: Path) -> None:
    code, report, errors = _report(cell_bundle, "--source", cell_pictures, "--no-tune")
    assert (code, errors) == (0, "")
    assert "warning    no trusted key is given" in report
    assert "results    lines of JSON on standard output" in report
    assert "(as the bundle promises, without tuning)" in " ".join(report.split())
    code, report, _ = _report(cell_bundle, "--source", "rtsp://a:hunter2@h", "--json")
    assert code == 2
    assert "hunter2" not in report
    assert "--source-password-file" in msgspec.json.decode(report)["found"]["problems"][0]["text"]


def test_a_check_names_what_tuning_remembers(cell_bundle: Path, long_video: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    tuned = edge_sdk("tune", cell_bundle, "--source", long_video, "--camera", "gate", "--json", XDG_STATE_HOME=state)
    assert tuned.returncode in (0, 4), tuned.stderr
    path = _config(tmp_path, {"gate": {"source": long_video, "bundle": cell_bundle}})
    _, report, _ = _report("--config", path, "--json", XDG_STATE_HOME=state)
    assert "as tuned here on 20" in msgspec.json.decode(report)["found"]["pipelines"][0]["reason"]
    _, report, _ = _report("--config", path, "--json")
    assert msgspec.json.decode(report)["found"]["pipelines"][0]["reason"].endswith("the first start tunes")
