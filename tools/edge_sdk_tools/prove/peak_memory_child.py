"""Runs as a process of its own: how much memory each of some models takes at its peak.

Usage: peak_memory_child.py SHIPPED MODEL...; writes one line a MODEL, in their order: bytes, or nothing where it is not
known. The MODEL that is SHIPPED too is loaded as a device does.
Imports numpy and ONNX Runtime once and then forks for every model, so that none finds what another one left. Nothing of
edge-sdk is imported here, because it would be counted.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

sys.path.pop(0)  # the folder of this file, whose modules are no libraries

import numpy as np
import onnxruntime as ort

_DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
_STATUS = Path("/proc/self/status")


def _main(shipped: str, *models: str) -> None:
    warnings.simplefilter("ignore")  # the threads that ONNX Runtime has by now only wait
    for model in models:
        process = os.fork()
        if not process:
            try:
                os.write(sys.stdout.fileno(), str(_peak_bytes(model, from_bytes=model == shipped)).encode())
            finally:
                os._exit(0)  # whatever happens: a fork must never go on with the other models
        os.waitpid(process, 0)
        os.write(sys.stdout.fileno(), b"\n")


def _peak_bytes(model: str, *, from_bytes: bool) -> int:
    """Load a model with the device's settings and run it once; bytes above those of this process before."""
    before = _status("RssAnon")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # A device reads and hashes its file; any other may have weights beside it and is opened by its path.
    source = Path(model).read_bytes() if from_bytes else model
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    inputs = {
        spec.name: np.zeros([side if isinstance(side, int) else 1 for side in spec.shape], _DTYPES[spec.type])
        for spec in session.get_inputs()
    }
    session.run(None, inputs)
    # Pages of files are code of ONNX Runtime, of which a fork has mapped nothing in the beginning.
    return max(0, _status("VmHWM") - _status("RssFile") - _status("RssShmem") - before)


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {name}")
    return 1024 * int(found.group(1))


if __name__ == "__main__":
    _main(*sys.argv[1:])
