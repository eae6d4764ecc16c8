"""A device whose cameras and broker have passwords: none of them is anywhere, also where it is refused."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, Subscriber
from tests.support.configs import HEALTHY, Table, write_at_ease
from tests.support.device import Device
from tests.support.program import edge_sdk
from tests.support.streams import StreamServer, http_server, rtsp_server

pytestmark = pytest.mark.system

_DEVICE = {"name": "pi", "site": "home"}
_OF_CAMERA, _OF_BROKER, _OF_VIEWER = "k4mera:Pa%ss", "br0ker-Pass", "v1ewer-Pass"
_SECRETS = tuple(
    form
    for secret in (_OF_CAMERA, _OF_BROKER)
    for form in (secret, secret.replace("%", "%25").replace(":", "%3A"))  # as it goes into a URL
)


def _secret(folder: Path, name: str, password: str) -> Table:
    path = folder / name
    path.write_text(password + "\n")
    path.chmod(0o600)
    return {"password_file": name}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    with Broker(folder, users={"edge": _OF_BROKER, "viewer": _OF_VIEWER}) as running:
        yield running


def _process_shows(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def _files_in(folder: Path) -> bytes:
    return b"".join(bytes(path) + path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("make_server", [rtsp_server, http_server])
def test_it_is_nowhere(
    make_server: Callable[[str], StreamServer], cell_bundle: Path, broker: Broker, tmp_path: Path
) -> None:
    """One camera takes it, one refuses it, one is lost; the broker takes its own."""
    state, told = tmp_path / "state", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(60)
    environment = {"XDG_STATE_HOME": str(state), "EDGE_SDK_DEBUG": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with told, make_server(_OF_CAMERA) as camera, make_server("another") as stranger, make_server(_OF_CAMERA) as lost:
        servers = {"gate": camera, "door": stranger, "hall": lost}
        password = _secret(tmp_path, "camera.pw", _OF_CAMERA)
        streams = {name: {"source": server.url(login="bob@"), **password} for name, server in servers.items()}
        mqtt = {"url": f"mqtt://edge@127.0.0.1:{broker.port}", **_secret(tmp_path, "broker.pw", _OF_BROKER)}
        config = write_at_ease(tmp_path, cell_bundle, {"yard": HEALTHY, **streams}, device=_DEVICE, mqtt=mqtt)
        checked = edge_sdk("run", "--check", "--config", config)
        checked_json = edge_sdk("run", "--check", "--json", "--config", config)
        with (
            Subscriber(broker, username="viewer", password=_OF_VIEWER) as subscriber,
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
            subscriber.wait_for(
                lambda messages: any(b"user or password refused" in m.payload for m in messages), "why, in the state"
            )
            shown = _process_shows(device.process.pid)
            while b"READY=1" not in shown:
                shown += told.recv(4096)
            assert device.stop() == 0
        printed = [
            *(checked.stdout, checked.stderr, checked_json.stdout, checked_json.stderr, *device.said, *device.printed),
            *(message.topic + message.payload.decode() for message in subscriber.messages()),
        ]
    assert (checked.returncode, checked_json.returncode) == (0, 0)
    assert list(state.rglob("*.json"))
    everything = "\n".join(printed).encode() + shown + _files_in(state)
    assert b"edge/v1/home/pi/result/gate" in everything
    assert b"READY=1\nSTATUS=4 streams: " in everything
    assert [secret for secret in _SECRETS if secret.encode() in everything] == []
    assert b"bob" not in everything


def test_a_broker_that_refuses_it(cell_bundle: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, users={"edge": "another"}) as broker:
        mqtt = {"url": f"mqtt://edge@127.0.0.1:{broker.port}", **_secret(tmp_path, "broker.pw", _OF_BROKER)}
        streams = {"gate": HEALTHY, "yard": HEALTHY}
        with Device(write_at_ease(tmp_path, cell_bundle, streams, device=_DEVICE, mqtt=mqtt)) as device:
            device.hear("broker", "refused us", "trying again")
            shown = _process_shows(device.process.pid)
            assert device.stop() == 0
    assert _OF_BROKER.encode() not in "\n".join(device.said).encode() + shown


@pytest.mark.parametrize("option", [(), ("--check",), ("--check", "--json")])
def test_in_the_file_s_own_urls_it_is_refused_without_it(
    option: tuple[str, ...], cell_bundle: Path, tmp_path: Path
) -> None:
    streams = {"yard": HEALTHY, "gate": {"source": f"rtsp://bob:{_OF_CAMERA}@127.0.0.1/live"}}
    mqtt = {"url": f"mqtt://edge:{_OF_BROKER}@127.0.0.1"}
    config = write_at_ease(tmp_path, cell_bundle, streams, device=_DEVICE, mqtt=mqtt)
    refused = edge_sdk("run", *option, "--config", config)
    assert refused.returncode == 2
    assert "gate" in refused.stderr + refused.stdout
    assert "there is a password in the URL" in refused.stderr
    printed = refused.stdout + refused.stderr
    assert [secret for secret in (*_SECRETS, "k4mera", "Pa%ss") if secret in printed] == []
