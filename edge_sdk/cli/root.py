"""The program `edge-sdk`: call a command, and turn every error into one line and an exit code.

Each command is imported when it is called, so that `edge-sdk --help` does not import OpenCV and ONNX Runtime. Within
`unhurried`, writing to standard error never blocks a program that runs for months: a pipe replaces descriptor 2, and a
thread copies its lines to standard error, except for known noise of libraries. If standard error is not read, the pipe
fills up and further lines are lost.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import faulthandler
import importlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

import click

import edge_sdk
from edge_sdk.core.errors import EdgeError, failure_line, is_out_of_memory
from edge_sdk.core.machine import no_collection
from edge_sdk.core.threads import leave

_COMMANDS = {
    "models": "List models that are ready to use, and fetch one.",
    "init": "Describe an ONNX file: write its model.toml and labels.",
    "import": "Bring in a model from PyTorch, TensorFlow, Darknet or an older ONNX.",
    "evaluate": "Measure a model or a bundle, with intervals.",
    "gallery": "Make the gallery by which a model of embeddings names what it sees.",
    "distill-check": "Compare a student with its teacher.",
    "check": "Say whether a device can run a model, what it costs and what is wrong with it.",
    "build": "Turn a model.toml into a bundle for a device.",
    "run": "Run a bundle on a camera and publish what it sees.",
    "watch": "Show live what devices publish to a broker.",
    "inspect": "Show what a bundle is, and where its time goes.",
    "tune": "Find out which model and which settings run best on this machine.",
    "bench": "Time every stage beside a bare run.",
    "demo": "The whole way on this machine: a detector, a video, a broker.",
    "keygen": "Make a key pair for signing bundles.",
    "sign": "Sign a bundle.",
    "runtime": "Build a small ONNX Runtime, OpenCV and numpy for a device.",
    "wheelhouse": "Gather the wheels that a device installs.",
    "arm-cost": "Count what an inference costs on an ARM board that is not here.",
    "targets": "List the devices that edge-sdk can build for.",
}
_SHARED = ("models", "init", "check", "evaluate", "gallery", "targets", "demo", "keygen")
_PLACES = {
    "import": "import_model.command",
    "distill-check": "models.distill_check",
    "sign": "models.sign_bundle",
    "wheelhouse": "runtime.wheelhouse",
} | {name: f"models.{name}" for name in _SHARED}
"""Functions of commands that share a module or whose name is a Python keyword; all others are `NAME.command`."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _LazyCommands(click.Group):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if near := difflib.get_close_matches(cmd_name, _COMMANDS, n=1):
                ctx.fail(f"No such command {cmd_name!r}, did you mean {near[0]!r}?")
            return None
        module, _, name = _PLACES.get(cmd_name, f"{cmd_name.replace('-', '_')}.command").rpartition(".")
        with no_collection():
            command = getattr(importlib.import_module(f"edge_sdk.cli.{module}"), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"edge_sdk.cli.{module}.{name} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_SETTINGS = {"help_option_names": ["-h", "--help"], "color": False if os.environ.get("NO_COLOR") else None}


@click.group(cls=_LazyCommands, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(edge_sdk.__version__, prog_name="edge-sdk")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Take a vision model from a workstation to a camera device and keep it running there."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may not be valid text
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 for success, 130 for an interrupt, else that of the error."""
    try:
        cli.main(args=arguments, prog_name="edge-sdk", standalone_mode=False)
    except EdgeError as error:
        return _fail_for_memory(error) if is_out_of_memory(error) else _fail(str(error), error.exit_code)
    except click.UsageError as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _fail(f"{error.format_message()}{hint}", 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of standard output has closed it, as in `edge-sdk targets | head`; this is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - a user must never see a traceback
        if os.environ.get("EDGE_SDK_DEBUG"):
            traceback.print_exc()
        if is_out_of_memory(error):
            return _fail_for_memory(error)
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            return _fail(f"standard output cannot be written: {error.strerror}; check the space on its disk", 1)
        if isinstance(error, OSError) and isinstance(error.filename, (str, os.PathLike)):
            # A file was removed, or its permissions changed, while it was in use; or no file can have that name.
            is_wrong = error.errno == errno.ENAMETOOLONG
            return _fail(f"{os.fspath(error.filename)}: {error.strerror}", 2 if is_wrong else 1)
        return _fail(f"{failure_line(error)}; set EDGE_SDK_DEBUG=1 to see where", 1)
    return 0


def _fail_for_memory(error: Exception) -> int:
    # After a failed allocation, libraries may wait for ever for threads that never started: exit without clean-up.
    atexit.register(os._exit, 1)
    return _fail(failure_line(error), 1)


def _fail(message: str, exit_code: int) -> int:
    import logging

    from edge_sdk.core.logs import line_for_people

    with contextlib.suppress(OSError):  # the exit code reports the failure even if the line cannot be written
        for line in message.split("\n"):
            click.echo(line_for_people(line, logging.ERROR), err=True)
    return exit_code


_NUMBER = 2
_MOST_BYTES = 1 << 16  # longest line; longer ones are written in parts
_PATIENCE_S = 0.3  # time for the reader to take the rest
# libjpeg writes a line for each damaged picture, whatever OpenCV's log level is; some cameras damage every picture.
_NOISE = (b"Corrupt JPEG data", b"Premature end of JPEG", b"Invalid SOS parameters", b"Warning: unknown JFIF revision")


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Make writing to standard error never block within the context; restore standard error afterwards."""
    try:
        real = os.dup(_NUMBER)
    except OSError:  # standard error is closed, or no descriptor is free
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.dup2(writing, _NUMBER)
    os.close(writing)
    if faulthandler.is_enabled():
        faulthandler.enable(real)  # the thread that copies from the pipe does not run in a crashed process
    # A daemon thread, because it blocks for ever where nobody reads standard error.
    carrier = threading.Thread(target=_carry, args=(reading, real), name="edge-stderr", daemon=True)
    carrier.start()
    try:
        yield
    finally:
        os.dup2(real, _NUMBER)  # closes the pipe's last writing end, except those of child processes
        if faulthandler.is_enabled():
            faulthandler.enable(_NUMBER)
        carrier.join(_PATIENCE_S)


def _carry(reading: int, real: int) -> None:
    """Copy whole lines from `reading` to `real`, without known noise, until the writing end is closed."""
    rest = b""
    with contextlib.suppress(OSError):
        while taken := os.read(reading, _MOST_BYTES):
            *lines, rest = (rest + taken).split(b"\n")
            if len(rest) >= _MOST_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                if not line.startswith(_NOISE):
                    _write(real, line + b"\n")
        _write(real, rest)
    os.close(reading)
    os.close(real)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the disk is full or the reader is gone: the line is lost
        while data:
            data = data[os.write(descriptor, data) :]
