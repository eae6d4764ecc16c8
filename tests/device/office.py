"""A desk beside streams, for tests: what it is told, what it says, and what goes out."""

from __future__ import annotations

from typing import Any

import msgspec

from edge_sdk.commands import CLASSES
from edge_sdk.daemon.control import Controls
from edge_sdk.daemon.desk import Desk
from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.reloading import Told
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.publishing import Incoming, MqttSettings
from tests.device.delivery import until
from tests.device.links import FakeLink
from tests.device.results import make_encoder


class Office:
    """A desk with a camera `gate`, whose broker is made by hand."""

    def __init__(self) -> None:
        mqtt = MqttSettings(host="broker", port=1883, device="pi")
        pipelines = (PipelineSettings(camera="gate", source="pattern", bundle="a.edge"),)  # type: ignore[arg-type]
        settings = RunSettings(device="pi", mqtt=mqtt, commands=CLASSES, pipelines=pipelines, waits=True)
        self.said, self.link, self.controls = list[str](), FakeLink(), Controls()
        self.topics = mqtt.topics
        self.now_s = 0.0
        self.outlet = Outlet(settings, self.said.append, lambda: False, lambda: self.link)
        self.encoder = make_encoder(self.outlet.identity)
        self.outlet.stream("gate", self.encoder)
        self.why_not = ""  # a configuration is not taken
        self.desk = Desk(
            settings, self.controls, self.said.append, lambda: self.outlet, self._reload, lambda: self.now_s
        )
        until(lambda: any("online" in line for line in self.said))
        self.said.clear()

    def _reload(self, told: Told) -> None:
        told(self.why_not)

    def look(self, now_s: float) -> None:
        """The desk's next look, at a time."""
        self.now_s = now_s
        self.desk.look()

    def hear(self, command: str, **fields: Any) -> None:
        """One message on the `cmd` topic."""
        self.desk.inbox.receive(Incoming(self.topics.command, msgspec.json.encode({"command": command, **fields})))
        self.desk.look()

    def answers(self, count: int) -> list[dict[str, Any]]:
        """What went to `res`, once there is so much."""
        until(lambda: len(self.link.documents("response")) >= count)
        return self.link.documents("response")
