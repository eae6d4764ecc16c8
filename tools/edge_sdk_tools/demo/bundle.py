"""The demo's bundle: the detector imported and built for this machine, once for the same inputs."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import EdgeError, IncompatibleError, OutputError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.demo.media import CALIBRATION_VIDEO, DETECTOR, Media, write_images
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.graph.profile import saturates
from edge_sdk_tools.importers.darknet import import_darknet
from edge_sdk_tools.jobs.store import key_of

_NAME = "yolov4_tiny"
_CPU_INFO = Path("/proc/cpuinfo")


class DemoBundle(msgspec.Struct, frozen=True):
    """The bundle that the demo runs, and the figures of its build."""

    path: Path
    model: Path
    report: BuildResult
    cached: bool


def target_for(machine: str, cpu_info: str) -> str:
    """Name of the target for a machine."""
    if machine == "aarch64":
        return "arm64"
    if machine != "x86_64":
        raise IncompatibleError(f"the demo runs on x86_64 and aarch64, this machine is {machine}")
    return "x86_64_avx2" if saturates(machine, cpu_info) else "x86_64"


def demo_bundle(media: Media, cache: Path, on_progress: OnProgress) -> DemoBundle:
    """Import and build, or take what an earlier demo built from the very same inputs."""
    target = target_for(platform.machine(), _CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    # All that the bundle depends on: data, target, and, in every key, the libraries and the code that builds.
    folder = cache / "demo" / key_of("bundle", [DETECTOR, CALIBRATION_VIDEO, load_target(target)])
    found = _open(folder)
    if found:
        return found
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        _build(media, target, partial, on_progress)
        _install(partial, folder)
    except OSError as cause:
        raise OutputError(f"{folder}: the cache cannot be written: {cause.strerror or cause}") from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    built = _open(folder)
    if built is None:
        raise OutputError(f"{folder}: what was built is not there any more; run the demo again")
    return msgspec.structs.replace(built, cached=False)


def _build(media: Media, target: str, folder: Path, on_progress: OnProgress) -> None:
    model = folder / "model" / "model.toml"
    import_darknet(media.cfg, media.weights, media.labels, model.parent, name=_NAME)
    with tempfile.TemporaryDirectory(prefix=".images-", dir=folder) as pictures:
        images = write_images(media, Path(pictures))
        report = build(
            model,
            target,
            folder / f"{_NAME}.edge",
            calibration=[images.calibration],
            evaluation=[images.evaluation],
            on_progress=on_progress,
        )
    (folder / "report.json").write_bytes(msgspec.json.encode(report))


def _open(folder: Path) -> DemoBundle | None:
    """What an earlier demo left, when it is complete and verifies."""
    path, model = folder / f"{_NAME}.edge", folder / "model" / "model.toml"
    try:
        Bundle.open(path)
        report = msgspec.json.decode((folder / "report.json").read_bytes(), type=BuildResult)
    except (EdgeError, OSError, msgspec.DecodeError):
        return None
    return DemoBundle(path, model, msgspec.structs.replace(report, bundle=str(path)), cached=True)


def _install(partial: Path, folder: Path) -> None:
    """Rename into place, unless another demo was faster; what is there else was found incomplete or altered."""
    if _open(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
