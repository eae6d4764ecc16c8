"""Runs a model on the emulated board, in its own Python: one inference between two marks, or on a few inputs.

Usage: guest.py [MODEL [FOLDER SECONDS]]. Without FOLDER one inference on noise lies between two marks that the plugin
sees; without MODEL the marks enclose nothing, which shows that everything works together. FOLDER holds input_0.npy and
so on; beside each its outputs are written, as output_0.npz with arrays named "0", "1" and so on. No input but the first
is begun that would end after SECONDS. Nothing of edge-sdk can be imported there. What goes wrong with the model is one
line on standard error, and exit code 3.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

_BEGIN, _END = 0x5ED6E0, 0x5ED6E1  # icount.c has the same numbers
_KINDS = ("float", "float16", "double", "uint8", "int8", "int32", "int64", "bool")
_MODEL_FAULT = 3


def _main(model: str = "", folder: str = "", seconds: str = "0") -> None:
    if folder:
        _write_outputs(_load(model), Path(folder), float(seconds))
    else:
        _run_between_marks(_on_noise(_load(model)) if model else lambda: None)


def _load(model: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run_between_marks(run: Callable[[], object]) -> None:
    run()  # the first run lays out memory and loads what is loaded late; the second and third differ by .003 %
    mark = ctypes.CDLL(None).syscall
    # A collection between the marks would be counted, or not, by chance.
    gc.collect()
    gc.disable()
    mark(ctypes.c_long(_BEGIN))
    run()
    mark(ctypes.c_long(_END))
    sys.stdout.write(ort.__version__)


def _on_noise(session: ort.InferenceSession) -> Callable[[], object]:
    binding = session.io_binding()
    random = np.random.default_rng(0)
    for spec in session.get_inputs():
        binding.bind_cpu_input(spec.name, _tensor(spec, random))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _tensor(spec: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Noise of the input's shape; only the batch may be left open, and is one."""
    kind = spec.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _KINDS:
        raise ValueError(f"input {spec.name} is {spec.type}, expected a tensor of numbers")
    shape = list(spec.shape)
    if shape and not isinstance(shape[0], int):
        shape[0] = 1
    if not all(isinstance(side, int) for side in shape):
        raise ValueError(f"input {spec.name} has the shape {spec.shape}, expected fixed numbers after the first")
    dtype = np.dtype("float32" if kind == "float" else kind)
    if dtype.kind == "f":
        return np.asarray(random.random(shape), dtype)
    # Small numbers, because whole ones are often indices; images have all of a byte.
    return np.asarray(random.integers(0, 256 if dtype == np.uint8 else 2, shape), dtype)


def _write_outputs(session: ort.InferenceSession, folder: Path, seconds: float) -> None:
    begin = time.monotonic()
    name = session.get_inputs()[0].name
    longest = 0.0
    for number in range(len(list(folder.glob("input_*.npy")))):
        start = time.monotonic()
        if number and start + longest - begin > seconds:
            return
        outputs = session.run(None, {name: np.load(folder / f"input_{number}.npy")})
        partial = folder / f"partial_{number}.npz"
        arrays: dict[str, Any] = {str(index): output for index, output in enumerate(outputs)}
        np.savez(partial, **arrays)
        partial.rename(folder / f"output_{number}.npz")
        longest = max(longest, time.monotonic() - start)


if __name__ == "__main__":
    try:
        _main(*sys.argv[1:])
    except Exception as cause:  # noqa: BLE001 - onnxruntime's exceptions share no root of their own
        sys.stderr.write(f"{(str(cause).splitlines() or [type(cause).__name__])[0]}\n")
        sys.exit(_MODEL_FAULT)
