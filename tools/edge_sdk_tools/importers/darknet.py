"""Darknet .cfg + .weights -> ONNX and the model.toml that describes it.

This module runs the steps in order and writes the files; other modules of the package have syntax, weights and layers.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from edge_sdk.bundle.model_spec import load_model_spec, read_labels
from edge_sdk.core.errors import ModelError, OutputError
from edge_sdk_tools.importers.darknet_cfg import Section, read_cfg, read_weights
from edge_sdk_tools.importers.darknet_graph import INPUT_NAME, Graph, Value, add_layer
from edge_sdk_tools.importers.plan import check_writable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SIDE_PX = (8, 8192)  # what model.toml allows
_COLORS = {1: "GRAY", 3: "RGB"}


def import_darknet(cfg: Path, weights: Path, labels: Path, folder: Path, *, name: str | None = None) -> Path:
    """Convert a Darknet detector.

    The ONNX model (opset 17, batch 1, static shapes) takes `images`, float32 (1, C, H, W), RGB, 0-1, and gives for each
    [yolo] what the convolution before it gives: float32 (1, anchors * (5 + classes), H, W), not decoded.

    Args:
        cfg: the network.
        weights: its numbers.
        labels: one class a line; copied beside the model.
        folder: where model.toml, NAME.onnx and labels.txt go; made when missing, these three are replaced.
        name: of the model; the .cfg's file name without ending when None.

    Returns:
        The path of model.toml.

    Raises:
        ModelError: a file that is missing, damaged, does not fit the others, or holds what is not converted.
        OutputError: `folder` cannot be written.
    """
    name = cfg.stem if name is None else name
    if not _NAME.fullmatch(name):
        raise ModelError(f"{cfg}: {name!r} is no model name, expected letters, digits, dots, dashes and underscores")
    check_writable(folder, folder)
    net, layers = read_cfg(cfg)
    graph = _build_graph(net, layers)
    lines = read_labels(labels)
    _check_classes(graph, len(lines), cfg, labels)
    model = graph.to_model(name, read_weights(weights, graph.weights))
    _write(
        folder,
        {
            f"{name}.onnx": model.SerializeToString(),
            "labels.txt": ("\n".join(lines) + "\n").encode(),
            # Last, so that what it names is there.
            "model.toml": _describe(name, graph).encode(),
        },
    )
    load_model_spec(folder / "model.toml")
    return folder / "model.toml"


def _build_graph(net: Section, layers: list[Section]) -> Graph:
    channels = net.integer("channels", 3, 1)
    if channels not in _COLORS:
        raise net.error(f"channels is {channels}, expected 1 or 3")
    height, width = net.integer("height", None, *_SIDE_PX), net.integer("width", None, *_SIDE_PX)
    graph = Graph(Value(INPUT_NAME, channels, height, width))
    for section in layers:
        add_layer(graph, section)
    if not graph.heads:
        raise net.error("no [yolo] after it, expected a detector with at least one")
    return graph


def _check_classes(graph: Graph, label_count: int, cfg: Path, labels: Path) -> None:
    for head in graph.heads:
        if head.classes != label_count:
            raise ModelError(f"{labels}: has {label_count} labels, expected {head.classes}, the classes of {cfg}")


def _describe(name: str, graph: Graph) -> str:
    """The text of model.toml; every value is a number or a checked plain name, so nothing needs escaping."""
    anchors = ",\n".join(f"  {[list(pair) for pair in head.anchors]}" for head in graph.heads)
    channels = graph.input.channels
    return f"""model = "{name}.onnx"
name = "{name}"
task = "detection"
decoder = "yolov4"
labels = "labels.txt"

[input]
size_wh = [{graph.input.width}, {graph.input.height}]
resize = "letterbox"
pad_value = 114
pad_anchor = "center"
color = "{_COLORS[channels]}"
mean = {[0] * channels}
std = {[255] * channels}
layout = "NCHW"

[detection]
anchors = [
{anchors},
]
scale_xy = {[head.scale_xy for head in graph.heads]}
"""


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write all files under other names first, so that a full disk leaves what was there, and nothing else."""
    is_new = not folder.exists()
    partials = {folder / f".{name}.partial-{os.getpid()}": folder / name for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for partial, data in zip(partials, files.values(), strict=True):
            partial.write_bytes(data)
        for partial, path in partials.items():
            partial.replace(path)
        is_new = False
    except OSError as cause:
        raise OutputError(f"{folder}: cannot be written: {cause.strerror}; nothing was changed") from cause
    finally:
        with contextlib.suppress(OSError):
            for partial in partials:
                partial.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
