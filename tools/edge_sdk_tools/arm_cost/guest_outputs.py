"""Runs on the emulated board, in its own Python: what a model says there of a few inputs.

Usage: guest_outputs.py MODEL FOLDER SECONDS. FOLDER holds input_0.npy and so on; beside each its outputs are
written, as output_0.npz with arrays named "0", "1" and so on. No input is begun that would end after
SECONDS, but the first. Nothing of edge-sdk can be imported there. What goes wrong is one line on standard error, and
exit code 3.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

_MODEL_FAULT = 3


def _main(model: str, folder: Path, seconds: float) -> None:
    begin = time.monotonic()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
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
        _main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
    except Exception as cause:  # noqa: BLE001 - onnxruntime's exceptions share no root of their own
        sys.stderr.write(f"{(str(cause).splitlines() or [type(cause).__name__])[0]}\n")
        sys.exit(_MODEL_FAULT)
