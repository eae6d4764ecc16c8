"""`ultralytics` on a video file, as its documentation has it; run by the Python of benchmarks/rivals/requirements.txt.

usage: python ultralytics_stream.py MODEL.onnx VIDEO FRAMES CONFIDENCE
One line of JSON a frame, then one with the frames a second from the first to the last.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types

os.environ["YOLO_OFFLINE"] = "1"

# There is no build of torchvision for a PyTorch without CUDA in the package index: the boxes are thinned out by
# ultralytics' own function then, which it takes wherever torchvision is not loaded.
torchvision = types.ModuleType("torchvision")
sys.modules["torchvision"] = torchvision

from ultralytics import YOLO  # noqa: E402  # after the stand-in and YOLO_OFFLINE, which it looks for when it is imported
from ultralytics.utils.nms import TorchNMS  # noqa: E402  # the same

torchvision.ops = types.SimpleNamespace(nms=TorchNMS.nms)


def main() -> None:
    """Detect in a video file."""
    model, video, frames, confidence = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    start, count = 0.0, 0
    stream = YOLO(model, task="detect").predict(
        video, stream=True, imgsz=640, device="cpu", conf=confidence, iou=0.45, verbose=False
    )
    for result in stream:
        boxes = result.boxes
        print(json.dumps({"frame": count, "boxes": boxes.xyxy.tolist(), "scores": boxes.conf.tolist()}), flush=True)
        count += 1
        start = start or time.perf_counter()
        if count == frames:
            break
    print(json.dumps({"fps": (count - 1) / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main()
