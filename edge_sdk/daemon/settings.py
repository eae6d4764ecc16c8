"""RunSettings: what a daemon runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.publishing import MqttSettings, Secret


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
        variant: which of the bundle's models runs, by name or file; its first by default, and others where that cannot
            keep the budget.
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
    best_effort: bool = False
