"""Golden inputs: resized images and the outputs promised for them, made by a build and replayed before it ends.

The outputs come from the model before its conversion, never from the file that they will test. A bundle promises only
the versions of ONNX Runtime in which they were replayed, each in a process of its own. Its wheel is for this machine;
that INT8 is the same on ARM is what the system tests show.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle, energies_of, noise_of
from edge_sdk.bundle.manifest import Golden, InputTensor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import EdgeError, IncompatibleError, MissingDependencyError, raising
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings, onnxruntime_version
from edge_sdk.inference.session import Session
from edge_sdk_tools.arm_cost.installation import unpack_wheels
from edge_sdk_tools.bundle_folder import golden_file
from edge_sdk_tools.packages import Fetch, cache_folder, pip_download, run_program

GOLDEN_IMAGES = 2
_TIMEOUT_S = 300


def make_golden(
    spec: InputSpec,
    taken: InputTensor | None,
    model: Path,
    images: Sequence[Image],
    file: str,
    reference: Session | None,
) -> tuple[bytes, Golden]:
    """Make golden inputs, which are resized images, and the outputs of the model before its conversion for them.

    `taken` is what the model takes; where that ships in signed integers, the one before conversion takes unsigned ones.
    `reference` is the float model of the same size. Returns the bytes of the .npz file, and its entry in the manifest.
    """
    session = Session(model.read_bytes(), SessionSettings(), "the model before conversion")
    is_unsigned = taken is not None and session.input_dtype == np.uint8
    prepare = Prepare(spec, msgspec.structs.replace(taken, dtype="uint8") if taken and is_unsigned else taken)
    floats = Prepare(spec)
    pairs: list[tuple[Image, list[Tensor]]] = []
    energies: list[list[NDArray[np.float64]]] = []
    for image in images:
        resized = prepare.resize(image).copy()
        outputs = session.run(prepare.normalise(resized))
        pairs.append((resized, [output.copy() for output in outputs]))
        if reference is not None:
            theirs = reference.run(floats.normalise(resized))
            energies.append([energies_of(a, b) for a, b in zip(outputs, theirs, strict=True)])
    return golden_file(file, pairs, noise_of(energies))


def replay_variants(bundle: Bundle) -> None:
    """Replay the golden inputs of every variant, as a device does with the one that it runs."""
    for variant in bundle.manifest.variants:
        one = bundle.with_primary(variant.file)
        Session.open(one).replay_golden(one, Prepare.of(one.manifest))


def replay_in(version: str, bundle: Path, fetch: Fetch = pip_download) -> None:
    """Replay a bundle, which need not be in its place yet, with `onnxruntime==version`.

    A MissingDependencyError says that this cannot be downloaded for this Python, an IncompatibleError that it does not
    load the model, or gives other results.
    """
    folder = cache_folder() / "onnxruntime" / f"{version}-cp{sys.version_info.major}{sys.version_info.minor}"
    if not folder.is_dir():
        _fetch_runtime(version, folder, fetch)
    # First on the path, so that it is found before the one that is installed.
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    try:
        command = [sys.executable, "-m", "edge_sdk_tools.prove.golden", str(bundle)]
        done = run_program(command, timeout_s=_TIMEOUT_S, env={**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired as cause:
        raise IncompatibleError(f"with ONNX Runtime {version}: no answer within {_TIMEOUT_S} s") from cause
    if done.returncode or done.stdout.strip() != version:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"it ended with {done.returncode}"]
        raise IncompatibleError(f"with ONNX Runtime {version}: {words[-1]}")


def _fetch_runtime(version: str, folder: Path, fetch: Fetch) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as work:
        with raising(MissingDependencyError, f"onnxruntime=={version} cannot be downloaded", kinds=RuntimeError):
            fetch(f"onnxruntime=={version}", Path(work))
        unpacked = Path(work) / "unpacked"
        unpack_wheels(Path(work).glob("*.whl"), unpacked)
        with contextlib.suppress(FileExistsError, NotADirectoryError):  # another build was faster
            unpacked.rename(folder)


if __name__ == "__main__":
    try:
        replay_variants(Bundle.open(Path(sys.argv[1])))
    except EdgeError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{onnxruntime_version()}\n")
