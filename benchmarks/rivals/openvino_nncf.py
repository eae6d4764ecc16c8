"""A model in INT8 by OpenVINO and NNCF, on one thread; run by the Python of benchmarks/rivals/requirements.txt.

usage: python openvino_nncf.py MODEL.onnx TENSORS.npy
NNCF quantizes the float model with its defaults; TENSORS, float32 (images, 1, ...), are what the model takes and
calibrate it.
A first line on standard output says that the model is loaded. For each line on standard input it then runs the model
once and prints the CPU seconds that this process spent on it.
"""

from __future__ import annotations

import sys
import time

import nncf
import numpy as np
import openvino


def main() -> None:
    """Quantize, load, and run when told."""
    path, tensors = sys.argv[1], np.load(sys.argv[2])
    printed, sys.stdout = sys.stdout, sys.stderr  # NNCF narrates
    model = nncf.quantize(openvino.Core().read_model(path), nncf.Dataset(list(tensors)), subset_size=len(tensors))
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    request.infer([tensors[0]])
    print("loaded", file=printed, flush=True)
    for _ in sys.stdin:
        started = time.process_time()
        request.infer([tensors[0]])
        print(time.process_time() - started, file=printed, flush=True)


if __name__ == "__main__":
    main()
