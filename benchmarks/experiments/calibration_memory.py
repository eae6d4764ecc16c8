"""`python -m benchmarks.experiments.calibration_memory --model MODEL.toml --data IMAGES`: memory of calibration.

Our calibration alone, the whole `edge-sdk build` step by step, and ONNX Runtime's own calibrators, each in a process of
its own; all of them on the same simplified model and the same images. A process that wants more than the limit is
stopped by it, and the table says so. IMAGES are taken again and again, a byte longer each time, until there are enough.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import onnx
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from benchmarks.rivals.by_hand import Reader
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import EdgeError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, watch_activations
from edge_sdk_tools.quantize.simplified import simplify

MB = 1e6
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path), help="A model.toml.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="A folder of images.")
@click.option("--images", "counts", multiple=True, type=int, default=(30, 300), show_default=True)
@click.option("--theirs", multiple=True, type=int, default=(10, 30), show_default=True, help="Images of the others.")
@click.option("--limit-gb", default=8.0, show_default=True, help="Address space of each process.")
@click.option("--target", default="x86_64", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
@click.option("--only", help="Run one of them in this process; what the others are started with.", hidden=True)
def main(
    model: Path,
    data: Path,
    counts: tuple[int, ...],
    theirs: tuple[int, ...],
    limit_gb: float,
    target: str,
    json_file: Path | None,
    only: str | None,
) -> None:
    """Measure and print a table."""
    if only is not None:
        _limit(limit_gb)
        print(json.dumps(_PROGRAMS[only](model, data, target)))
        return
    rows = []
    print("| | images | peak, MB | of it calibration alone, MB | seconds |\n|---|---|---|---|---|")
    for name in _PROGRAMS:
        for count in counts if name in _OURS else theirs:
            row = {"what": name, "images": count, **_start(name, model, data, count, target, limit_gb)}
            rows.append(row)
            print(_line(row), flush=True)
            for step, peak in row.get("steps", {}).items():
                print(f"| ... {step} | {count} | {peak:.0f} | | |", flush=True)
    if json_file is not None:
        json_file.write_text(json.dumps({"limit_gb": limit_gb, "rows": rows}, indent=2) + "\n")


def _line(row: dict[str, object]) -> str:
    if "failed" in row:
        return f"| {row['what']} | {row['images']} | {row['failed']} | | |"
    return f"| {row['what']} | {row['images']} | {row['peak_mb']:.0f} | {row['above_mb']:.0f} | {row['seconds']:.1f} |"


def _start(name: str, model: Path, data: Path, count: int, target: str, limit_gb: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        images = _written(Path(folder) / "images", data, count)
        command = [
            sys.executable,
            "-m",
            "benchmarks.experiments.calibration_memory",
            "--only",
            name,
            "--model",
            str(model),
        ]
        command += ["--data", str(images), "--target", target, "--limit-gb", str(limit_gb)]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"failed": f"failed under {limit_gb:g} GB: {words[-1][:80]}", "seconds": seconds}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def _written(folder: Path, data: Path, count: int) -> Path:
    folder.mkdir()
    sources = find_images([data], decode=False).images
    for number in range(count):
        source = sources[number % len(sources)].path
        (folder / f"{number:05}{source.suffix}").write_bytes(source.read_bytes() + number.to_bytes(4, "big"))
    return folder


def _limit(limit_gb: float) -> None:
    size = int(limit_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


class _Peak:
    """The largest resident set since the last look, by proc(5): VmHWM, which `clear_refs` sets back."""

    def __init__(self) -> None:
        self.before = self.since()

    def since(self) -> float:
        """MB since this was asked last."""
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        _RESET.write_text("5")
        return int(line.split()[1]) * 1024 / MB


def _watch(model: Path, data: Path, target: str) -> dict[str, object]:
    """One pass, and the ranges by every method from it."""
    spec = load_model_spec(model)
    with tempfile.TemporaryDirectory() as folder:
        simplified = simplify(check_model(spec, load_target(target)).proto, Path(folder))
        peak = _Peak()
        symmetric = load_target(target).activation_type == "QInt8"
        activations = watch_activations(simplified, find_images([data]), spec.input, symmetric=symmetric)
        for calibration in CALIBRATIONS:
            activations.ranges(calibration)
    return _grown(peak)


def _grown(peak: _Peak) -> dict[str, object]:
    highest = peak.since()
    return {"peak_mb": highest, "above_mb": highest - peak.before}


def _build(model: Path, data: Path, target: str) -> dict[str, object]:
    """All steps; each has the peak between its first and its last report."""
    steps: dict[str, float] = {}
    peak = _Peak()

    def note(step: str, _done: int, _total: int) -> None:
        steps[step] = max(steps.get(step, 0.0), peak.since())

    with tempfile.TemporaryDirectory() as folder:
        try:
            build(model, target, Path(folder) / "a.edge", calibration=[data], on_progress=note)
        except EdgeError as cause:
            print(cause, file=sys.stderr)
            sys.exit(1)
    steps["the rest"] = peak.since()
    highest = max(steps.values())
    return {"peak_mb": highest, "above_mb": steps.get("calibrate", 0.0) - peak.before, "steps": steps}


def _theirs(method: CalibrationMethod) -> Callable[[Path, Path, str], dict[str, object]]:
    def run(model: Path, data: Path, target: str) -> dict[str, object]:
        spec = load_model_spec(model)
        with tempfile.TemporaryDirectory() as folder:
            simplified = simplify(check_model(spec, load_target(target)).proto, Path(folder))
            name = onnx.load(simplified.path, load_external_data=False).graph.input[0].name
            peak = _Peak()
            calibrator = create_calibrator(
                simplified.path, augmented_model_path=f"{folder}/augmented.onnx", calibrate_method=method
            )
            calibrator.collect_data(Reader(data, spec, name))
            calibrator.compute_data()
        return _grown(peak)

    return run


_PROGRAMS: dict[str, Callable[[Path, Path, str], dict[str, object]]] = {
    "edge-sdk, calibration with all methods": _watch,
    "edge-sdk build": _build,
    "ONNX Runtime MinMax": _theirs(CalibrationMethod.MinMax),
    "ONNX Runtime Entropy": _theirs(CalibrationMethod.Entropy),
    "ONNX Runtime Percentile": _theirs(CalibrationMethod.Percentile),
}
_OURS = ("edge-sdk, calibration with all methods", "edge-sdk build")

if __name__ == "__main__":
    main()
