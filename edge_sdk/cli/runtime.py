"""`edge-sdk runtime` and `edge-sdk wheelhouse`: an ONNX Runtime for given bundles, and all wheels of their device."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge_sdk.bundle.target import CPU, PROVIDERS, load_target
from edge_sdk.cli.options import PATH, echo_json, folded
from edge_sdk.core.errors import host_tools

if TYPE_CHECKING:
    from edge_sdk_tools.runtime.build import BuiltRuntime

_VERB = "runtime"
_python = click.option(
    "--python", metavar="VERSION", help="Python on the device, such as 3.13.  [default: the target's]"
)


@click.group(_VERB, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Build small packages for a device: an ONNX Runtime for its bundles, an OpenCV and a numpy."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("build", short_help="Build an ONNX Runtime that has what given bundles need.")
@click.argument("bundles", metavar="BUNDLE...", type=PATH, nargs=-1, required=True)
@click.option("--target", required=True, help="The device: a name from `edge-sdk targets`, or a path to a .toml.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder for the wheel, runtime.json, SBOM and proof.")
@_python
@click.option("--source", type=PATH, help="Folder with a source of ONNX Runtime.  [default: fetched from Debian]")
@click.option("--from-debian", is_flag=True, help="Fetch the sources from Debian, the default.")
@click.option(
    "--cmake", "definitions", multiple=True, metavar="NAME=VALUE", help="A further definition for CMake. Repeatable."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and tables.")
def _build(
    bundles: tuple[Path, ...],
    target: str,
    output: Path,
    python: str | None,
    source: Path | None,
    from_debian: bool,
    definitions: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile, package and prove a wheel of ONNX Runtime with the operators of each BUNDLE and no others.

    A first build takes half an hour on two cores; what is finished is kept in the cache for the next one.
    """
    if from_debian and source is not None:
        raise click.UsageError("--from-debian and --source exclude each other")
    with host_tools(f"`edge-sdk {_VERB}`"):
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.progress import StepProgress
        from edge_sdk_tools.runtime.build import build_runtime
    with interrupted_by_sigterm(), StepProgress(quiet=as_json) as progress:
        built = build_runtime(
            bundles,
            target,
            output,
            python=python,
            source=source,
            definitions=definitions,
            jobs=jobs,
            on_progress=progress,
        )
    if as_json:
        echo_json(built)
    else:
        _show(built)


@command.command("minimal", short_help="Build an OpenCV without FFmpeg and a numpy without OpenBLAS.")
@click.option("--target", required=True, help="The device: a name from `edge-sdk targets`, or a path to a .toml.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder for the wheels and what describes them.")
@_python
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and tables.")
def _minimal(target: str, output: Path, python: str | None, jobs: int | None, as_json: bool) -> None:
    """Compile an OpenCV without FFmpeg and a numpy without OpenBLAS: 28 MB in place of 146.

    For devices whose camera is V4L2's or picamera2: no RTSP, HTTP or video file is read with them.
    """
    with host_tools(f"`edge-sdk {_VERB}`"):
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.progress import StepProgress, print_table
        from edge_sdk_tools.runtime.small import build_small
    with interrupted_by_sigterm(), StepProgress(quiet=as_json) as progress:
        built = build_small(target, output, python=python, jobs=jobs, on_progress=progress)
    if as_json:
        echo_json(built)
        return
    rows = [(one.file, f"{one.unpacked / 1e6:.1f}", f"{one.stock_unpacked / 1e6:.1f}") for one in built.wheels]
    print_table(f"small packages for {target}", ("wheel", "unpacked, MB", "stock"), rows)
    for one in built.compared:
        calls = [
            (name, f"{1e3 * spent:.1f}", f"{1e3 * one.stock_cpu_s[name]:.1f}", f"{one.difference.get(name, 0):.2g}")
            for name, spent in one.cpu_s.items()
        ]
        print_table(f"on an emulated {one.core}", ("call", "CPU ms", "stock", "difference"), calls)
        click.echo(f"resident with both imported: {one.peak_mb:.0f} MB, stock {one.stock_peak_mb:.0f}")
    _show_times(built.took, built.remembered)


def _show_times(took: dict[str, tuple[float, float]], remembered: tuple[str, ...]) -> None:
    for step, (clock_s, cpu_s) in took.items():
        click.echo(f"{step}: {clock_s:.0f} s, {cpu_s:.0f} s of CPU")
    if remembered:
        click.echo(f"finished by an earlier build: {', '.join(remembered)}")


def _show(built: BuiltRuntime) -> None:
    from edge_sdk_tools.progress import print_table

    runtime, proof = built.runtime, built.proof
    sizes = runtime.sizes
    rows = [("wheel", f"{sizes.wheel:,}"), ("unpacked", f"{sizes.unpacked:,}"), ("library", f"{sizes.library:,}")]
    rows += [(f"  {name}", f"{size:,}") for name, size in sizes.sections.items()]
    print_table(f"{runtime.wheel} for {runtime.target}", ("", "bytes"), rows)
    models = [
        (
            f"{one.bundle} {one.variant}, {one.core}",
            f"{one.cost:.2f}",
            f"{one.stock_cost:.2f}",
            f"{one.ratio:.3f}",
            "equal" if one.is_identical else f"{one.difference:.2g}",
            one.stock,
        )
        for one in proof.replays
    ]
    columns = ("model and core", proof.unit, "stock", "ratio", "results", "stock version")
    print_table("one inference, beside the stock wheel", columns, models)
    starts = [
        (f"{name}, {core}", f"{one.import_s:.2f}", f"{one.load_s:.2f}", f"{one.first_s:.2f}", f"{one.peak_mb:.1f}")
        for core in proof.start
        for name, one in (("reduced", proof.start[core]), ("stock", proof.stock_start[core]))
    ]
    marks = ("start", "import, CPU s", "load", "first run", "peak MB")
    print_table("start with the smallest model", marks, starts)
    _show_times(built.took, built.remembered)
    click.echo(folded(f"needs {', '.join(proof.needed)} on the device"))
    wheel = built.output / runtime.wheel
    click.echo(f"proved: {wheel}; install that file: pip install --no-deps PATH")


@click.command("wheelhouse")
@click.argument("bundles", metavar="[BUNDLE...]", type=PATH, nargs=-1)
@click.option("--target", required=True, help="The device: a name from `edge-sdk targets`, or a path to a .toml.")
@_python
@click.option("--wheel", required=True, type=PATH, help="edge-sdk's own wheel, from `make wheel`.")
@click.option(
    "--runtime",
    "replaced",
    type=PATH,
    metavar="WHEEL",
    multiple=True,
    help="A wheel of `edge-sdk runtime build` or `minimal`, in place of the stock one. Repeatable.",
)
@click.option("-c", "--constraint", "constraints", type=PATH, help="pip's constraints, such as constraints.txt.")
@click.option("-o", "--output", type=PATH, required=True, help="New folder for the wheels and their requirements.txt.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def wheelhouse(
    bundles: tuple[Path, ...],
    target: str,
    python: str | None,
    wheel: Path,
    replaced: tuple[Path, ...],
    constraints: Path | None,
    output: Path,
    as_json: bool,
) -> None:
    """Gather the wheels that a device installs without a package index, and check that each BUNDLE runs with them."""
    provider = load_target(target).providers[0]
    with host_tools("`edge-sdk wheelhouse`"):
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.jobs.runner import one_step
        from edge_sdk_tools.progress import StepProgress, print_table
        from edge_sdk_tools.runtime.wheelhouse import REQUIREMENTS, make_wheelhouse
    with interrupted_by_sigterm(), StepProgress(quiet=as_json) as progress, one_step(progress, "gather wheels"):
        gathered = make_wheelhouse(
            bundles, target, wheel, output, python=python, replaced=replaced, constraints=constraints
        )
    if provider != CPU:
        line = f"target {target} asks for {provider}, which no wheel here has: models run on the CPU there until"
        click.echo(folded(f"{line} {PROVIDERS[provider]} takes the place of onnxruntime"), err=True)
    if as_json:
        echo_json(gathered)
        return
    sizes = [(one.file, one.unpacked, one.left_out) for one in gathered]
    sizes.append(("all", sum(one.unpacked for one in gathered), sum(one.left_out for one in gathered)))
    rows = [(name, f"{unpacked / 1e6:.1f}", f"{left_out / 1e6:.1f}") for name, unpacked, left_out in sizes]
    print_table(f"wheels for {target}", ("wheel", "unpacked, MB", "left out, MB"), rows)
    click.echo("on the device, in the folder that holds this one:")
    folder = shlex.quote(f"./{output.name}")
    click.echo(f"pip install --no-index --require-hashes --find-links {folder} -r {folder}/{REQUIREMENTS}")
