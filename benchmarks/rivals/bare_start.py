"""The shortest script that does it: a frame of a file through an .ort, published.

usage: python -m benchmarks.rivals.bare_start MODEL.ort PICTURE BROKER_PORT THREADS
"""

from __future__ import annotations

import sys

import cv2
import numpy as np
import onnxruntime as ort
import paho.mqtt.client as mqtt


def main() -> None:
    """Load, read, run, publish."""
    model, picture, port, threads = sys.argv[1:]
    cv2.setNumThreads(1)
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", int(port))
    client.loop_start()
    [image] = session.get_inputs()
    frame = cv2.imread(picture)
    if image.type == "tensor(uint8)":
        resized = cv2.resize(frame, (image.shape[2], image.shape[1]))
        tensor = (resized if image.shape[3] == 3 else cv2.cvtColor(resized, cv2.COLOR_BGR2BGRA))[None]
    else:
        tensor = cv2.dnn.blobFromImage(frame, 1 / 255, (image.shape[3], image.shape[2]), swapRB=True)
    outputs = session.run(None, {image.name: np.ascontiguousarray(tensor)})
    client.publish("bare/result", str(outputs[0].shape)).wait_for_publish()
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
