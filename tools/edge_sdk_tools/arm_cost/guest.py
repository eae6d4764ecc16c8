"""Runs on the emulated board, in its own Python: one inference between two marks that the plugin sees.

Usage: guest.py MODEL. Nothing of edge-sdk can be imported there. What goes wrong with the model is one line on
standard error, and exit code 3; without MODEL the marks enclose nothing, which shows that everything works together.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

_BEGIN, _END = 0x5ED6E0, 0x5ED6E1  # icount.c has the same numbers
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
_MODEL_FAULT = 3
_WARM_UPS = 1  # the first run lays out memory and loads what is loaded late; the second and third differ by .003 %


def _main(arguments: list[str]) -> None:
    run = _load(arguments[0]) if arguments else lambda: None
    for _ in range(_WARM_UPS):
        run()
    mark = ctypes.CDLL(None).syscall
    # A collection between the marks would be counted, or not, by chance.
    gc.collect()
    gc.disable()
    mark(ctypes.c_long(_BEGIN))
    run()
    mark(ctypes.c_long(_END))
    sys.stdout.write(ort.__version__)


def _load(path: str) -> Callable[[], object]:
    """Make ready to run a model on one thread, with memory bound as on the device."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    random = np.random.default_rng(0)
    for spec in session.get_inputs():
        binding.bind_cpu_input(spec.name, _tensor(spec, random))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _tensor(spec: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Noise of the input's shape; only the batch may be left open, and is one."""
    if spec.type not in _TYPES:
        raise ValueError(f"input {spec.name} is {spec.type}, expected a tensor of numbers")
    shape = list(spec.shape)
    if shape and not isinstance(shape[0], int):
        shape[0] = 1
    if not all(isinstance(side, int) for side in shape):
        raise ValueError(f"input {spec.name} has the shape {spec.shape}, expected fixed numbers after the first")
    dtype = np.dtype(_TYPES[spec.type])
    if dtype.kind == "f":
        return np.asarray(random.random(shape), dtype)
    # Small numbers, because whole ones are often indices; images have all of a byte.
    return np.asarray(random.integers(0, 256 if dtype == np.uint8 else 2, shape), dtype)


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except Exception as cause:  # noqa: BLE001 - onnxruntime's exceptions share no root of their own
        sys.stderr.write(f"{(str(cause).splitlines() or [type(cause).__name__])[0]}\n")
        sys.exit(_MODEL_FAULT)
