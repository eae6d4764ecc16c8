"""Where `edge-sdk run` gets its settings from: its flags, or a configuration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from edge_sdk.errors import UsageError

if TYPE_CHECKING:
    from edge_sdk.daemon.settings import RunSettings

_WITH_CONFIG = {"config_file", "check", "duration", "as_json", "quiet"}


def config_file(context: click.Context, default: Path | None = None) -> Path | None:
    """The configuration file that a run goes by; None where its flags say everything.

    Args:
        context: of the command.
        default: where a file is looked for when nothing is given; the device's usual place by default.

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
                "(--check, --duration, --json and -q go with it)"
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
    if default is None:
        from edge_sdk.config import DEFAULT_PATH

        default = DEFAULT_PATH
    if not default.exists():
        raise UsageError(
            "nothing to run; expected `edge-sdk run BUNDLE --source SOURCE`, or `edge-sdk run --config FILE` "
            f"(there is no {default}; docs/config.md says how to write one)"
        )
    return default


def rereading(path: Path, say: Callable[[str], None], duration_s: float | None) -> Callable[[], RunSettings]:
    """What reads a configuration file and its secrets, at the start and at every reload.

    Args:
        path: of the file.
        say: takes warnings.
        duration_s: stop after so many seconds.

    Returns:
        A function that raises ConfigError where anything of them cannot be used.
    """
    from edge_sdk.config import read_config
    from edge_sdk.daemon.configured import run_settings_of

    return lambda: run_settings_of(read_config(path), say, duration_s=duration_s)


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _flag(parameter: click.Parameter) -> str:
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
