"""RunSettings: what a daemon runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.publishing import MqttSettings, Secret
from edge_sdk.trial import TRIAL_S


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        bundle: a NAME.edge folder.
        source: see `edge_sdk.camera.open_source`.
        source_password: for a stream's user.
        camera: the stream's name in topics and messages.
        device: this device's name.
        trusted_keys: public key files; when there are any, an unsigned bundle is refused.
        mqtt: the broker; None prints results as lines of JSON to standard output.
        frames: stop after so many results.
        duration_s: stop after so many seconds.
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
    """

    bundle: Path
    source: str
    source_password: Secret | None = None
    camera: str = "camera"
    device: str
    trusted_keys: tuple[Path, ...] = ()
    mqtt: MqttSettings | None = None
    frames: int | None = None
    duration_s: float | None = None
    annotate: Path | None = None
    latency_ms: float | None = None
    variant: str | None = None
    every_frame: bool = False
    run_limit_s: float | None = None
    cpu_share: float | None = None
    tune: bool = True
    trial_s: float = TRIAL_S
    best_effort: bool = False
