"""The options that say which broker and who we are there, of every verb that speaks with one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import click

from edge_sdk.errors import UsageError

if TYPE_CHECKING:
    from edge_sdk.publishing import MqttSettings, Secret

PASSWORD_VARIABLE = "EDGE_SDK_MQTT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
"""Holds the broker's password where no file is named."""

_Command = TypeVar("_Command", bound=Callable[..., object])
_PATH = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--mqtt-password-file", type=_PATH, help=f"Or put it into ${PASSWORD_VARIABLE}."),
    click.option("--mqtt-ca-file", type=_PATH, help="Authorities to trust instead of the system's, PEM."),
    click.option("--mqtt-cert-file", type=_PATH, help="Certificate of this machine, for a broker that wants one, PEM."),
    click.option("--mqtt-key-file", type=_PATH, help="Its private key, PEM.  [default: in --mqtt-cert-file]"),
    click.option("--mqtt-key-password-file", type=_PATH, help="Password of an encrypted private key."),
    click.option("--mqtt-version", type=click.Choice(["5", "3.1.1"]), default="5", show_default=True),
)


def connection_options(command: _Command) -> _Command:
    """Give a command the options of a connection, but for the URL."""
    for option in reversed(_OPTIONS):
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
    from edge_sdk.publishing import MqttSettings, check_credentials

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
    from edge_sdk.publishing import read_password

    return None if path is None else read_password(path, "the private key's password")


def _password(path: Path | None) -> Secret | None:
    from edge_sdk.publishing import Secret, read_password

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
