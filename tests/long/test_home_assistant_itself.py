"""A device at Home Assistant itself, which `make home-assistant` installs: it needs a Python of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.broker import Broker, free_port, wait_until
from tests.support.requester import Home, Requester, running, write_config

_PROGRAM = os.environ.get("EDGE_SDK_HASS", "")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not _PROGRAM, reason="Home Assistant needs a Python of its own: `make home-assistant`"),
]

_CAMERAS = {"gate": "pattern:320x240@20", "back yard": "pattern:320x240@5"}
_LINES = '[home_assistant]\nlabels = ["red", "blue"]\n[[events]]\nlabels = ["red"]\n'
_EMPTY = {"button", "image", "event"}  # kinds that show nothing before something was pressed, sent, happened


# Home Assistant itself, set up as its owner would through its own API; nothing of it is replaced.

_CONFIG = """homeassistant: {{name: House, time_zone: UTC}}
http: {{server_host: 127.0.0.1, server_port: {port}}}
api:
config:
logger: {{default: warning}}
"""
_PATIENCE_S = 30


class Hass:
    def __init__(self, program: str, folder: Path, broker: Broker) -> None:
        self._program, self._folder, self._broker = program, folder, broker
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        self._token: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "configuration.yaml").write_text(_CONFIG.format(port=port), encoding="utf-8")

    def __enter__(self) -> Hass:
        try:
            self.start()
            self._become_owner()
            flow = self._call("/api/config/config_entries/flow", {"handler": "mqtt"})
            address = {"broker": self._broker.host, "port": self._broker.port}
            done = self._call(f"/api/config/config_entries/flow/{flow['flow_id']}", address)
            assert done["type"] == "create_entry", done
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with (self._folder / "hass.out").open("ab") as out:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._folder), "--skip-pip"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        wait_until(self._answers, f"Home Assistant; {self._folder / 'hass.out'} has what it said", timeout_s=200)

    def stop(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_PATIENCE_S)
                finally:
                    process.kill()
            self._process = None

    def states(self) -> dict[str, dict[str, Any]]:
        """Each entity of MQTT devices, by its id, with `state` and `attributes`."""
        ours = self.template("{{ integration_entities('mqtt') | join(',') }}").split(",")
        return {found["entity_id"]: found for found in self._call("/api/states") if found["entity_id"] in ours}

    def state(self, entity: str) -> str | None:
        found = self.states().get(entity)
        return None if found is None else str(found["state"])

    def wait_state(self, entity: str, *expected: str | None) -> None:
        wait_until(lambda: self.state(entity) in expected, f"{entity} {expected}, is {self.state(entity)}")

    def act(self, service: str, entity: str, **data: object) -> None:
        """Call a service such as `switch.turn_off` as its user's click does."""
        self._call(f"/api/services/{service.replace('.', '/')}", {"entity_id": entity, **data})

    def template(self, text: str) -> str:
        answer = self._call("/api/template", {"template": text}, is_text=True)
        return bytes(answer).decode()

    def complaints(self) -> list[str]:
        """Lines of its log of warnings and errors that name MQTT."""
        lines = (self._folder / "hass.out").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "mqtt" in line.lower() and (" WARNING " in line or " ERROR " in line)]

    def _become_owner(self) -> None:
        owner = {"name": "owner", "username": "owner", "password": "of-a-test", "language": "en"}
        code = self._call("/api/onboarding/users", {**owner, "client_id": self._url})["auth_code"]
        grant = {"grant_type": "authorization_code", "code": code, "client_id": self._url}
        self._token = self._call("/auth/token", urllib.parse.urlencode(grant))["access_token"]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "hass.out").read_text(encoding="utf-8")[-2000:]
        try:
            return bool(self._call("/api/onboarding"))
        except OSError:
            return False

    def _call(self, path: str, data: object = None, *, is_text: bool = False) -> Any:
        """GET, or POST of a form (text) or of JSON; JSON is decoded."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        body = None
        if isinstance(data, str):
            body = data.encode()
        elif data is not None:
            body = json.dumps(data).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self._url + path, body, headers)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            raw = answer.read()
            is_json = answer.headers.get_content_type() == "application/json" and not is_text
        return json.loads(raw) if is_json else raw


class _House(NamedTuple):
    hass: Hass
    requester: Requester
    config: Path
    broker: Broker
    bundle: Path


@pytest.fixture(scope="module")
def house(cell_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_House]:
    folder = tmp_path_factory.mktemp("house")
    with Broker(folder) as broker, Hass(_PROGRAM, tmp_path_factory.mktemp("hass"), broker) as hass:
        config = write_config(folder, broker, cell_bundle, cameras=_CAMERAS, lines=_LINES)
        with Requester(broker) as requester:
            yield _House(hass, requester, config, broker, cell_bundle)


@pytest.fixture
def device(house: _House) -> Iterator[_House]:
    write_config(house.config.parent, house.broker, house.bundle, cameras=_CAMERAS, lines=_LINES)
    with running(house.config):
        house.hass.wait_state("switch.pi_gate", "on")
        house.hass.wait_state("switch.pi_back_yard", "on")
        yield house
    house.hass.wait_state("switch.pi_gate", "unavailable", None)  # one that was taken away is no more


def test_everything_that_is_told_is_there(device: _House) -> None:
    told = Home(device.requester).wait_discovery()["components"]
    wait_until(lambda: len(device.hass.states()) == len(told), f"{len(told)} entities")
    kinds = {f"{entity.partition('.')[0]}" for entity in device.hass.states()}
    assert kinds == {component["platform"] for component in told.values()}
    device.hass.wait_state("binary_sensor.pi_gate_connected", "on")

    def silent() -> set[str]:
        states = device.hass.states().items()
        return {name.partition(".")[0] for name, found in states if found["state"] in ("unknown", "unavailable")}

    wait_until(lambda: silent() <= _EMPTY, f"states of {silent()}")  # rates and ages come with the first telemetry
    assert 15 < float(str(device.hass.state("sensor.pi_gate_rate"))) < 21
    assert device.hass.template("{{ device_attr(device_id('sensor.pi_gate_rate'), 'manufacturer') }}") == "edge-sdk"
    assert device.hass.complaints() == []


def test_a_camera_is_switched_off_and_on(device: _House) -> None:
    hass, requester = device.hass, device.requester
    hass.act("switch.turn_off", "switch.pi_gate")
    hass.wait_state("switch.pi_gate", "off")
    hass.wait_state("sensor.pi_gate_count", "unavailable")
    before = len(requester.messages)
    requester.wait_results(5, "back yard")
    assert requester.documents("/result/gate", before) == []
    hass.act("switch.turn_on", "switch.pi_gate")
    hass.wait_state("switch.pi_gate", "on")
    requester.wait_results(2)
    wait_until(lambda: str(hass.state("sensor.pi_gate_count")).isdigit(), "the count again")


def test_after_its_restart_all_is_as_it_was(device: _House) -> None:
    hass = device.hass
    before = set(hass.states())
    hass.stop()
    hass.start()
    hass.wait_state("switch.pi_gate", "on")
    wait_until(lambda: str(hass.state("sensor.pi_gate_count")).isdigit(), "the count again")
    assert set(hass.states()) == before
    assert hass.complaints() == []


def test_a_camera_and_a_device_are_taken_away(device: _House) -> None:
    hass, config = device.hass, device.config
    gate_only = {"gate": _CAMERAS["gate"]}
    write_config(config.parent, device.broker, device.bundle, cameras=gate_only, lines=_LINES)
    device.requester.do("reload")
    wait_until(lambda: not any("back_yard" in name for name in hass.states()), "one camera")
    assert hass.state("switch.pi_gate") == "on"
    off = _LINES.replace("[home_assistant]", "[home_assistant]\nenabled = false")
    write_config(config.parent, device.broker, device.bundle, cameras=gate_only, lines=off)
    device.requester.do("reload")
    wait_until(lambda: hass.states() == {}, "no device")
    assert hass.complaints() == []
