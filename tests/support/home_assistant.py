"""Home Assistant, real and as a reader of discovery messages."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import jinja2

from tests.support.broker import Broker, free_port, wait_until
from tests.support.requester import Requester

# What Home Assistant makes of a device: entities of its discovery message, their states, what their controls send.

_ONCE = jinja2.Environment(autoescape=False)
_ONCE.filters["to_json"] = json.dumps


class Home:
    """Reads what a requester received."""

    def __init__(self, requester: Requester, prefix: str = "homeassistant") -> None:
        self.requester, self.prefix = requester, prefix

    def discoveries(self, since: int = 0) -> list[Any]:
        """Messages of discovery, decoded; empty text where one was taken away."""
        found = [m for m in self.requester.messages[since:] if m.topic.startswith(f"{self.prefix}/device/")]
        return [json.loads(m.payload) if m.payload else "" for m in found]

    def wait_discovery(self, since: int = 0) -> Any:
        """The latest message, once there is one."""
        wait_until(lambda: bool(self.discoveries(since)), "discovery")
        return self.discoveries(since)[-1]

    def entity(self, component: str) -> dict[str, Any]:
        """One entity's configuration, with what all share."""
        latest = self.discoveries()[-1]
        found: dict[str, Any] = {"availability": latest["availability"], **latest["components"][component]}
        return found

    def state(self, component: str) -> str | None:
        """What an entity shows; None before anything came."""
        entity = self.entity(component)
        return self._value(entity["state_topic"], entity["value_template"])

    def is_available(self, component: str) -> bool:
        """Whether all its availability topics say online."""
        wanted = self.entity(component)["availability"]
        return all(self._value(each["topic"], each["value_template"]) == "online" for each in wanted)

    def wait_state(self, component: str, state: str) -> None:
        """Wait until an entity shows this."""
        wait_until(lambda: self.state(component) == state, f"{component} {state}, is {self.state(component)}")

    def send(self, component: str, value: float | str) -> None:
        """Turn a switch `on` or `off`, set a number, press a button."""
        entity = self.entity(component)
        if entity["platform"] == "number":
            payload = _ONCE.from_string(entity["command_template"]).render(value=value)
        else:
            payload = entity[f"payload_{value}"]
        self.requester.publish(entity["command_topic"], payload)

    def birth(self, payload: str = "online") -> None:
        """What Home Assistant says of itself."""
        self.requester.publish(f"{self.prefix}/status", payload)

    def _value(self, topic: str, template: str) -> str | None:
        came = [m.payload for m in list(self.requester.messages) if m.topic == topic]
        if not came:
            return None
        return _ONCE.from_string(template).render(value_json=json.loads(came[-1]))


# Hass: Home Assistant itself, set up as its owner would through its own API; nothing of it is replaced.

_CONFIG = """homeassistant:
  name: House
  time_zone: UTC
http:
  server_host: 127.0.0.1
  server_port: {port}
api:
config:
logger:
  default: warning
"""
_PATIENCE_S = 30


class Hass:
    """A context in which Home Assistant runs, with its MQTT integration at a broker."""

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
        """Start it, and wait until it answers."""
        with (self._folder / "hass.out").open("ab") as out:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._folder), "--skip-pip"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        wait_until(self._answers, f"Home Assistant; {self._folder / 'hass.out'} has what it said", timeout_s=200)

    def stop(self) -> None:
        """End it as its service manager would: it writes down what it knows."""
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_PATIENCE_S)
            finally:
                process.kill()
                process.wait()

    def states(self) -> dict[str, dict[str, Any]]:
        """Each entity of MQTT devices, by its id, with `state` and `attributes`."""
        ours = self.template("{{ integration_entities('mqtt') | join(',') }}").split(",")
        return {found["entity_id"]: found for found in self._call("/api/states") if found["entity_id"] in ours}

    def state(self, entity: str) -> str | None:
        """What an entity shows; None where there is no such one."""
        found = self.states().get(entity)
        return None if found is None else str(found["state"])

    def wait_state(self, entity: str, *expected: str | None) -> None:
        """Wait until an entity shows one of these."""
        wait_until(lambda: self.state(entity) in expected, f"{entity} {expected}, is {self.state(entity)}")

    def act(self, service: str, entity: str, **data: object) -> None:
        """Call a service such as `switch.turn_off` as its user's click does."""
        self._call(f"/api/services/{service.replace('.', '/')}", {"entity_id": entity, **data})

    def picture(self, entity: str) -> bytes:
        """What an image entity shows; empty where it shows none."""
        try:
            answer = self._call(f"/api/image_proxy/{entity}")
        except urllib.error.HTTPError:
            return b""
        return answer if isinstance(answer, bytes) else b""

    def template(self, text: str) -> str:
        """What a template renders to."""
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
