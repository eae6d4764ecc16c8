"""A device whose cameras, broker and certificate have passwords: none of them is anywhere, also where it is refused."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, Subscriber, TlsBroker
from tests.support.certificates import Authority
from tests.support.configs import HEALTHY, Table, write_at_ease
from tests.support.device import Device
from tests.support.program import edge_sdk
from tests.support.streams import http_server, rtsp_server

pytestmark = pytest.mark.system

_DEVICE = {"name": "pi", "site": "home"}
_OF_CAMERA, _OF_BROKER, _OF_KEY, _OF_VIEWER = "k4mera:Pa%ss", "br0ker-Pass", "swordfish-of-the-key", "v1ewer-Pass"
_SECRETS = tuple(
    form
    for secret in (_OF_CAMERA, _OF_BROKER, _OF_KEY)
    for form in (secret, secret.replace("%", "%25").replace(":", "%3A"))  # as it goes into a URL
)


def _write_secret(folder: Path, name: str, password: str) -> str:
    path = folder / name
    path.write_text(password + "\n")
    path.chmod(0o600)
    return name


class _Site:
    """A broker by TLS, and the device's certificate, which ends in so many days."""

    def __init__(self, folder: Path, days: float) -> None:
        devices = Authority(folder, "devices")
        issued = devices.issue("home/pi", password=_OF_KEY, days=(-9, days))
        (folder / "broker").mkdir()
        users = {"home/pi": _OF_BROKER, "viewer": _OF_VIEWER}
        self.broker = TlsBroker(folder / "broker", users=users, clients_of=devices)
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
        """What of the secrets is in it."""
        key_lines = [line for line in self.key_file.read_text().splitlines() if "PRIVATE KEY" not in line]
        return [secret for secret in (*_SECRETS, *key_lines) if secret.encode() in text]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[_Site]:
    made = _Site(tmp_path, days=9)
    with made.broker:
        yield made


def _process_shows(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def _files_in(folder: Path) -> bytes:
    return b"".join(bytes(path) + path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_they_are_in_no_message_line_process_list_or_file(cell_bundle: Path, site: _Site, tmp_path: Path) -> None:
    """One camera takes its password, one refuses it, one is lost; the broker takes its own, and the certificate."""
    state, told = tmp_path / "state", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(60)
    environment = {"XDG_STATE_HOME": str(state), "EDGE_SDK_DEBUG": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with told, rtsp_server(_OF_CAMERA) as camera, http_server("another") as stranger, http_server(_OF_CAMERA) as lost:
        servers = {"gate": camera, "door": stranger, "hall": lost}
        password = {"password_file": _write_secret(tmp_path, "camera.pw", _OF_CAMERA)}
        streams = {name: {"source": server.url(login="bob@"), **password} for name, server in servers.items()}
        config = write_at_ease(tmp_path, cell_bundle, {"yard": HEALTHY, **streams}, device=_DEVICE, mqtt=site.mqtt)
        checked = edge_sdk("run", "--check", "--config", config)
        checked_json = edge_sdk("run", "--check", "--json", "--config", config)
        with (
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
            shown = _process_shows(device.process.pid)
            while b"READY=1" not in shown:
                shown += told.recv(4096)
            assert device.stop() == 0
        printed = [
            *(checked.stdout, checked.stderr, checked_json.stdout, checked_json.stderr, *device.said, *device.printed),
            *(f"{m.topic} {m.payload.decode()} {m.user_properties}" for m in subscriber.messages()),
            site.broker.log,
        ]
    assert (checked.returncode, checked_json.returncode) == (0, 0)
    assert len(device.lines_with("this device's certificate ends on")) == 1  # and not by the connection again
    assert list(state.rglob("*.json"))
    everything = "\n".join(printed).encode() + shown + _files_in(state)
    assert b"edge/v1/home/pi/result/gate" in everything
    assert b"READY=1\nSTATUS=4 pipelines: " in everything
    assert site.leaks(everything) == []
    assert b"bob" not in everything


def test_nor_where_the_broker_refuses_one(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, users={"edge": "another"}) as broker:
        secret = _write_secret(tmp_path, "broker.pw", _OF_BROKER)
        mqtt = {"url": f"mqtt://edge@127.0.0.1:{broker.port}", "password_file": secret}
        with Device(write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY}, device=_DEVICE, mqtt=mqtt)) as device:
            device.hear("broker", "refused us", "trying again")
            shown = _process_shows(device.process.pid)
            assert device.stop() == 0
    assert _OF_BROKER.encode() not in "\n".join(device.said).encode() + shown


def test_a_check_says_what_certificate_is_shown_and_for_how_long(
    cell_bundle: Path, site: _Site, tmp_path: Path
) -> None:
    site.key_file.chmod(0o644)
    Authority(tmp_path / "broker", "broker-ca", days=(-1, 20))
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY}, device=_DEVICE, mqtt=site.mqtt)
    checked = edge_sdk("run", "--config", config, "--check")
    text = " ".join(checked.stdout.split())
    assert checked.returncode == 0, checked.stderr
    for expected in (
        "as home/pi with a password; TLS, by authorities of",
        f"with the certificate in {tmp_path / 'home-pi.pem'}, valid until 2",
        "every user can read the private key (mode 0644); chmod 600",
        "this device's certificate ends on",
        "broker-ca.pem: the authority authority broker-ca ends on",
    ):
        assert expected in text
    assert site.leaks((checked.stdout + checked.stderr).encode()) == []


def test_a_certificate_that_is_wrong_is_refused_and_one_that_expired_stops_no_service(
    cell_bundle: Path, tmp_path: Path
) -> None:
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
    shutil.copy(site.broker.authority.issue("other").key_file, site.key_file)
    assert_refused("not the private key of the certificate in", checked)
