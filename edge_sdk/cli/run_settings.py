"""Where `edge-sdk run` takes its settings from: its flags, or a configuration file.

A flag of a key has the key's name, so that flags become settings without a list of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from edge_sdk.cli.options import mqtt_settings
from edge_sdk.core.errors import UsageError
from edge_sdk.messages.schema import check_name, default_device
from edge_sdk.publishing.settings import read_password
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.location import holds_password


def run_settings(options: dict[str, Any]) -> RunSettings:
    """Read the options of `edge-sdk run`, by name, as click gives them.

    Raises:
        UsageError: a value that cannot be used, or a password on the command line, where every process list shows it.
    """
    device = options["device"] or default_device()
    if holds_password(options["source"]):
        raise UsageError(
            "--source: a password on the command line can be read by every user of this machine; "
            "write rtsp://USER@HOST/... and give --source-password-file (an @ in the path is %40)"
        )
    if options["no_tune"] and options["cpu_share"] is not None:
        raise UsageError("--cpu-share is a limit that tuning keeps: it needs tuning, and --no-tune leaves that out")
    check_name("device", device)
    password, url = options["source_password_file"], options["mqtt_url"]
    keys = PipelineSettings.__struct_fields__
    pipeline = PipelineSettings(
        **{key: value for key, value in options.items() if key in keys and value is not None},
        source_password=None if password is None else read_password(password, "the source's password"),
        trusted_keys=options["trust"],
        tune=not options["no_tune"],
    )
    return RunSettings(
        device=device,
        mqtt=None if url is None else mqtt_settings(options, url, site=options["site"], device=device),
        pipelines=(pipeline,),
        duration_s=options["duration"],
    )


_WITH_CONFIG = {"config_file", "check", "duration", "as_json", "quiet", "log_format"}


def config_file(context: click.Context) -> Path | None:
    """Find the configuration file that a run goes by; None where its flags say everything.

    Raises:
        UsageError: both are given, or too little of one.
    """
    options = context.params
    flags = [_flag(p) for p in context.command.params if _is_given(context, p) and p.name not in _WITH_CONFIG]
    given = cast("Path | None", options["config_file"])
    if given is not None:
        if flags:
            raise UsageError(
                f"{flags[0]} and --config: expected one of them; what {given} says, it says alone "
                "(--check, --duration, --json, --log-format and -q go with it)"
            )
        return given
    if flags:
        missing = [name for name, key in (("BUNDLE", "bundle"), ("--source", "source")) if options[key] is None]
        if missing:
            raise UsageError(
                f"{missing[0]} is missing; expected `edge-sdk run BUNDLE --source SOURCE`, or all of it in a file: "
                "`edge-sdk run --config FILE`"
            )
        return None
    from edge_sdk.config import load  # it costs time, and flags need none of it

    if not load.DEFAULT_PATH.exists():
        raise UsageError(
            "nothing to run; expected `edge-sdk run BUNDLE --source SOURCE`, or `edge-sdk run --config FILE` "
            f"(there is no {load.DEFAULT_PATH}; docs/config.md says how to write one)"
        )
    return load.DEFAULT_PATH


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _flag(parameter: click.Parameter) -> str:
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
