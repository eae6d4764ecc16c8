"""`edge-sdk bench`: what each stage costs, beside a bare run."""

from __future__ import annotations

from pathlib import Path

import click
import cv2
import msgspec
import numpy as np

from edge_sdk.bench import BenchReport, bench
from edge_sdk.bundle import Bundle
from edge_sdk.errors import DataError
from edge_sdk.frame import Image
from edge_sdk.percentiles import Percentiles
from edge_sdk.session import SessionSettings
from edge_sdk.signing import load_public_key


@click.command("bench")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--image", type=click.Path(path_type=Path), help="The frame to measure with.  [default: a golden image at 1280x720]"
)
@click.option("--variant", metavar="NAME", help="Another of the bundle's models, such as int8.320x320 or fp32.")
@click.option("--threads", type=click.IntRange(1, 256), help="Of the loop's model.  [default: as the bundle has them]")
@click.option(
    "--spin/--no-spin", default=None, help="Those threads spin within a run, or not.  [default: as the bundle has it]"
)
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--trust", multiple=True, type=click.Path(path_type=Path), help="Public key; demands a signature.")
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
    """Time every stage of the loop with BUNDLE, beside a bare InferenceSession.run on the same tensors."""
    opened = Bundle.open(bundle, [load_public_key(path) for path in trust])
    if variant is not None:
        opened = opened.led_by(variant)
    promised = SessionSettings.of(opened.manifest)
    settings = msgspec.structs.replace(
        promised,
        intra_op_num_threads=threads or promised.intra_op_num_threads,
        allow_spinning=promised.allow_spinning if spin is None else spin,
    )
    report = bench(opened, _read(image) if image else None, rounds, settings=settings)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _show(report)


def _read(path: Path) -> Image:
    if not path.is_file():
        raise DataError(f"{path}: no such image")
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise DataError(f"{path}: not an image that can be read")
    return np.asarray(image, np.uint8)  # which it is: OpenCV's types say only that it holds numbers


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
