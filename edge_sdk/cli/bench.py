"""`edge-sdk bench`: measure what each stage costs, and compare the loop with a bare run of the model."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from edge_sdk.bench import BenchReport, bench
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.options import PATH, echo_json
from edge_sdk.core.clock import Percentiles
from edge_sdk.core.errors import DataError
from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.sources.opencv import MAX_READ_PX, decode

_MOST_IMAGE_BYTES = 1 << 28  # 67,108,864 pixels without compression are 201 MB


@click.command("bench")
@click.argument("bundle", type=PATH)
@click.option("--image", type=PATH, help="The frame to measure with.  [default: a golden image at 1280x720]")
@click.option("--variant", metavar="NAME", help="Another of the bundle's models, such as int8.320x320 or fp32.")
@click.option("--threads", type=click.IntRange(1, 256), help="Threads of the loop's model.  [default: the bundle's]")
@click.option(
    "--spin/--no-spin", default=None, help="Whether these threads spin during a run.  [default: the bundle's]"
)
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, help="How often to measure.")
@click.option("--trust", multiple=True, type=PATH, help="Public key; requires a signature by it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    bundle: Path,
    image: Path | None,
    variant: str | None,
    threads: int | None,
    spin: bool | None,
    rounds: int,
    trust: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Time every stage of the loop with BUNDLE, and a bare InferenceSession.run on the same tensors in turn."""
    opened = Bundle.open(bundle, trust)
    if variant is not None:
        opened = opened.with_primary(variant)
    promised = SessionSettings.of(opened.manifest)
    settings = msgspec.structs.replace(
        promised,
        intra_op_num_threads=threads or promised.intra_op_num_threads,
        allow_spinning=promised.allow_spinning if spin is None else spin,
    )
    report = bench(opened, _read(image) if image else None, rounds, settings=settings)
    if as_json:
        echo_json(report)
    else:
        _show(report)


def _read(path: Path) -> Image:
    try:
        data = read_regular(path, _MOST_IMAGE_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such image") from None
    except OSError as cause:
        raise DataError(f"{path}: image cannot be read: {cause.strerror}") from cause
    image = decode(data)
    if image is None:
        raise DataError(f"{path}: not an image that can be read, or of more than {MAX_READ_PX // 10**6} million pixels")
    return image


def _show(report: BenchReport) -> None:
    width, height = report.image_wh
    how = f"{report.threads} thread{'s' if report.threads > 1 else ''}{' that spin' if report.spinning else ''}"
    click.echo(f"{report.bundle} ({report.variant}, {how}), frame {width}x{height}, {report.rounds} rounds")
    click.echo(f"{report.machine}, ONNX Runtime {report.onnxruntime}\n")
    click.echo(f"{'':<28}{'p50':>9}{'p95':>9}{'p99':>9}  ms")
    for name, stage in report.stages.items():
        _row(name, stage)
    click.echo()
    _row("prepare to publish", report.loop)
    for threads, bare in report.bare.items():
        _row(f"bare run, {threads} thread{'s' if threads > 1 else ''}", bare)
    click.echo(f"\n{report.ratio:.3f} x the best bare run; CPU {report.cpu_percent:.0f} % of one core, back to back;")
    click.echo(f"peak memory {report.peak_rss_mb:.0f} MiB")


def _row(name: str, values: Percentiles) -> None:
    click.echo(f"{name:<28}{values.p50_ms:>9.3f}{values.p95_ms:>9.3f}{values.p99_ms:>9.3f}")
