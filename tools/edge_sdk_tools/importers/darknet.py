"""Darknet .cfg + .weights -> ONNX and the model.toml that describes it, compared with Darknet's own arithmetic.

The original in that comparison is Darknet's forward pass in NumPy, from the .cfg and the numbers of the .weights file
as they are. It shares their readers with the conversion, and nothing else.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec, load_model_spec
from edge_sdk.core.errors import ModelError, OutputError, raising
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.spec import DetectionSpec
from edge_sdk_tools.datasets.class_names import read_labels
from edge_sdk_tools.importers import darknet_graph
from edge_sdk_tools.importers.comparison import make_probes, observe, probe_images
from edge_sdk_tools.importers.darknet_graph import EPSILON, Graph, Section, Weights
from edge_sdk_tools.importers.describe import to_toml
from edge_sdk_tools.importers.plan import ImportPlan, ImportReport, check_writable, nearest_folder
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def import_darknet(
    cfg: Path,
    weights: Path,
    labels: Path,
    folder: Path,
    *,
    name: str | None = None,
    images: Sequence[Path] = (),
    on_progress: OnProgress = silent,
) -> ImportReport:
    """Convert a Darknet detector.

    The ONNX model (opset 17, batch 1, static shapes) takes `images`, float32 (1, C, H, W), RGB, 0-1, and gives for each
    [yolo] what the convolution before it gives: float32 (1, anchors * (5 + classes), H, W), not decoded.

    The network `cfg` and its numbers in `weights` become NAME.onnx in `folder`, which is made when missing, beside
    model.toml and labels.txt, which has one class a line; these three are replaced. NAME is the .cfg's by default. A
    ModelError says what is missing, damaged, does not fit the others, or is not converted.
    """
    name = cfg.stem if name is None else name
    if not _NAME.fullmatch(name):
        raise ModelError(f"{cfg}: {name!r} is no model name, expected letters, digits, dots, dashes and underscores")
    check_writable(folder, folder)
    with one_step(on_progress, "convert"):
        net, layers = darknet_graph.read_cfg(cfg)
        graph = darknet_graph.build_graph(net, layers)
        lines = read_labels(labels)
        for head in graph.heads:
            if head.classes != len(lines):
                raise ModelError(f"{labels}: has {len(lines)} labels, expected {head.classes}, the classes of {cfg}")
        numbers = darknet_graph.read_weights(weights, graph.weights)
        proto = graph.to_model(name, numbers)
    names = (f"{name}.onnx", "labels.txt", "model.toml")  # model.toml last, so that what it names is there
    replaced = (folder / names[0]).exists()
    with _written_to(folder, names) as partial:
        (partial / "labels.txt").write_bytes(("\n".join(lines) + "\n").encode())
        with raising(ModelError, str(cfg), kinds=ValueError):  # of anchors, for example
            (partial / "model.toml").write_bytes(to_toml(_described(name, graph)).encode())
        spec = load_model_spec(partial / "model.toml")
        found = probe_images(spec, images)
        probes = make_probes(spec.input, found)
        plan = ImportPlan(str(cfg), folder / "model.toml", spec, None, probes, found.skipped)
        with one_step(on_progress, "compare with the original"):
            outputs = [head.value.name for head in graph.heads]
            original = observe(_forward_pass(layers, numbers, outputs), str(cfg), probes)
            blame = "the ONNX model computes something else than Darknet: "
            comparison = plan.verify(proto, "as it would be written", original, blame, "; please report it")
            report = plan.finish(proto, "Darknet", "the Darknet importer", comparison.outputs)
    return msgspec.structs.replace(report, model=str(folder / names[0]), replaced=replaced)


def _described(name: str, graph: Graph) -> ModelSpec:
    channels, heads = graph.input.channels, graph.heads
    return ModelSpec(
        model=f"{name}.onnx",
        name=name,
        task="detection",
        decoder="yolov4",
        labels="labels.txt",
        input=InputSpec(
            size_wh=(graph.input.width, graph.input.height),
            color=darknet_graph.COLORS[channels],
            mean=(0.0,) * channels,
            std=(255.0,) * channels,
        ),
        detection=DetectionSpec(
            anchors=tuple(head.anchors for head in heads), scale_xy=tuple(head.scale_xy for head in heads)
        ),
    )


@contextlib.contextmanager
def _written_to(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield a folder whose files move to `folder` at the end, so that a failure leaves what was there."""
    try:
        with tempfile.TemporaryDirectory(prefix=".importing-", dir=nearest_folder(folder)) as partial:
            yield Path(partial)
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                (Path(partial) / name).replace(folder / name)
    except ModelError as cause:
        raise ModelError(str(cause).replace(str(partial), str(folder))) from cause
    except OSError as cause:
        raise OutputError(f"{folder}: cannot be written: {cause.strerror}; nothing was changed") from cause


_Array: TypeAlias = NDArray[np.float32]

# activations.h
_ACTIVATIONS: dict[str, Callable[[_Array], _Array]] = {
    "linear": lambda x: x,
    "leaky": lambda x: np.where(x > 0, x, np.float32(0.1) * x),
    "relu": lambda x: np.maximum(x, 0),
    "logistic": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),  # 1 / (1 + exp(-x)), which would overflow
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
}


def _forward_pass(
    layers: Sequence[Section], weights: dict[str, Weights], names: Sequence[str]
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return Darknet's forward pass of float32 (1, C, H, W), which gives the input of each [yolo], by these names."""

    def run(tensor: Tensor) -> dict[str, Tensor]:
        done: list[_Array] = []
        heads: list[Tensor] = []
        x = tensor[0]
        for section in layers:
            if section.kind == "yolo":
                heads.append(x[None])
            elif section.kind in ("convolutional", "conv"):
                x = _convolve(section, x, weights[f"layer_{section.index}"])
            else:
                x = _FORWARD[section.kind](section, x, done)
            done.append(x)
        return dict(zip(names, heads, strict=True))

    return run


def _convolve(section: Section, x: _Array, weights: Weights) -> _Array:
    """convolutional_layer.c and batchnorm_layer.c."""
    kernel, groups, size = weights.kernel, section.integer("groups", 1), section.integer("size", 1)
    pad = size // 2 if section.integer("pad", 0) else section.integer("padding", 0)
    stride_y, stride_x = section.strides()
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    height = (x.shape[1] + 2 * pad - size) // stride_y + 1
    width = (x.shape[2] + 2 * pad - size) // stride_x + 1
    y = np.zeros((len(kernel), height, width), np.float32)
    shares = zip(np.split(padded, groups), np.split(kernel, groups), np.split(y, groups), strict=True)
    for seen, filters, result in shares:
        for row in range(size):  # all of a kernel at once would take nine times the memory of its input
            parts = [seen[:, row::stride_y, column::stride_x][:, :height, :width] for column in range(size)]
            result += np.tensordot(filters[:, :, row], np.stack(parts, 1), 2)
    if weights.normalisation:
        scale, mean, variance = (vector[:, None, None] for vector in weights.normalisation)
        y = (y - mean) / np.sqrt(variance + np.float32(EPSILON)) * scale
    return _activate(section, y + weights.bias[:, None, None], "logistic")


def _pool(section: Section, x: _Array, _done: Sequence[_Array]) -> _Array:
    """maxpool_layer.c; pixels beyond the picture do not count."""
    strides = section.strides()
    size = section.integer("size", section.integer("stride", 1))
    padding = section.integer("padding", size - 1)
    places = [(side + padding - size) // step + 1 for side, step in zip(x.shape[1:], strides, strict=True)]
    pads = [(padding // 2, max(0, (n - 1) * step + size)) for n, step in zip(places, strides, strict=True)]
    padded = np.pad(x, ((0, 0), *pads), constant_values=-np.inf)
    windows = sliding_window_view(padded, (size, size), (1, 2))[:, :: strides[0], :: strides[1]]
    pooled: _Array = windows[:, : places[0], : places[1]].max(axis=(3, 4))
    return pooled


def _route(section: Section, _x: _Array, done: Sequence[_Array]) -> _Array:
    groups, group = section.integer("groups", 1), section.integer("group_id", 0)
    return np.concatenate([np.split(_layer(section, n, done), groups)[group] for n in section.numbers("layers", int)])


def _add(section: Section, x: _Array, done: Sequence[_Array]) -> _Array:
    return _activate(section, x + sum(_layer(section, n, done) for n in section.numbers("from", int)), "linear")


def _upsample(section: Section, x: _Array, _done: Sequence[_Array]) -> _Array:
    stride = section.integer("stride", 2)
    return x.repeat(stride, 1).repeat(stride, 2)


def _layer(section: Section, number: int, done: Sequence[_Array]) -> _Array:
    return done[section.index + number if number < 0 else number]


def _activate(section: Section, x: _Array, default: str) -> _Array:
    return _ACTIVATIONS[section.options.get("activation", default)](x).astype(np.float32)


_FORWARD: dict[str, Callable[[Section, _Array, Sequence[_Array]], _Array]] = {
    "maxpool": _pool,
    "max": _pool,
    "route": _route,
    "shortcut": _add,
    "upsample": _upsample,
}
