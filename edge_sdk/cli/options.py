"""The options that say which broker and who we are there, of every verb that speaks with one.

Numbers of a command line: their ranges, which for keys of a configuration file are that file's.

What `evaluate` and `distill-check` have in common: their options, and how figures and images are shown.

What a verb of the workstation says on a device, where the workstation's packages are not installed.

JSON on standard output, as `--json` asks for.

Paths of a command line.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click
import msgspec

from edge_sdk.core.errors import MissingDependencyError, UsageError, is_out_of_memory, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edge_sdk.publishing.settings import MqttSettings, Secret
    from edge_sdk_tools.datasets.images import Skipped
    from edge_sdk_tools.evaluate.evaluation import Evaluation
    from edge_sdk_tools.evaluate.statistics import Figure, Interval


PASSWORD_VARIABLE = "EDGE_SDK_MQTT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
"""Holds the broker's password where no file is named."""

_Command = TypeVar("_Command", bound=Callable[..., object])
_PATH = click.Path(path_type=Path)
_MQTT_OPTIONS = (
    click.option("--mqtt-password-file", type=_PATH, help=f"Or put it into ${PASSWORD_VARIABLE}."),
    click.option("--mqtt-ca-file", type=_PATH, help="Authorities to trust instead of the system's, PEM."),
    click.option("--mqtt-cert-file", type=_PATH, help="Certificate of this machine, for a broker that wants one, PEM."),
    click.option("--mqtt-key-file", type=_PATH, help="Its private key, PEM.  [default: in --mqtt-cert-file]"),
    click.option("--mqtt-key-password-file", type=_PATH, help="Password of an encrypted private key."),
    click.option("--mqtt-version", type=click.Choice(["5", "3.1.1"]), default="5", show_default=True),
)


def connection_options(command: _Command) -> _Command:
    """Give a command the options of a connection, but for the URL."""
    for option in reversed(_MQTT_OPTIONS):
        command = option(command)
    return command


def mqtt_settings(
    options: dict[str, object],
    url: str,
    warn: Callable[[str], None],
    *,
    prefix: str,
    site: str = "default",
    device: str | None = None,
    qos: Literal[0, 1] = 0,
) -> MqttSettings:
    """What the options say.

    Args:
        options: by name, as click gives them.
        url: of the broker.
        warn: takes one line for people.
        prefix: first levels of every topic.
        site: one level of the topic.
        device: one level of the topic; the host's name by default.
        qos: of results.

    Raises:
        UsageError: a value that cannot be used; a file that cannot be read, or is not what it should be.
    """
    from edge_sdk.publishing.settings import MqttSettings
    from edge_sdk.publishing.tls import check_credentials

    settings = MqttSettings.parse(
        url,
        password=_password(cast("Path | None", options["mqtt_password_file"])),
        ca_file=cast("Path | None", options["mqtt_ca_file"]),
        cert_file=cast("Path | None", options["mqtt_cert_file"]),
        key_file=cast("Path | None", options["mqtt_key_file"]),
        key_password=_key_password(cast("Path | None", options["mqtt_key_password_file"])),
        protocol=cast('Literal["5", "3.1.1"]', options["mqtt_version"]),
        prefix=prefix,
        site=site,
        device=device,
        qos=qos,
    )
    for line in check_credentials(settings):
        warn(f"warning: {line}")
    return settings


def _key_password(path: Path | None) -> Secret | None:
    from edge_sdk.publishing.settings import read_password

    return None if path is None else read_password(path, "the private key's password")


def _password(path: Path | None) -> Secret | None:
    from edge_sdk.publishing.settings import Secret, read_password

    if path is not None:
        return read_password(path)
    from_environment = os.environ.get(PASSWORD_VARIABLE)
    if not from_environment:
        return None
    try:
        from_environment.encode()
    except UnicodeEncodeError:  # not repeated, and not chained: it holds the password
        raise UsageError(f"${PASSWORD_VARIABLE}: the password is not UTF-8") from None
    return Secret(from_environment, f"${PASSWORD_VARIABLE}")


POSITIVE = click.FloatRange(min=0, max=1e9, min_open=True)
"""Seconds, milliseconds, shares; a billion seconds are 30 years."""


def number(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN, which is in every range."""
    if value is not None and math.isnan(value):
        raise UsageError(f"{option.opts[0]} is nan, expected a number above 0")
    return value


def as_in_a_file(key: str) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Refuse what the key of a stream in a configuration file may not be, in the same words."""

    def check(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        if number(context, option, value) is not None:
            from edge_sdk.config.rules import broken_by_flag  # it costs time, and most starts have no such flag

            if wrong := broken_by_flag(key, value):
                raise UsageError(wrong.replace(key, option.opts[0], 1))
        return value

    return check


_NAMED = 3
_WIDTH = 80
_IN_PERCENT = ("top-", "mAP", "mIoU", "detections matched")
_MEASURING_OPTIONS = (
    click.option("--max-images", type=click.IntRange(min=1), help="Use so many at most, evenly spread."),
    click.option("--jobs", type=click.IntRange(min=1, max=256), help="Threads.  [default: one a core]"),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and tables."),
)


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that measures on images: `max_images`, `jobs` and `as_json`."""
    for option in reversed(_MEASURING_OPTIONS):
        command = option(command)
    return command


def show_figures(evaluation: Evaluation, model: str, reference: str) -> None:
    """Warnings, the table against labels, and a line for each figure of agreement.

    Args:
        evaluation: of one model, or of one beside another.
        model: what its column is called.
        reference: what the other's is called.
    """
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
        click.echo(f"{figure.name}: {_with_interval(figure.name, figure.value)}")


def show_images(evaluation: Evaluation) -> None:
    """What the images were read as, and which of them were left out."""
    click.echo(f"read as {evaluation.format}")
    click.echo(f"95 % intervals: {evaluation.resamples} resamplings of the images; shares as Wilson's or wider")
    if evaluation.calibrated:
        click.echo(f"left out because they calibrated a model: {evaluation.calibrated}")
    if evaluation.duplicates:
        click.echo(f"left out because their content is there already: {evaluation.duplicates}")


def points(value: float, low: float, high: float) -> str:
    """A difference in points (hundredths), with its interval."""
    # Zero is added so that none of them is a minus zero.
    value, low, high = (round(100 * x, 1) + 0.0 for x in (value, low, high))
    return f"{value:+.1f} [{low:+.1f} to {high:+.1f}]"


def points_of(difference: Interval) -> str:
    """The same, of a difference of two figures."""
    return points(difference.value, difference.low, difference.high)


def folded(line: str) -> str:
    """A long line, for a terminal of 80 columns."""
    return click.wrap_text(line, width=_WIDTH, subsequent_indent="  ")


def _table(
    figures: Sequence[Figure], model: str, reference: str | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    if reference is None:
        return ("", f"{model} [95 %]"), [(f.name, _with_interval(f.name, f.value)) for f in figures]
    columns = ("", f"{model} [95 %]", reference, "difference [95 %]")
    return columns, [
        (
            f.name,
            _with_interval(f.name, f.value),
            _value(f.name, f.reference.value),
            points_of(f.difference),
        )
        for f in figures
        if f.reference is not None and f.difference is not None
    ]


def _value(name: str, value: float) -> str:
    return f"{value:.1%}" if name.startswith(_IN_PERCENT) else f"{value:.3g}"


def _with_interval(name: str, interval: Interval) -> str:
    value, low, high = (_value(name, x) for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low.rstrip('%')} to {high.rstrip('%')}]"


def warn(line: str) -> None:
    """Say a warning on standard error, in one line whatever the names of files in it are."""
    click.echo(f"edge-sdk: warning: {one_line(line)}", err=True)


def show_skipped(skipped: Sequence[Skipped]) -> None:
    """Name the first few files that could not be used."""
    if not skipped:
        return
    warn(f"files that were skipped: {len(skipped)}")
    for one in skipped[:_NAMED]:
        click.echo(one_line(f"  {one.path}: {one.reason}"), err=True)
    if len(skipped) > _NAMED:
        click.echo(f"  and {len(skipped) - _NAMED} more, all of them in --json", err=True)


@contextlib.contextmanager
def host_tools(verb: str, extra: str = "host") -> Iterator[None]:
    """Import the workstation's packages inside this; a missing one becomes an error that names the remedy.

    Raises:
        MissingDependencyError: exit code 8.
    """
    try:
        yield
    except ImportError as cause:
        if is_out_of_memory(cause):
            raise
        missing = cause.name or "a package"
        raise MissingDependencyError(
            f"`edge-sdk {verb}` runs on the workstation and needs {missing}; in the checkout: "
            f"pip install -c constraints.txt '.[{extra}]'"
        ) from cause


def echo_json(document: object) -> None:
    """Print a document as one line of JSON.

    Names of files may be no text, which JSON cannot hold: each byte that is part of no character becomes U+FFFD.
    """
    try:
        line = msgspec.json.encode(document, enc_hook=_path)
    except UnicodeEncodeError:
        line = msgspec.json.encode(_text_only(msgspec.to_builtins(document, enc_hook=_path, str_keys=True)))
    click.echo(line)


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _text_only(value: Any) -> object:
    if isinstance(value, dict):
        return {_text_only(key): _text_only(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text_only(inner) for inner in value]
    # A byte that is no text is one half of a pair in UTF-16, alone.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


_MAY_LACK = (errno.ENOENT, errno.ENOTDIR)  # what is not there yet is to be made, or refused in the verb's own words


class _Path(click.Path):
    """A path that can be looked at, whether something is there or not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            Path(value).stat()
        except OSError as cause:
            if cause.errno not in _MAY_LACK:
                self.fail(f"{value}: {cause.strerror}", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
"""For every argument and option that is a path: one that is too long or leads in a circle is refused at once."""
