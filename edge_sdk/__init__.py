"""edge-sdk on the device: run a verified bundle on the freshest camera frame and publish what it sees."""

import os

# ONNX Runtime 1.29 and newer collects a device id and reports it as soon as it is imported, unless this is set before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# OpenCV reads it when it is loaded: otherwise its threads burn a core for 0.3 ms after every frame, waiting for more.
os.environ.setdefault("OPENCV_THREAD_POOL_ACTIVE_WAIT_WORKER", "0")

__version__ = "0.1.0"
