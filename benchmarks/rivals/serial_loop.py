"""What many write first for a video file: read, resize, blobFromImage, run, print, one after the other.

usage: python -m benchmarks.rivals.serial_loop MODEL.onnx VIDEO FRAMES
A classifier of 224x224, (x - 127) / 128, one inference thread. One line of JSON a frame, then one with the frames a
second from the first to the last.
"""

from __future__ import annotations

import json
import sys
import time

import cv2
import numpy as np
import onnxruntime as ort

SIDE, SHARE = 224, 0.875


def main() -> None:
    """Classify a video file."""
    model, video, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    capture = cv2.VideoCapture(video)
    start, count = 0.0, 0
    while count < frames:
        readable, image = capture.read()
        if not readable:
            break
        height, width = image.shape[:2]
        side = round(min(height, width) * SHARE)
        top, left = (height - side) // 2, (width - side) // 2
        blob = cv2.dnn.blobFromImage(
            image[top : top + side, left : left + side], 1 / 128, (SIDE, SIDE), (127, 127, 127), swapRB=True
        )
        scores = session.run(None, {name: blob})[0][0]
        best = np.argsort(scores)[::-1][:5]
        print(json.dumps({"frame": count, "classes": best.tolist(), "scores": scores[best].tolist()}), flush=True)
        count += 1
        start = start or time.perf_counter()
    print(json.dumps({"fps": (count - 1) / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main()
