"""What a daemon runs: RunSettings, and of each of its streams PipelineSettings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.commands import CommandClass
from edge_sdk.errors import CameraError
from edge_sdk.event_rule import EventRule
from edge_sdk.home_assistant import HomeAssistantSettings
from edge_sdk.location import Kind, kind_of
from edge_sdk.publishing import MqttSettings, OutboxSettings, Secret
from edge_sdk.snapshot_settings import SnapshotSettings
from edge_sdk.source_options import SourceOptions
from edge_sdk.trial import TRIAL_S


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: a source, a bundle, and how it runs.

    Attributes:
        camera: the stream's name in topics and messages.
        source: see `edge_sdk.camera.open_source`.
        source_password: for a stream's user.
        source_options: what the source is asked for.
        bundle: a NAME.edge folder.
        trusted_keys: public key files; when there are any, an unsigned bundle is refused.
        allow_older: run a signed bundle although a newer version of it ran here.
        frames: stop after so many results.
        annotate: write an MP4 with the results drawn.
        latency_ms: overrides the bundle's budget.
        run_limit_s: seconds after which a run that does not end is ended; by default ten budgets, 5 at least.
        every_frame: a video file is not played in real time: each of its frames runs, in turn.
        variant: which of the bundle's models runs, by name or file, and no other; by default its first, or what tuning
            finds, and others where that cannot keep the budget.
        cpu_share: the most CPU time over time that tuning may choose, 1 is one core; None without a limit.
        tune: whether what runs best here is found out, and remembered.
        trial_s: how long a bundle that is new on this device may take to load and replay golden, in seconds; 0
            loads it untried.
        best_effort: run although the budget cannot be kept here.
        events: when a class has appeared or disappeared, which is told.
        snapshots: when pictures are published; None: never.
    """

    camera: str = "camera"
    source: str
    source_password: Secret | None = None
    source_options: SourceOptions = SourceOptions()
    bundle: Path
    trusted_keys: tuple[Path, ...] = ()
    allow_older: bool = False
    frames: int | None = None
    annotate: Path | None = None
    latency_ms: float | None = None
    run_limit_s: float | None = None
    every_frame: bool = False
    variant: str | None = None
    cpu_share: float | None = None
    tune: bool = True
    trial_s: float = TRIAL_S
    best_effort: bool = False
    events: tuple[EventRule, ...] = ()
    snapshots: SnapshotSettings | None = None

    @property
    def paced(self) -> bool:
        """Whether frames come at their own pace, or a file is not there yet; False: in turn, when asked for."""
        try:
            kind = kind_of(self.source)
        except CameraError:
            return True
        return not (kind is Kind.IMAGES or (kind is Kind.VIDEO and self.every_frame))

    def same_source(self, other: PipelineSettings) -> bool:
        """Whether an opened source of this one can be read by the other as it is."""
        return _source_of(self) == _source_of(other)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one process runs.

    Attributes:
        device: this device's name.
        mqtt: the broker; None prints results as lines of JSON to standard output.
        outbox: where events wait for the broker.
        commands: classes of commands that are carried out.
        home_assistant: what Home Assistant is told; None: nothing.
        pipelines: its streams, each with a name of its own; at least one.
        duration_s: stop after so many seconds.
        waits: a camera that is not there yet is waited for, as a service must; otherwise it is an error at the start.
    """

    device: str
    mqtt: MqttSettings | None = None
    outbox: OutboxSettings = OutboxSettings()
    commands: tuple[CommandClass, ...] = ()
    home_assistant: HomeAssistantSettings | None = None
    pipelines: tuple[PipelineSettings, ...]
    duration_s: float | None = None
    waits: bool = False


def _source_of(settings: PipelineSettings) -> tuple[object, ...]:
    return settings.source, settings.source_password, settings.source_options, settings.camera, settings.every_frame
