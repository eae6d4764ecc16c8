"""The `edge-sdk` command: finds the verb, and turns every error into one line and its exit code.

Verbs are imported when they are called, so that `edge-sdk --help` does not pay for OpenCV and ONNX Runtime.

`unhurried` is for a program that runs for months: writing to standard error never waits, and libraries' noise stays out
of it. A pipe takes the place of descriptor 2, and a thread empties it: what nobody reads fills the pipe and is lost
then, while cameras, the broker and a request to stop go on.
"""

from __future__ import annotations

import atexit
import contextlib
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

_VERBS = {
    "import": "Bring in a model from PyTorch, TensorFlow, Darknet or an older ONNX.",
    "evaluate": "Measure a model or a bundle, with intervals.",
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
    "arm-cost": "Count what an inference costs on an ARM board that is not here.",
    "targets": "List the devices that edge-sdk can build for.",
}
_MODULES = {"import": "import_model"}  # where the verb is no name that Python allows

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _LazyVerbs(click.Group):
    """A click group whose commands live in `edge_sdk.cli.VERB` and are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(_VERBS)}"
            raise click.UsageError(f"no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = _MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        with no_collection():
            command = importlib.import_module(f"edge_sdk.cli.{module}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"edge_sdk.cli.{module}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_LazyVerbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(edge_sdk.__version__, prog_name="edge-sdk")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Take a vision model from a workstation to a camera device and keep it running there."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with the exit code that fits."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no text
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 ok, else the error's family; 130 interrupted)."""
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
        # The reader went away (`edge-sdk targets | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: a user never sees a bare traceback
        if os.environ.get("EDGE_SDK_DEBUG"):
            traceback.print_exc()
        if is_out_of_memory(error):
            return _fail_for_memory(error)
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            return _fail(f"standard output cannot be written: {error.strerror}; check the space on its disk", 1)
        if isinstance(error, OSError) and isinstance(error.filename, (str, os.PathLike)):
            # Of a file that went, or changed its rights, while it was used: nobody's fault but the disk's.
            return _fail(f"{os.fspath(error.filename)}: {error.strerror}", 1)
        return _fail(f"{failure_line(error)}; set EDGE_SDK_DEBUG=1 to see where", 1)
    return 0


def _fail_for_memory(error: Exception) -> int:
    # Libraries that got no memory may wait for ever for threads that never started: leave without their clean-up.
    atexit.register(os._exit, 1)
    return _fail(failure_line(error), 1)


def _fail(message: str, exit_code: int) -> int:
    import logging

    from edge_sdk.core.logs import line_for_people

    with contextlib.suppress(OSError):  # the exit code says it all the same
        for line in message.split("\n"):
            click.echo(line_for_people(line, logging.ERROR), err=True)
    return exit_code


_NUMBER = 2
_MOST_BYTES = 1 << 16  # of a line; who writes more than that without an end gets it in parts
_PATIENCE_S = 0.3  # a reader that works has taken everything by then
# libjpeg writes a line for each damaged picture, past OpenCV and its log levels; some cameras damage every one.
_NOISE = (b"Corrupt JPEG data", b"Premature end of JPEG", b"Invalid SOS parameters", b"Warning: unknown JFIF revision")


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Within, whoever writes to standard error waits for nobody; afterwards it is as it was."""
    try:
        real = os.dup(_NUMBER)
    except OSError:  # it is closed, or there are no descriptors
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.dup2(writing, _NUMBER)
    os.close(writing)
    if faulthandler.is_enabled():
        faulthandler.enable(real)  # who crashes does not empty a pipe any more
    # A daemon thread: where nobody reads, it waits for ever.
    carrier = threading.Thread(target=_carry, args=(reading, real), name="edge-stderr", daemon=True)
    carrier.start()
    try:
        yield
    finally:
        os.dup2(real, _NUMBER)  # the pipe's last end for writing goes, but for those of children
        if faulthandler.is_enabled():
            faulthandler.enable(_NUMBER)
        carrier.join(_PATIENCE_S)


def _carry(reading: int, real: int) -> None:
    """Bring whole lines from one to the other, until there are no more."""
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
    with contextlib.suppress(OSError):  # a full disk, or a reader that went: lost, as nobody could be told
        while data:
            data = data[os.write(descriptor, data) :]
