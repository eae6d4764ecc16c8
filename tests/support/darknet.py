"""Darknet's forward pass in plain numpy, written after its C loops and sharing no code with the importer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Options: TypeAlias = dict[str, Any]
Network: TypeAlias = list[tuple[str, Options]]


def write_cfg(path: Path, layers: Network, net: str = "width=20\nheight=12\nchannels=3") -> Path:
    blocks = [f"[net]\n{net}\n"]
    for kind, options in layers:
        blocks.append(f"[{kind}]  # a comment\n" + "".join(f"{key} = {value}\n" for key, value in options.items()))
    path.write_text("; another comment\n" + "\n".join(blocks))
    return path


class Reference:
    """Darknet's forward pass on one picture; makes up the weights as it goes."""

    def __init__(self, image: Array, rng: np.random.Generator) -> None:
        self.image, self.rng = image, rng
        self.outputs: list[Array] = []
        self.written: list[Array] = []
        self.heads: list[Array] = []

    def run(self, layers: Network) -> bytes:
        kinds: dict[str, Callable[[Options, Array], Array]] = {
            "conv": self.convolve,
            "max": self.pool,
            "rout": self.route,
            "shor": self.shortcut,
            "upsa": lambda o, x: x.repeat(int(o["stride"]), 1).repeat(int(o["stride"]), 2),
            "yolo": self.yolo,
        }
        for kind, options in layers:
            x = self.outputs[-1] if self.outputs else self.image
            self.outputs.append(kinds["max" if kind.startswith("max") else kind[:4]](options, x))
        return struct.pack("<iiiQ", 0, 2, 5, 32) + b"".join(a.astype("<f4").tobytes() for a in self.written)

    def convolve(self, o: Options, x: Array) -> Array:
        filters, size, groups = int(o["filters"]), int(o["size"]), int(o.get("groups", 1))
        pad = size // 2 if o.get("pad") else int(o.get("padding", 0))
        stride = int(o.get("stride", 1))
        stride_y, stride_x = int(o.get("stride_y", stride)), int(o.get("stride_x", stride))
        bias = self.draw(filters)
        if o.get("batch_normalize"):
            scale, mean = self.draw(filters), self.draw(filters)
            variance = np.float32(1e-3) * np.abs(self.draw(filters))  # small, so that a wrong epsilon shows
            self.written[-1] = variance
        share = x.shape[0] // groups
        kernel = self.draw(filters, share, size, size)
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
        height = (x.shape[1] + 2 * pad - size) // stride_y + 1
        width = (x.shape[2] + 2 * pad - size) // stride_x + 1
        y = np.zeros((filters, height, width))
        for f in range(filters):
            first = f // (filters // groups) * share
            for i in range(height):
                for j in range(width):
                    top, left = i * stride_y, j * stride_x
                    patch = padded[first : first + share, top : top + size, left : left + size]
                    y[f, i, j] = (patch * kernel[f]).sum()
        if o.get("batch_normalize"):
            y = (y - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None] * scale[:, None, None]
        return activate(y + bias[:, None, None], o.get("activation", "logistic"))

    def pool(self, o: Options, x: Array) -> Array:
        size, stride = int(o["size"]), int(o["stride"])
        padding = int(o.get("padding", size - 1))
        height, width = ((side + padding - size) // stride + 1 for side in x.shape[1:])
        y = np.full((x.shape[0], height, width), -np.inf, np.float32)
        for i in range(height):
            for j in range(width):
                for row in range(i * stride - padding // 2, i * stride - padding // 2 + size):
                    for column in range(j * stride - padding // 2, j * stride - padding // 2 + size):
                        if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                            y[:, i, j] = np.maximum(y[:, i, j], x[:, row, column])
        return y

    def route(self, o: Options, x: Array) -> Array:
        groups, group = int(o.get("groups", 1)), int(o.get("group_id", 0))
        parts = [self.outputs[int(number)] for number in str(o["layers"]).split(",")]
        return np.concatenate([np.split(part, groups)[group] for part in parts])

    def shortcut(self, o: Options, x: Array) -> Array:
        parts = [self.outputs[int(number)] for number in str(o["from"]).split(",")]
        return activate(x + np.sum(parts, axis=0), o["activation"])

    def yolo(self, o: Options, x: Array) -> Array:
        self.heads.append(x)
        return x

    def draw(self, *shape: int) -> Array:
        self.written.append(self.rng.normal(0, 0.5, shape).astype(np.float32))
        return self.written[-1]


def activate(x: NDArray[Any], kind: str) -> Array:
    results: dict[str, Callable[[], NDArray[Any]]] = {
        "linear": lambda: x,
        "leaky": lambda: np.where(x > 0, x, 0.1 * x),
        "relu": lambda: np.maximum(x, 0),
        "logistic": lambda: 1 / (1 + np.exp(-x)),
        "mish": lambda: x * np.tanh(np.log1p(np.exp(x))),
    }
    return results[kind]().astype(np.float32)
