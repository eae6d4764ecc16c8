"""`edge-sdk run` says no in one line, `--check` says beforehand what will run, and no secret is anywhere."""

import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.inference.trial import prove_here
from tests.support.broker import Broker, Subscriber, TlsBroker, free_port
from tests.support.bundles import write_bundle
from tests.support.certificates import Authority
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_at_ease, write_config
from tests.support.device import Device
from tests.support.program import edge_sdk
from tests.support.streams import http_server, rtsp_server

pytestmark = pytest.mark.system


def _write_secret(folder: Path, name: str, password: str, mode: int = 0o600) -> str:
    path = folder / name
    path.write_text(password + "\n")
    path.chmod(mode)
    return name


def _config(folder: Path, pipelines: Mapping[str, Table], **tables: Table) -> Path:
    return write_config(folder, config_text(pipelines, device={"name": "pi", "site": "home"}, **tables))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A private key; its public half lies beside it."""
    assert run(["keygen", str(tmp_path / "k")]) == 0
    return tmp_path / "k"


@pytest.fixture
def signed(cell_bundle: Path, tmp_path: Path, keys: Path) -> Path:
    bundle = tmp_path / "signed.edge"
    shutil.copytree(cell_bundle, bundle)
    assert run(["sign", str(bundle), "--key", str(keys)]) == 0
    return bundle


def test_a_wrong_model_is_said_before_a_wrong_source(cell_bundle: Path, tmp_path: Path) -> None:
    """Both are checked side by side."""
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
def test_a_wrong_file_is_refused_without_secrets(cell_bundle: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    gate = {"source": "rtsp://bob:hunter2@h", "bundle": cell_bundle, "fsp": 3, "password": "hunter3"}
    path = _config(tmp_path, {"gate": gate}, mqtt={"url": "mqtt://edge:hunter4@h"})
    done = edge_sdk("run", *options, "--config", path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"edge-sdk: {path}: ")
    assert bool(done.stdout) is (len(options) > 0 and "-q" not in options)
    if done.stdout:
        assert "unknown key fsp; did you mean fps?" in done.stdout
        assert "more problem" in done.stderr
    assert "hunter" not in done.stdout + done.stderr


@pytest.mark.smoke
def test_what_was_checked_publishes_with_its_password(signed: Path, keys: Path, video: Path, tmp_path: Path) -> None:
    _write_secret(tmp_path, "mqtt.password", "hunter2")
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

Check: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs `edge-sdk run --check`: exit code and both outputs."""

    def checked(*arguments: object) -> tuple[int, str, str]:
        return run(["run", "--check", *map(str, arguments)]), *capsys.readouterr()

    return checked


def test_a_check_says_what_will_run(
    check: Check, signed: Path, keys: Path, cell_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    _write_secret(tmp_path, "pw", "hunter2", 0o644)
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
    code, shown, errors = check("--config", path)
    assert (code, errors) == (0, "")
    text = " ".join(shown.split())
    for expected in (
        "as edge with a password; not encrypted MQTT 5, QoS 0 status edge/v1/home/pi/status",
        "commands pause, snapshot home homeassistant/device/edge_v1_home_pi_",
        f"warning {tmp_path / 'pw'}: other users can read the MQTT password (mode 0644); chmod 600",
        "warning the MQTT password crosses the network as it is; mqtts:// encrypts it",
        "detection, 2 labels; signature verified models int8 budget 70 ms from capture to outbox; the bundle says",
        "yard source rtsp://camera.local/stream (a stream), 1280x720, 15 frames a second, tcp",
        "runs int8, 2 threads (the only one that may run)",
        "ready: 2 pipelines; cameras and broker were not contacted",
    ):
        assert expected in text
    assert ("hunter2" in text, "\x1b" in shown) == (False, False)


def test_a_check_as_json_lists_all_problems_the_worst_last(check: Check, cell_bundle: Path, tmp_path: Path) -> None:
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
    assert [problem["exit_code"] for problem in found["problems"]] == [2, 2]
    assert found["problems"][0]["text"].startswith(f"mqtt.password_file: {tmp_path / 'none'}: the MQTT password cannot")
    assert "gate and door both read /dev/video97, and most cameras serve one reader" in found["warnings"]
    codes = [[problem["exit_code"] for problem in pipeline["problems"]] for pipeline in found["pipelines"]]
    assert codes == [[1, 7], [1, 2], [1, 7]]
    assert (errors.count("\n"), "labels.txt" in errors, errors[-18:]) == (1, True, "(7 more problems)\n")


def test_a_check_names_what_tuning_remembers(
    check: Check, cell_bundle: Path, long_video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _config(tmp_path, {"gate": {"source": long_video, "bundle": cell_bundle}})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert 'the first start tunes"' in check("--config", path, "--json")[1]
    tuned = edge_sdk("tune", cell_bundle, "--source", long_video, "--camera", "gate", "--json")
    assert tuned.returncode in (0, 4), tuned.stderr
    assert "as tuned here on 20" in check("--config", path, "--json")[1]


# A device whose cameras, broker and certificate have passwords: none of them is anywhere, also where it is refused.

_DEVICE = {"name": "pi", "site": "home"}
_OF_CAMERA, _OF_BROKER, _OF_KEY, _OF_VIEWER = "k4mera:Pa%ss", "br0ker-Pass", "swordfish-of-the-key", "v1ewer-Pass"
_SECRETS = _OF_CAMERA, "k4mera%3APa%25ss", _OF_BROKER, _OF_KEY  # the camera's also as it goes into a URL


class _Site:
    """A broker by TLS, and the device's certificate, which ends in so many days."""

    def __init__(self, folder: Path, days: float) -> None:
        devices = Authority(folder, "devices")
        issued = devices.issue("home/pi", password=_OF_KEY, days=(-9, days))
        self.broker = TlsBroker(folder, users={"home/pi": _OF_BROKER, "viewer": _OF_VIEWER}, clients_of=devices)
        self.key_file = issued.key_file
        self.mqtt: Table = {
            "url": f"mqtts://home%2Fpi@localhost:{self.broker.tls_port}",
            "password_file": _write_secret(folder, "broker.pw", _OF_BROKER),
            "ca_file": self.broker.authority.file,
            "cert_file": issued.cert_file,
            "key_file": issued.key_file,
            "key_password_file": _write_secret(folder, "key.pw", _OF_KEY),
        }

    def leaks(self, text: bytes) -> list[str]:
        key_lines = [line for line in self.key_file.read_text().splitlines() if "PRIVATE KEY" not in line]
        return [secret for secret in (*_SECRETS, *key_lines) if secret.encode() in text]


def test_they_are_in_no_message_line_process_list_or_file(cell_bundle: Path, tmp_path: Path) -> None:
    """One camera takes its password, one refuses it, one is lost; the broker takes its own, and the certificate."""
    site = _Site(tmp_path, days=9)
    state, told = tmp_path / "state", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(60)
    environment = {"XDG_STATE_HOME": str(state), "EDGE_SDK_DEBUG": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with told, rtsp_server(_OF_CAMERA) as camera, http_server("another") as stranger, http_server(_OF_CAMERA) as lost:
        servers = {"gate": camera, "door": stranger, "hall": lost}
        password = {"password_file": _write_secret(tmp_path, "camera.pw", _OF_CAMERA)}
        pipelines = {name: {"source": server.url(login="bob@"), **password} for name, server in servers.items()}
        config = write_at_ease(tmp_path, cell_bundle, {"yard": HEALTHY, **pipelines}, device=_DEVICE, mqtt=site.mqtt)
        checked = edge_sdk("run", "--check", "--config", config)
        checked_json = edge_sdk("run", "--check", "--json", "--config", config)
        with (
            site.broker,
            Subscriber(site.broker, username="viewer", password=_OF_VIEWER) as subscriber,
            Device(config, environment=environment) as device,
        ):
            device.hear("gate: ", "is open")
            device.hear("hall: ", "is open")
            lost.kill()
            device.hear("hall: ", "connection refused")
            device.hear("door: ", "user or password refused")
            wanted = ("/state", "/telemetry", "/status", "result/yard", "result/gate")
            subscriber.wait_for(
                lambda messages: all(any(m.topic.endswith(topic) for m in messages) for topic in wanted), "all topics"
            )
            for words in (b"user or password refused", b"client_certificate"):
                subscriber.wait_for(
                    lambda messages, words=words: any(words in m.payload for m in messages), "why, in the state"
                )
            shown = b"".join(Path(f"/proc/{device.process.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            while b"READY=1" not in shown:
                shown += told.recv(4096)
            assert device.stop() == 0
        printed = [
            *(checked.stdout, checked.stderr, checked_json.stdout, checked_json.stderr, *device.said, *device.printed),
            *(f"{m.topic} {m.payload.decode()} {m.user_properties}" for m in subscriber.messages()),
            site.broker.log,
        ]
    assert (checked.returncode, checked_json.returncode) == (0, 0)
    assert f"with the certificate in {tmp_path / 'home-pi.pem'}, valid until 2" in " ".join(checked.stdout.split())
    assert len(device.lines_with("this device's certificate ends on")) == 1  # and not by the connection again
    assert list(state.rglob("*.json"))
    files = b"".join(bytes(path) + path.read_bytes() for path in state.rglob("*") if path.is_file())
    everything = "\n".join(printed).encode() + shown + files
    assert b"edge/v1/home/pi/result/gate" in everything
    assert b"READY=1\nSTATUS=4 pipelines: " in everything
    assert site.leaks(everything) == []
    assert b"bob" not in everything


def test_a_wrong_certificate_is_refused_and_an_expired_one_stops_no_service(cell_bundle: Path, tmp_path: Path) -> None:
    site = _Site(tmp_path, days=-1)
    site.broker.stop()
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY}, device=_DEVICE, mqtt=site.mqtt)
    flags = [
        *("run", cell_bundle, "--source", HEALTHY["source"], "--frames", 1, "--site", "home", "--device", "pi"),
        *("--mqtt", f"mqtts://localhost:{site.broker.tls_port}", "--mqtt-ca-file", site.broker.authority.file),
        *("--mqtt-cert-file", tmp_path / "home-pi.pem", "--mqtt-key-file", site.key_file),
        *("--mqtt-key-password-file", tmp_path / "key.pw", "--no-tune"),
    ]

    def assert_refused(expected: str, *commands: list[object]) -> None:
        for command in commands:
            done = edge_sdk(*command)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
            assert expected in done.stderr

    served: list[object] = ["run", "--config", config]
    checked = [*served, "--check", "-q"]
    assert_refused("this device's certificate expired on", checked, flags)
    # A service goes on: what it sees is worth more, and a new certificate is taken as it comes.
    with Device(config) as device:
        device.hear("warning: ", "certificate expired on")
        device.hear("first result")
        assert device.stop() == 0
    (tmp_path / "key.pw").write_text("another")
    assert_refused("its password is wrong, or it is damaged", checked, flags, served)
