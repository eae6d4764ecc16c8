"""What many write first: OpenCV, an FP32 model in a default session, paho; the rival of benchmarks/__main__.py.

usage: python -m benchmarks.rivals.handwritten MODEL.onnx VIDEO BROKER_PORT
Prints JSON: latency of each frame from the grab to the return of `publish`, in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time

import cv2
import numpy as np
import onnxruntime as ort
import paho.mqtt.client as mqtt

SIZE = 416
CONFIDENCE, IOU = 0.25, 0.45
ANCHORS = [
    np.array([[81, 82], [135, 169], [344, 319]], np.float32),
    np.array([[23, 27], [37, 58], [81, 82]], np.float32),
]


def letterbox(image: np.ndarray) -> np.ndarray:
    """Grey padding around the picture, centred."""
    height, width = image.shape[:2]
    scale = min(SIZE / width, SIZE / height)
    resized = cv2.resize(image, (round(width * scale), round(height * scale)))
    canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
    top, left = (SIZE - resized.shape[0]) // 2, (SIZE - resized.shape[1]) // 2
    canvas[top : top + resized.shape[0], left : left + resized.shape[1]] = resized
    return canvas


def decode(outputs: list[np.ndarray]) -> list[tuple[list[float], float, int]]:
    """Every cell through every formula, as tutorials have it."""
    boxes, scores, classes = [], [], []
    for output, anchors in zip(outputs, ANCHORS, strict=True):
        grid = output.shape[2]
        cells = output.reshape(3, 85, grid, grid).transpose(0, 2, 3, 1)
        x, y = np.meshgrid(np.arange(grid), np.arange(grid))
        centers = (1 / (1 + np.exp(-cells[..., :2])) * 1.05 - 0.025 + np.stack([x, y], -1)) * (SIZE / grid)
        sizes = np.exp(cells[..., 2:4]) * anchors[:, None, None]
        confidence = 1 / (1 + np.exp(-cells[..., 4:5])) * (1 / (1 + np.exp(-cells[..., 5:])))
        boxes.append(np.concatenate([centers - sizes / 2, sizes], -1).reshape(-1, 4))
        scores.append(confidence.max(-1).reshape(-1))
        classes.append(confidence.argmax(-1).reshape(-1))
    box, score, kind = np.concatenate(boxes), np.concatenate(scores), np.concatenate(classes)
    kept = cv2.dnn.NMSBoxes(box.tolist(), score.tolist(), CONFIDENCE, IOU)
    return [(box[i].tolist(), float(score[i]), int(kind[i])) for i in np.array(kept).reshape(-1)]


def main() -> None:
    """Play the video in real time and publish what is found."""
    model, video, port = sys.argv[1:]
    session = ort.InferenceSession(model)
    name = session.get_inputs()[0].name
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", int(port))
    client.loop_start()
    capture = cv2.VideoCapture(video)
    period = 1 / capture.get(cv2.CAP_PROP_FPS)
    latencies = []
    due = time.monotonic()
    while capture.grab():
        due += period
        time.sleep(max(0.0, due - time.monotonic()))
        start = time.perf_counter()
        image = capture.retrieve()[1]
        blob = cv2.dnn.blobFromImage(letterbox(image), 1 / 255, swapRB=True)
        found = decode(session.run(None, {name: blob}))
        client.publish("handwritten", json.dumps(found))
        latencies.append((time.perf_counter() - start) * 1e3)
    client.loop_stop()
    print(json.dumps(latencies))


if __name__ == "__main__":
    main()
