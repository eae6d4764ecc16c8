"""CPU of a stream at a camera's pace: `edge-sdk run` beside a bare loop and beside a default session.

usage: python -m benchmarks.figures.paced_cpu BUNDLE VIDEO [--seconds 10] [--rounds 5] [--json FILE]

Each is a process of its own that plays VIDEO at its own rate, over and over. What is counted is user and system time
between two looks at /proc once it runs, so that no start is in it. The bare loop reads, resizes, runs one thread and
sleeps; the default session does the same with the settings that ONNX Runtime chooses. `edge-sdk run` has the threads
of the bundle; with one it is measured too where the bundle promises more.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from edge_sdk.bundle.bundle import Bundle

_LIMIT = 1.1
_WARM_UP_S = 3.0
_TICKS_S = os.sysconf("SC_CLK_TCK")

_BARE = """
import sys, time, cv2, numpy as np, onnxruntime as ort
from edge_sdk.bundle.bundle import Bundle
cv2.setNumThreads(1)
bundle = Bundle.open(sys.argv[1])
options = ort.SessionOptions()
options.log_severity_level = 3
if sys.argv[3] == "bare":
    options.intra_op_num_threads = 1
model = bundle.read(bundle.manifest.variants[0].file)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
[wanted] = session.get_inputs()
size = tuple(bundle.manifest.input.size_wh)
levels = wanted.type == "tensor(uint8)"
while True:
    capture = cv2.VideoCapture(sys.argv[2])
    period, start, index = 1 / capture.get(cv2.CAP_PROP_FPS), time.monotonic(), 0
    while True:
        ok, image = capture.read()
        if not ok:
            break
        resized = cv2.resize(image, size)
        if levels:
            if wanted.shape[-1] == 4:
                resized = cv2.cvtColor(resized, cv2.COLOR_BGR2BGRA)
            tensor = resized[None] if wanted.shape[-1] in (3, 4) else resized.transpose(2, 0, 1)[None]
            tensor = np.ascontiguousarray(tensor)
        else:
            tensor = cv2.dnn.blobFromImage(resized, 1 / 255, swapRB=True)
        session.run(None, {wanted.name: tensor})
        index += 1
        time.sleep(max(0, start + index * period - time.monotonic()))
"""


@click.command()
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.argument("video", type=click.Path(exists=True, path_type=Path))
@click.option("--seconds", default=10.0, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(bundle: Path, video: Path, seconds: float, rounds: int, json_file: Path | None) -> None:
    """Measure, print a table, and say whether the limit is kept."""
    with tempfile.TemporaryDirectory() as work:
        shares = measure(programs(bundle, video, Path(work)), seconds, rounds)
    bare = shares["bare loop, 1 thread"]
    print("| | CPU, % of a core | times the bare loop |")
    print("|---|---|---|")
    for name, values in shares.items():
        ratios = [value / other for value, other in zip(values, bare, strict=True)]
        print(f"| {name} | {_middle([100 * v for v in values])} | {_middle(ratios)} |")
    print(f"\nlimit {_LIMIT} times the bare loop")
    if json_file:
        json_file.write_text(json.dumps(shares, indent=2) + "\n")


def programs(bundle: Path, video: Path, work: Path) -> dict[str, list[str]]:
    """The command lines that are compared, by name; what they need is written to `work`."""
    options = ["--quiet", "--no-tune", "--latency-ms", "10000"]
    run = [sys.executable, "-m", "edge_sdk", "run", "--source", str(video), *options]
    programs = {"edge-sdk run": [*run, str(bundle)]}
    if Bundle.open(bundle).manifest.intra_op_num_threads > 1:
        programs["edge-sdk run, 1 thread"] = [*run, str(with_one_thread(bundle, work))]
    for kind, name in (("bare", "bare loop, 1 thread"), ("default", "default session")):
        programs[name] = [sys.executable, "-c", _BARE, str(bundle), str(video), kind]
    return programs


def with_one_thread(bundle: Path, work: Path) -> Path:
    """A copy in the folder `work` whose model has one thread; its signature holds no more."""
    copy = work / bundle.name
    shutil.copytree(bundle, copy)
    manifest = copy / "manifest.json"
    document: dict[str, Any] = msgspec.json.decode(manifest.read_bytes())
    manifest.chmod(0o644)
    manifest.write_bytes(msgspec.json.encode(document | {"intra_op_num_threads": 1}))
    return copy


def measure(programs: dict[str, list[str]], seconds: float, rounds: int) -> dict[str, list[float]]:
    """CPU seconds a second of each, in every round."""
    shares: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, command in programs.items():
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
            shares[name].append(_cpu_share(command, seconds))
    return shares


def _cpu_share(command: list[str], seconds: float) -> float:
    """CPU seconds a second of a process that runs already."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            time.sleep(_WARM_UP_S)
            used, since = _cpu_s(process.pid), time.monotonic()
            time.sleep(seconds)
            used, since = _cpu_s(process.pid) - used, time.monotonic() - since
            if process.poll() is not None:
                raise SystemExit(f"{command[:6]} ended early: a longer video is needed")
        finally:
            process.kill()
    return used / since


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}-{max(values):.3g}]"


if __name__ == "__main__":
    main()
