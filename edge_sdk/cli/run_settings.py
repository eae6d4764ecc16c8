"""What the command line of `edge-sdk run` asks for, as the daemon takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from edge_sdk.cli.mqtt_options import mqtt_settings
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.errors import UsageError
from edge_sdk.location import holds_password
from edge_sdk.publishing import MqttSettings, Secret, check_name, default_device, read_password
from edge_sdk.source_options import SourceOptions
from edge_sdk.trial import TRIAL_S


def run_settings(options: dict[str, object], warn: Callable[[str], None]) -> RunSettings:
    """Read the options of `edge-sdk run`.

    Args:
        options: by name, as click gives them.
        warn: takes one line for people.

    Raises:
        UsageError: a value that cannot be used, or a password where others can read it.
    """
    device = cast("str | None", options["device"]) or default_device()
    source = cast("str", options["source"])
    _refuse_password(source)
    if options["no_tune"] and options["cpu_share"] is not None:
        raise UsageError("--cpu-share is a limit that tuning keeps: it needs tuning, and --no-tune leaves that out")
    check_name("device", device)
    pipeline = PipelineSettings(
        bundle=cast("Path", options["bundle"]),
        source=source,
        source_password=_source_password(cast("Path | None", options["source_password_file"])),
        source_options=SourceOptions(tls_fingerprint=cast("str | None", options["source_tls_fingerprint"])),
        camera=cast("str", options["camera"]),
        trusted_keys=cast("tuple[Path, ...]", options["trust"]),
        allow_older=bool(options["allow_older"]),
        frames=cast("int | None", options["frames"]),
        annotate=cast("Path | None", options["annotate"]),
        latency_ms=cast("float | None", options["latency_ms"]),
        variant=cast("str | None", options["variant"]),
        every_frame=bool(options["every_frame"]),
        run_limit_s=cast("float | None", options["run_limit"]),
        cpu_share=cast("float | None", options["cpu_share"]),
        tune=not options["no_tune"],
        trial_s=TRIAL_S if options["trial_seconds"] is None else cast("float", options["trial_seconds"]),
        best_effort=bool(options["best_effort"]),
    )
    return RunSettings(
        device=device,
        mqtt=_mqtt_settings(options, device, warn),
        pipelines=(pipeline,),
        duration_s=cast("float | None", options["duration"]),
    )


def _mqtt_settings(options: dict[str, object], device: str, warn: Callable[[str], None]) -> MqttSettings | None:
    url = cast("str | None", options["mqtt_url"])
    if url is None:
        return None
    return mqtt_settings(
        options,
        url,
        warn,
        prefix=cast("str", options["mqtt_prefix"]),
        site=cast("str", options["site"]),
        device=device,
        qos=cast("Literal[0, 1]", options["mqtt_qos"]),
    )


def _source_password(path: Path | None) -> Secret | None:
    return None if path is None else read_password(path, "the source's password")


def _refuse_password(source: str) -> None:
    """A password on the command line is in every process list."""
    if holds_password(source):
        raise UsageError(
            "--source: a password on the command line can be read by every user of this machine; "
            "write rtsp://USER@HOST/... and give --source-password-file (an @ in the path is %40)"
        )
