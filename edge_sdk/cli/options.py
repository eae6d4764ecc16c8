"""Parts that commands share: options, paths, JSON on standard output, warnings and tables of figures.

`key_option` makes a flag from a key of a configuration file. Every command that connects to a broker uses
`connection_options` and `mqtt_settings`. `evaluate` and `distill-check` share `measuring_options`, `show_figures` and
`show_images`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from edge_sdk.core.errors import UsageError, one_line
from edge_sdk.core.logs import LineFormatter
from edge_sdk.core.toml import key_of
from edge_sdk.publishing.settings import BrokerSettings, MqttSettings, Secret, read_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge_sdk_tools.datasets.images import Skipped
    from edge_sdk_tools.evaluate.evaluation import Evaluation
    from edge_sdk_tools.evaluate.statistics import Figure, Interval


PASSWORD_VARIABLE = "EDGE_SDK_MQTT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
"""Environment variable with the broker's password, read where no password file is given."""

_log = logging.getLogger(__name__)
_Command = TypeVar("_Command", bound=Callable[..., object])
PATH = click.Path(path_type=Path)
_SURROGATE = re.compile("[\ud800-\udfff]")  # Python's stand-ins for bytes that are not valid UTF-8
_NUMBER_LIMIT = 1e9  # largest number of any option, whatever its unit; a billion seconds are 30 years


def key_option(
    flag: str, key: str, table: type[msgspec.Struct], name: str | None = None, **others: Any
) -> Callable[[_Command], _Command]:
    """Make a flag from a key of a configuration file; the key defines type, range, choices, default and help."""
    found = key_of(table, key)

    def check(_context: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is not None:
            from edge_sdk.config.load import broken_by_flag  # takes time to import, and most runs have no such flag

            if wrong := broken_by_flag(table, key, str(value) if isinstance(value, Path) else value):
                raise UsageError(wrong.replace(key, option.opts[0], 1))
        return value

    if found.type is bool:
        others = {"is_flag": True, **others}
    elif found.type is str and found.choices:
        others = {"type": click.Choice([str(choice) for choice in found.choices]), **others}
    else:
        others = {"type": click.Path(path_type=Path) if found.type is Path else found.type, **others}
    words = f"{found.description[:1].upper()}{found.description[1:]}."
    has_default = found.default is not None and found.default is not False and "default" not in others
    default = f"  [default: {found.default:{'g' if found.type is float else ''}}]" if has_default else ""
    return click.option(flag, name or key, callback=check, **{"help": words + default, **others})


def connection_options(command: _Command) -> _Command:
    """Give a command the options of a connection to a broker, except for the URL."""
    password = "Password of the URL's user: the first line of a file."  # noqa: S105 - words
    key_password = "Password of an encrypted private key."  # noqa: S105 - words
    for option in (
        click.option("--mqtt-key-password-file", type=PATH, help=key_password),
        *(
            key_option(f"--mqtt-{flag}", key, BrokerSettings, f"mqtt_{key}")
            for flag, key in (
                ("version", "protocol"),
                ("key-file", "key_file"),
                ("cert-file", "cert_file"),
                ("ca-file", "ca_file"),
            )
        ),
        click.option("--mqtt-password-file", type=PATH, help=f"{password}  [or ${PASSWORD_VARIABLE}]"),
    ):
        command = option(command)
    return command


def mqtt_settings(options: dict[str, Any], url: str, **names: str | None) -> MqttSettings:
    """Return the settings of the connection to a broker from the options of a command; raise UsageError."""
    from edge_sdk.publishing.tls import check_credentials

    keys = {key: options.get(f"mqtt_{key}") for key in BrokerSettings.__struct_fields__}
    key_file = options["mqtt_key_password_file"]
    key_password = None if key_file is None else read_password(key_file, "the private key's password")
    password = _password(options["mqtt_password_file"])
    settings = MqttSettings.parse(url, **{**keys, **names}, password=password, key_password=key_password)
    for line in check_credentials(settings):
        _log.warning(line)
    return settings


def _password(path: Path | None) -> Secret | None:
    if path is not None:
        return read_password(path)
    if not os.environ.get(PASSWORD_VARIABLE):
        return None
    from edge_sdk.config.load import read_variable  # takes time to import

    return read_variable(PASSWORD_VARIABLE, f"${PASSWORD_VARIABLE}", "the password")


class NumberRange(click.FloatRange):
    """A range of numbers that excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; refuse NaN, which click accepts in every range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is no number", param, ctx)
        return number


POSITIVE = NumberRange(min=0, max=_NUMBER_LIMIT, min_open=True)
"""Type of an option that takes a number above 0 and has no key in a configuration file."""


_NAMED = 3
_WIDTH = 80


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that measures on images the options `max_images`, `jobs` and `as_json`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and tables.")(
        command
    )
    command = click.option("--jobs", type=click.IntRange(min=1, max=256), help="Threads.  [default: one a core]")(
        command
    )
    return click.option("--max-images", type=click.IntRange(min=1), help="Use so many at most, evenly spread.")(command)


def show_figures(evaluation: Evaluation, model: str, reference: str) -> None:
    """Show warnings, the table against labels, and a line for each figure of agreement."""
    from edge_sdk_tools.progress import print_table

    for warning in evaluation.warnings:
        warn(warning)
    show_skipped(evaluation.skipped)
    beside = f" beside {evaluation.reference}" if evaluation.reference else ""
    title = f"{evaluation.model}{beside} on {evaluation.images} images of {evaluation.data}"
    if evaluation.quality:
        print_table(title, *_table(evaluation.quality, model, reference if beside else None))
    else:
        click.echo(title)
    for figure in evaluation.agreement:
        click.echo(f"{figure.name}: {_with_interval(figure)}")


def show_images(evaluation: Evaluation) -> None:
    """Show in which format the images were read, and how many were left out."""
    click.echo(f"read as {evaluation.format}")
    click.echo(f"95 % intervals: {evaluation.resamples} resamplings of the images; shares as Wilson's or wider")
    if evaluation.calibrated:
        click.echo(f"left out because they calibrated a model: {evaluation.calibrated}")
    if evaluation.duplicates:
        click.echo(f"left out because their content is there already: {evaluation.duplicates}")


def points(value: float, low: float, high: float) -> str:
    """Format a difference of shares in percentage points, with its interval."""
    # Adding zero turns a minus zero into zero.
    value, low, high = (round(100 * x, 1) + 0.0 for x in (value, low, high))
    return f"{value:+.1f} [{low:+.1f} to {high:+.1f}]"


def points_of(difference: Interval) -> str:
    """Format a difference of two figures in percentage points, with its interval."""
    return points(difference.value, difference.low, difference.high)


def folded(line: str) -> str:
    """Wrap a long line for a terminal of 80 columns."""
    return click.wrap_text(line, width=_WIDTH, subsequent_indent="  ")


def _table(
    figures: Sequence[Figure], model: str, reference: str | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    if reference is None:
        return ("", f"{model} [95 %]"), [(f.name, _with_interval(f)) for f in figures]
    columns = ("", f"{model} [95 %]", reference, "difference [95 %]")
    return columns, [
        (
            f.name,
            _with_interval(f),
            _value(f, f.reference.value) if f.reference else "–",
            points_of(f.difference) if f.difference else "–",
        )
        for f in figures
    ]


def _value(figure: Figure, value: float) -> str:
    return f"{value:.1%}" if figure.unit == "share" else f"{value:.3g}"


def _with_interval(figure: Figure) -> str:
    value, low, high = (_value(figure, x) for x in (figure.value.value, figure.value.low, figure.value.high))
    return f"{value} [{low.rstrip('%')} to {high.rstrip('%')}]"


def warn(line: str) -> None:
    """Print a warning to standard error, in one line whatever file names it contains."""
    click.echo(f"edge-sdk: warning: {one_line(line)}", err=True)


def show_skipped(skipped: Sequence[Skipped]) -> None:
    """Warn how many files could not be used, and name the first few."""
    if not skipped:
        return
    warn(f"files that were skipped: {len(skipped)}")
    for one in skipped[:_NAMED]:
        click.echo(one_line(f"  {one.path}: {one.reason}"), err=True)
    if len(skipped) > _NAMED:
        click.echo(f"  and {len(skipped) - _NAMED} more, all of them in --json", err=True)


class _StandardError(logging.Handler):
    """Prints log lines to standard error; lines are dropped if it is closed or its disk is full."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Print without the handler's lock, so that a stuck reader blocks one thread and not the end of the program."""
        with contextlib.suppress(OSError):
            click.echo(self.format(record), err=True)
        return True


def logging_to_standard_error(*, quiet: bool = False) -> AbstractContextManager[None]:
    """Print what the modules of `edge_sdk` log to standard error; print nothing if `quiet`."""
    return logging_to(logging.NullHandler() if quiet else _StandardError())


@contextlib.contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Send what the modules of `edge_sdk` log to `handler`, and to no other handler."""
    log = logging.getLogger("edge_sdk")
    handler.setFormatter(LineFormatter())
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def echo_json(document: object) -> None:
    """Print a document as one line of JSON; U+FFFD replaces bytes of file names that are not valid UTF-8."""
    try:
        line = msgspec.json.encode(document, enc_hook=_path)
    except UnicodeEncodeError:
        import json  # 3 ms of a start that seldom needs it

        text = json.dumps(msgspec.to_builtins(document, enc_hook=_path, str_keys=True), ensure_ascii=False)
        line = _SURROGATE.sub("\ufffd", text).encode()
    click.echo(line)


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")
