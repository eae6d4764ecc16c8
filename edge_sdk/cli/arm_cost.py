"""`edge-sdk arm-cost`: count an inference's instructions on an ARM board's core under emulation."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge_sdk.bundle.target import Target, load_target
from edge_sdk.cli.options import PATH, NumberRange, echo_json, folded
from edge_sdk.core.errors import MissingDependencyError, TargetError, host_tools

if TYPE_CHECKING:
    from edge_sdk_tools.arm_cost.counter import Counts
    from edge_sdk_tools.arm_cost.estimate import Estimate

_VERB = "arm-cost"
_TWO_DIGITS = 10


@click.group("arm-cost", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Count the instructions of an inference on an ARM board that is not here, under emulation."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("setup")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress.")
def _set_up(as_json: bool) -> None:
    """Fetch an emulator and an arm64 Python with ONNX Runtime into the cache; nothing is installed on this machine."""
    with host_tools(f"`edge-sdk {_VERB}`"):
        from edge_sdk_tools.arm_cost.installation import set_up
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.progress import StepProgress
    with interrupted_by_sigterm(), StepProgress(quiet=as_json) as progress:
        counter = set_up(on_progress=progress)
    if as_json:
        said = {"folder": str(counter.folder), "onnxruntime": counter.recipe.onnxruntime}
        echo_json(said)
    else:
        click.echo(f"ready: {counter.folder} counts for ONNX Runtime {counter.recipe.onnxruntime}")


@command.command("count")
@click.argument("model", type=PATH)
@click.option("--target", required=True, help="The board: a name from `edge-sdk targets`, or a path to a .toml.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=NumberRange(min=0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds after which counting is given up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def _count(model: Path, target: str, time_limit_s: float, as_json: bool) -> None:
    """Count one inference of MODEL (an .onnx, an .ort or a bundle) on one thread of a board's core."""
    with host_tools(f"`edge-sdk {_VERB}`"):
        from edge_sdk_tools.arm_cost.counter import find_counter
        from edge_sdk_tools.arm_cost.estimate import estimate
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
    board = load_target(target)
    cpu = _countable(board)
    counter = find_counter()
    if counter is None:
        raise MissingDependencyError("nothing is set up to count with; run `edge-sdk arm-cost setup`")
    with interrupted_by_sigterm(), _model_file(model, board) as file:
        counts = counter.count(file, cpu, time_limit_s=time_limit_s)
    estimated = estimate(counts, board)
    if as_json:
        echo_json({"target": board.name, "counts": counts, "estimate": estimated})
    else:
        _show(counts, estimated, board)


def _countable(board: Target) -> str:
    """Return the board's core; raise TargetError for a core that the emulator does not model."""
    from edge_sdk_tools.arm_cost.counter import CPUS

    if board.cpu not in CPUS:
        core = board.cpu or "no core of its own"
        raise TargetError(f"target {board.name} has {core}; what can be counted is {' or '.join(CPUS)}")
    return board.cpu


@contextlib.contextmanager
def _model_file(model: Path, board: Target) -> Iterator[Path]:
    """Provide the file to count: `model` itself, or a verified copy of the model in a bundle."""
    if not model.is_dir():
        yield model
        return
    from edge_sdk.bundle.bundle import Bundle
    from edge_sdk.inference.runtime import onnxruntime_version

    bundle = Bundle.open(model)
    bundle.check_device(board.machine, onnxruntime_version())
    name = bundle.manifest.variants[0].file
    with tempfile.TemporaryDirectory(prefix="edge-sdk-") as folder:
        copy = Path(folder) / name
        copy.write_bytes(bundle.read(name))
        yield copy


def _show(counts: Counts, estimated: Estimate | None, board: Target) -> None:
    from edge_sdk_tools.progress import print_table

    rows = [(name, f"{count / 1e6:.2f}", f"{count / counts.total:.1%}") for name, count in counts.by_class.items()]
    rows.append(("all", f"{counts.millions:.2f}", "100.0%"))
    title = f"{counts.model} on an emulated {counts.cpu}, ONNX Runtime {counts.onnxruntime}, one thread"
    print_table(title, ("instructions", "million", "share"), [row for row in rows if row[1] != "0.00"])
    if estimated is None:
        click.echo(f"no estimate of time: the clock of {board.name} is not known (clock_mhz = 0)")
        return
    click.echo(
        folded(
            f"estimate for {board.name}: {_ms(estimated.latency_ms)} ms [{_ms(estimated.low_ms)} to "
            f"{_ms(estimated.high_ms)}], at {estimated.clock_mhz} MHz and {estimated.cycles_per_instruction:.2f} "
            "cycles an instruction; not measured on a board"
        )
    )


def _ms(value: float) -> str:
    """Format milliseconds with two significant digits, the precision of an estimate."""
    return f"{value:.0f}" if value >= _TWO_DIGITS else f"{value:.2g}"
