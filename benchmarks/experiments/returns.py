"""How soon a camera that comes back is seen again, and how old its first picture is.

Run as `python -m benchmarks.experiments.returns`.

Real servers of RTSP (over TCP and UDP, H.264) and MJPEG over HTTP, 25 frames a second, killed or stopped, away for
some seconds, and back. Each picture carries the server's clock. "Over" is the age beyond one period of the camera:
what the way of a frame, its decoding and whatever was stale take. Ends with 1 where the median is beyond three
seconds, or beyond three periods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import click

from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.slot import OpenedSource, SourceStatus
from tests.support.streams import StreamServer, http_server, rtsp_server, true_age_ms

_PERIOD_MS = 40.0
_MOST_S, _MOST_AGE_MS = 3.0, 3 * _PERIOD_MS
_PATIENCE_S = 60.0
_WAYS: dict[str, tuple[Callable[[], StreamServer], SourceOptions]] = {
    "rtsp over tcp": (rtsp_server, SourceOptions()),
    "rtsp over udp": (rtsp_server, SourceOptions(transport="udp")),
    "http": (http_server, SourceOptions()),
}


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise click.ClickException(f"nothing came of it in {_PATIENCE_S:.0f} s")


def _is_fresh(source: OpenedSource) -> bool:
    frame = source.latest(0.1)
    return frame is not None and true_age_ms(frame) < 1000


def measure(way: str, away_s: float, *, kills: bool) -> tuple[float, float]:
    """Seconds from the server's return to the first frame, and that frame's age, milliseconds."""
    make_server, options = _WAYS[way]
    with make_server() as server, closing(open_source(server.url(), options=options)) as source:
        _until(partial(_is_fresh, source))
        (server.kill if kills else server.pause)()
        gone = time.monotonic()
        while time.monotonic() - gone < away_s or source.status is SourceStatus.OPENED:
            source.latest(0.1)
        (server.start if kills else server.go_on)()
        back = time.monotonic()
        while (frame := source.latest(0.01)) is None:
            if time.monotonic() - back > _PATIENCE_S:
                raise click.ClickException(f"{way}: no frame in {_PATIENCE_S:.0f} s")
        return time.monotonic() - back, float(true_age_ms(frame))


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--away-s", type=click.FloatRange(min=0), default=4.0, show_default=True, help="How long it is away.")
def main(rounds: int, away_s: float) -> None:
    """Print the table; the rounds of all kinds are interleaved."""
    kinds = [(way, kills) for way in _WAYS for kills in (True, False)]
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for way, kills in kinds:
            found[way, kills].append(measure(way, away_s, kills=kills))
    missed = False
    for (way, kills), measured in found.items():
        seconds, ages = zip(*measured, strict=True)
        missed |= statistics.median(seconds) > _MOST_S or statistics.median(ages) > _MOST_AGE_MS
        over = [age - _PERIOD_MS for age in ages]
        print(
            f"{way:14} {'killed' if kills else 'stopped':8} back after {statistics.median(seconds):5.2f} s "
            f"[{min(seconds):.2f}-{max(seconds):.2f}]   age {statistics.median(ages):5.0f} ms "
            f"[{min(ages):.0f}-{max(ages):.0f}], over {statistics.median(over):5.0f}"
        )
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
