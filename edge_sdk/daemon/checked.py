"""Checked: what came of looking at a run before it runs.

Nothing secret is in it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from edge_sdk.errors import EdgeError, LabelError, worst_first
from edge_sdk.source_options import SourceOptions


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with a run that is to be.

    Attributes:
        exit_code: that of its family of errors.
        text: one line.
        keeps_from_running: false where a run warns of it, and goes on without what it is about.
    """

    exit_code: int
    text: str
    keeps_from_running: bool = True

    @classmethod
    def of(cls, error: EdgeError) -> Problem:
        """An error, as it would be said."""
        return cls(error.exit_code, str(error), not isinstance(error, LabelError))


class CheckedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A verified bundle; the attributes are the manifest's, but for those below.

    Attributes:
        signature: verified by a trusted key, or not looked at.
        variants: its models, the one that runs by choice first.
        labels: how many.
    """

    name: str
    version: int
    target: str
    task: str
    signature: Literal["verified", "not checked"]
    variants: tuple[str, ...]
    labels: int
    latency_budget_ms: float


class CheckedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One stream.

    Attributes:
        name: of the camera.
        source: without secrets.
        kind: of the source; None where it is none.
        options: what the source is asked for.
        path: of the bundle.
        bundle: what it is; None where it cannot be used.
        budget_ms: capture to outbox; None where nobody says one.
        cpu_share: cores that tuning may use; None without a limit.
        runs: the model and settings that run first; None without a bundle.
        reason: why those; None without a bundle.
        events: labels whose appearing and disappearing is told.
        result_topic, event_topic, snapshot_topic: None without a broker, or where nothing goes there.
        problems: what keeps it from running.
    """

    name: str
    source: str
    kind: Literal["device", "stream", "picamera2", "gstreamer", "pattern", "video", "images"] | None
    options: SourceOptions
    path: str
    bundle: CheckedBundle | None
    budget_ms: float | None
    cpu_share: float | None
    runs: str | None
    reason: str | None
    result_topic: str | None
    event_topic: str | None
    snapshot_topic: str | None
    events: tuple[str, ...]
    problems: tuple[Problem, ...]


class CheckedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The broker; see `MqttSettings`.

    Attributes:
        websockets: whether MQTT is spoken over a websocket.
        has_password: whether there is one.
        cert_until: when this device's certificate ends; None where there is none that can be read.
    """

    address: str
    tls: bool
    websockets: bool
    username: str | None
    has_password: bool
    ca_file: str | None
    cert_file: str | None
    cert_until: datetime | None
    qos: int
    protocol: str
    status_topic: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        device: its name; None where the configuration cannot be read.
        broker: None where results go to standard output.
        outbox: the file in which events wait; None where none do, or there is no place for it.
        commands: classes of commands that are carried out.
        home_assistant: where Home Assistant is told of the device; None where it is not.
        trusted_keys: files.
        pipelines: the streams.
        problems: those of no stream.
        warnings: what keeps nothing from running.
    """

    device: str | None = None
    broker: CheckedBroker | None = None
    outbox: str | None = None
    commands: tuple[str, ...] = ()
    home_assistant: str | None = None
    trusted_keys: tuple[str, ...] = ()
    pipelines: tuple[CheckedPipeline, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of the worst problem; 0 without any."""
        return min((problem.exit_code for problem in self.all_problems()), key=worst_first, default=0)

    def all_problems(self) -> list[Problem]:
        """Those of the streams too."""
        return [*self.problems, *(problem for pipeline in self.pipelines for problem in pipeline.problems)]
