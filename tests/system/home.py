"""What Home Assistant makes of a device: entities of its discovery message, their states, what their controls send.

Templates are evaluated by Jinja, as there; nothing is shared with the code under test.
"""

from __future__ import annotations

import json
from typing import Any

import jinja2

from tests.system.broker import wait_until
from tests.system.requester import Requester

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
