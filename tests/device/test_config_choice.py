"""Whether a run goes by its flags or by a file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from edge_sdk.cli.run import command
from edge_sdk.cli.run_config import config_file, rereading
from edge_sdk.errors import ConfigError, UsageError
from tests.device.configs import STREAM, write_config


def _context(*arguments: str) -> click.Context:
    return command.make_context("run", list(arguments))


def test_flags_say_everything_or_a_file_does(tmp_path: Path) -> None:
    usual = tmp_path / "config.toml"
    usual.touch()
    assert config_file(_context("a.edge", "--source", "0"), usual) is None
    assert config_file(_context("--config", "other.toml"), usual) == Path("other.toml")
    assert config_file(_context("--config", "other.toml", "--check", "--json", "-q", "--duration", "1")) == Path(
        "other.toml"
    )


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--duration", "3", "--json", "-q")])
def test_without_either_the_usual_file_is_taken_where_there_is_one(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    usual = tmp_path / "config.toml"
    with pytest.raises(UsageError) as caught:
        config_file(_context(*arguments), usual)
    assert str(caught.value) == (
        "nothing to run; expected `edge-sdk run BUNDLE --source SOURCE`, or `edge-sdk run --config FILE` "
        f"(there is no {usual}; docs/config.md says how to write one)"
    )
    usual.touch()
    assert config_file(_context(*arguments), usual) == usual


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--source", "0"), "BUNDLE is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("a.edge",), "--source is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("--camera", "camera"), "BUNDLE is missing"),  # given, although it is the default
        (("a.edge", "--config", "c"), "BUNDLE and --config: expected one of them; what c says, it says alone"),
        (("--source", "0", "--config", "c"), "--source and --config: expected one of them"),
        (("--mqtt", "mqtt://h", "--config", "c"), "--mqtt and --config: expected one of them"),
        (("--no-tune", "--config", "c"), "--no-tune and --config: expected one of them"),
        (("--trust", "k", "--config", "c"), "--trust and --config: expected one of them"),
    ],
)
def test_a_mixture_is_refused_even_where_the_usual_file_exists(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    usual = tmp_path / "config.toml"
    usual.touch()
    with pytest.raises(UsageError) as caught:
        config_file(_context(*arguments), usual)
    assert str(caught.value).startswith(expected)


def test_a_file_is_read_again_when_it_is_asked_for_again(tmp_path: Path) -> None:
    path, warnings = write_config(tmp_path), list[str]()
    reread = rereading(path, warnings.append, 3.0)
    assert [stream.camera for stream in reread().pipelines] == ["gate"]
    write_config(
        tmp_path, STREAM + STREAM.replace("gate", "yard").replace('"0"', '"rtsp://a@h"') + 'password_file = "pw"'
    )
    (tmp_path / "pw").write_text("hunter2")
    (tmp_path / "pw").chmod(0o644)
    settings = reread()
    assert [stream.camera for stream in settings.pipelines] == ["gate", "yard"]
    assert (settings.duration_s, settings.waits) == (3.0, True)
    assert len(warnings) == 1
    write_config(tmp_path, "nonsense")
    with pytest.raises(ConfigError, match="not valid TOML"):
        reread()
