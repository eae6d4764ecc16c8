"""`edge-sdk demo`: build a detector, run it on a video and publish to a broker, all on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from edge_sdk.cli.options import PATH, echo_json
from edge_sdk.core.errors import host_tools


@click.command("demo")
@click.option(
    "--output",
    type=PATH,
    default=Path("demo-output"),
    show_default=True,
    help="Folder for the annotated video and picture and the messages; an earlier demo's is replaced.",
)
@click.option("--frames", type=click.IntRange(min=1), help="End after so many frames; the whole video by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end, and progress on standard error only.")
def command(output: Path, frames: int | None, as_json: bool) -> None:
    """Find people in a video with a detector built for this machine, and publish them over MQTT."""
    with host_tools("`edge-sdk demo`", "demo"):
        from edge_sdk_tools.demo.demo import run_demo
        from edge_sdk_tools.demo.show import make_show
    summary = run_demo(output, frames, make_show(errors_only=as_json))
    if as_json:
        echo_json(summary)
