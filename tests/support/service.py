"""What the pipelines of one process share, and a command handler beside it."""

import select
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.core.threads import Stop
from edge_sdk.messages.commands import PERMISSIONS
from edge_sdk.messages.schema import Incoming
from edge_sdk.publishing.publisher import Stream
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.service.commands import CommandHandler, CommandInbox, Told
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.process import Gate, Shared
from edge_sdk.service.runner import Controls
from edge_sdk.service.settings import PipelineSettings, RunSettings
from tests.support.bundles import write_graded
from tests.support.connections import WAIT_S, FakeLink, until
from tests.support.logs import SAID
from tests.support.results import make_encoder

# What the pipelines of one process share, for tests: a real bundle, real pipelines, and a fake connection.

PICTURES = "pattern:64x48@50"


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = write_graded(folder / "graded.edge")
        self.said = SAID
        self.stop, self.link = Stop(), FakeLink()
        self.shared = Shared()
        self.outlet = Output(self.run_settings("gate"), self.stop.is_asked, lambda: self.link)
        self._pipelines: list[Pipeline] = []

    def run_settings(self, *cameras: str, device: str = "pi") -> RunSettings:
        broker = MqttSettings(host="broker", port=1883, device=device)
        return RunSettings(device=device, mqtt=broker, pipelines=tuple(map(self.settings, cameras)), waits=True)

    def settings(self, camera: str = "gate", **changes: Any) -> PipelineSettings:
        given = {"source": PICTURES, "bundle": self.bundle, "latency_ms": 5000.0, "tune": False, "trial_s": 0.0}
        return PipelineSettings(camera=camera, **{**given, **changes})

    def pipeline(
        self, settings: PipelineSettings, *, gate: Gate | None = None, before: Pipeline | None = None,
        waits: bool = True,
    ) -> Pipeline:  # fmt: skip
        made = Pipeline(settings, self.outlet, self.shared, self.stop, waits=waits, gate=gate, before=before)
        self._pipelines.append(made)
        made.start()
        return made

    def running(self, settings: PipelineSettings, **more: Any) -> Pipeline:
        made = self.pipeline(settings, **more)
        until(lambda: bool(made.first_result_ns) or made.is_over)
        assert not made.is_over, made.failure
        return made

    def stream(self, camera: str = "gate") -> Stream:
        return self.outlet.stream(camera, make_encoder(self.outlet.identity))

    def state(self) -> dict[str, Any]:
        return [{}, *self.link.documents("state")][-1]

    def close(self) -> None:
        self.stop.ask()
        self.shared.close()
        for pipeline in self._pipelines:
            assert pipeline.join(WAIT_S)
        self.outlet.close(WAIT_S)


def open_cameras() -> list[str]:
    named = (thread.name for thread in threading.enumerate())
    return [name.removeprefix("camera ") for name in named if name.startswith("camera ")]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# A command handler for tests: what it receives, logs and publishes.


class CommandedDevice:
    def __init__(self) -> None:
        mqtt = MqttSettings(host="broker", port=1883, device="pi")
        pipelines = (PipelineSettings(camera="gate", source="pattern", bundle="a.edge"),)  # type: ignore[arg-type]
        settings = RunSettings(device="pi", mqtt=mqtt, commands=PERMISSIONS, pipelines=pipelines, waits=True)
        self.settings = settings
        self.said, self.link, self.controls, self.inbox = SAID, FakeLink(), Controls(), CommandInbox()
        self.topics = mqtt.topics
        self.now_s = 0.0
        self.outlet = Output(settings, lambda: False, lambda: self.link)
        self.encoder = make_encoder(self.outlet.identity)
        self.outlet.stream("gate", self.encoder)
        self.why_not = ""  # a configuration is not taken
        parts = settings, self.controls, self.inbox, self.outlet
        self.handler = CommandHandler(*parts, self._reload, lambda: self.now_s)
        until(lambda: any("online" in line for line in self.said))
        self.said.clear()

    def _reload(self, told: Told) -> None:
        told(self.why_not)

    def look(self, now_s: float) -> None:
        self.now_s = now_s
        self.handler.look()

    def hear(self, command: str, **fields: Any) -> None:
        self.inbox.receive(Incoming(self.topics.of("command"), msgspec.json.encode({"command": command, **fields})))
        self.handler.look()

    def answers(self, count: int) -> list[dict[str, Any]]:
        until(lambda: len(self.link.documents("response")) >= count)
        return self.link.documents("response")


class Manager:
    def __init__(self, address: Path | str) -> None:
        self.address = str(address)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address.replace("@", "\0"))
        self.socket.settimeout(WAIT_S)

    def hear(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")

    def told(self) -> list[str]:
        messages = list[str]()
        while select.select([self.socket], [], [], 0)[0]:
            messages.append("\n".join(self.hear()))
        return messages

    def close(self) -> None:
        self.socket.close()
