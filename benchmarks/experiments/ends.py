"""From SIGTERM to the end of a run, at the moments of tests/system/ends.py.

Run as `python -m benchmarks.experiments.ends [ROUNDS]`.

Also how long after its start a process hears the signal at all.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.broker import Broker
from tests.support.bundles import build_cell_detector
from tests.support.device import MOMENTS, Moment, Scene, heard, tuning
from tests.support.streams import StreamServer, rtsp_server

LIMIT_S = 2.0


def main(rounds: int) -> None:
    """Rounds alternate between the moments."""
    spent: dict[str, list[float]] = {moment.__name__: [] for moment in MOMENTS}
    hearing = []
    with tempfile.TemporaryDirectory() as work, rtsp_server() as door:
        bundle = build_cell_detector(Path(work))
        for number in range(rounds):
            for moment in MOMENTS:
                folder = Path(work) / f"{moment.__name__}{number}"
                folder.mkdir()
                begun_s, ending_s = _end(moment, folder, bundle, door)
                spent[moment.__name__].append(ending_s)
                hearing += [begun_s] if moment is heard else []
    for name, seconds in spent.items():
        print(f"{name}: median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f}")
    everything = sorted(second for seconds in spent.values() for second in seconds)
    print(f"all: median {statistics.median(everything):.2f} s, largest {everything[-1]:.2f}, of {len(everything)}")
    print(f"above {LIMIT_S:g} s: {sum(second > LIMIT_S for second in everything)}")
    print(f"heard after {statistics.median(hearing) * 1000:.0f} ms, at most {max(hearing) * 1000:.0f}")


def _end(moment: Moment, folder: Path, bundle: Path, door: StreamServer) -> tuple[float, float]:
    """Seconds from the start to the moment, and from there to the end."""
    with Broker(folder) as broker:
        scene = Scene(folder, bundle, door, broker)
        scene.defaults["tune"] = moment is tuning
        start = time.monotonic()
        with moment(scene) as device:
            begun = time.monotonic()
            code = device.stop()
            ended = time.monotonic()
        door.go_on()
    if code:
        sys.exit(f"{moment.__name__}: exit code {code}: {device.said}")
    return begun - start, ended - begun


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["7"]))
