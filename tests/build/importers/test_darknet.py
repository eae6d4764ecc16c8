"""Darknet -> ONNX, against a forward pass in plain numpy that follows Darknet's C loops."""

import errno
import os
import shutil
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import ModelError, OutputError
from edge_sdk_tools.importers.darknet import import_darknet
from edge_sdk_tools.importers.describe import describe, write_description
from tests.support.logs import refusal

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
            "conv": self.convolve, "max": self.pool, "rout": self.route, "shor": self.shortcut,
            "upsa": lambda o, x: x.repeat(int(o["stride"]), 1).repeat(int(o["stride"]), 2), "yolo": self.yolo,
        }  # fmt: skip
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
        for f, i, j in product(range(filters), range(height), range(width)):
            first, top, left = f // (filters // groups) * share, i * stride_y, j * stride_x
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
        for i, j, row, column in product(range(height), range(width), range(size), range(size)):
            row, column = i * stride - padding // 2 + row, j * stride - padding // 2 + column
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
        "linear": lambda: x, "leaky": lambda: np.where(x > 0, x, 0.1 * x), "relu": lambda: np.maximum(x, 0),
        "logistic": lambda: 1 / (1 + np.exp(-x)), "mish": lambda: x * np.tanh(np.log1p(np.exp(x))),
    }  # fmt: skip
    return results[kind]().astype(np.float32)


YOLO = ("yolo", {"mask": "1,0", "anchors": "10,14, 23,27, 37,58", "classes": "2", "scale_x_y": "1.05"})
HEAD = ("convolutional", {"filters": 14, "size": 1, "activation": "linear"})


def conv(filters: int, **options: Any) -> tuple[str, Options]:
    return "convolutional", {"filters": filters, "size": 3, "pad": 1, "activation": "leaky", **options}


NETWORKS: dict[str, Network] = {
    "batch normalisation": [conv(6, batch_normalize=1, stride=2)],
    "stride a side": [conv(4, stride_x=1, stride_y=2)],
    "padding without pad": [conv(4, size=4, pad=0, padding=1, stride=2)],
    "groups": [conv(6), conv(8, groups=2)],
    "mish": [conv(4, activation="mish")],
    "default activation": [("convolutional", {"filters": 4, "size": 3, "pad": 1})],
    "maxpool 2/2": [conv(4), ("maxpool", {"size": 2, "stride": 2})],
    "maxpool 2/2 of an odd side": [conv(4, pad=0, stride=2), ("maxpool", {"size": 2, "stride": 2})],
    "maxpool padding 1": [conv(4), ("maxpool", {"size": 3, "stride": 2, "padding": 1})],
    "route one": [conv(4), conv(6), ("route", {"layers": "-2"})],
    "route group": [conv(6), ("route", {"layers": "-1", "groups": 3, "group_id": 1})],
    "route two groups": [conv(4), conv(6), ("route", {"layers": "-1,-2", "groups": 2, "group_id": 1})],
    "shortcut": [conv(4), conv(4), ("shortcut", {"from": "-2", "activation": "linear"})],
    "shortcut of three": [conv(4), conv(4), conv(4), ("shortcut", {"from": "-2,-3", "activation": "leaky"})],
    "short names": [("conv", conv(4)[1]), ("max", {"size": 2, "stride": 2})],
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def write_network(
    folder: Path, layers: Network, rng: np.random.Generator, shape: tuple[int, int, int] = (3, 12, 20)
) -> tuple[Reference, Path, Path, Path]:
    """A .cfg, .weights and labels, and the reference that has seen one random picture."""
    reference = Reference(rng.random(shape, np.float32), rng)
    data = reference.run(layers)
    cfg = write_cfg(folder / "tiny.cfg", layers, f"channels={shape[0]}\nheight={shape[1]}\nwidth={shape[2]}")
    weights, labels = folder / "tiny.weights", folder / "names"
    weights.write_bytes(data)
    labels.write_text("cat\ndog\n")
    return reference, cfg, weights, labels


def run_onnx(model: Path, image: Array) -> list[Array]:
    return onnxruntime.InferenceSession(model).run(None, {"images": image[None]})


@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS.keys())
def test_every_layer_does_what_darknet_does(tmp_path: Path, rng: np.random.Generator, layers: Network) -> None:
    reference, cfg, weights, labels = write_network(tmp_path, [*layers, HEAD, YOLO], rng)
    report = import_darknet(cfg, weights, labels, tmp_path / "out")
    (found,) = run_onnx(tmp_path / "out" / "tiny.onnx", reference.image)
    assert report.outputs[0].relative < 1e-4
    assert found.shape == (1, *reference.heads[0].shape)
    np.testing.assert_allclose(found[0], reference.heads[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "color"), [(1, "GRAY"), (3, "RGB")])
def test_each_head_has_its_own_anchors(tmp_path: Path, rng: np.random.Generator, channels: int, color: str) -> None:
    second = ("yolo", {**YOLO[1], "mask": "2,0", "scale_x_y": "1.2"})
    layers = [
        *[conv(6, batch_normalize=1, stride=2), HEAD, YOLO],
        *[("route", {"layers": "-3"}), conv(4), ("upsample", {"stride": 2}), HEAD, second],
    ]
    reference, cfg, weights, labels = write_network(tmp_path, layers, rng, (channels, 16, 24))
    spec = load_model_spec(Path(import_darknet(cfg, weights, labels, tmp_path / "out", name="other").model_toml))
    for found, expected in zip(run_onnx(Path(spec.model), reference.image), reference.heads, strict=True):
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)
    assert Path(spec.model) == tmp_path / "out" / "other.onnx"
    assert (spec.name, spec.decoder, spec.input.color) == ("other", "yolov4", color)
    image = (spec.input.tensor_shape, set(spec.input.mean), set(spec.input.std))
    assert image == ((1, channels, 16, 24), {0.0}, {255.0})
    assert spec.detection.anchors == (((23.0, 27.0), (10.0, 14.0)), ((37.0, 58.0), (10.0, 14.0)))
    assert (spec.detection.scale_xy, Path(spec.labels).read_text()) == ((1.05, 1.2), "cat\ndog\n")
    copy = shutil.copy(spec.model, tmp_path / "other.onnx")
    again = load_model_spec(write_description(describe(copy), tmp_path / "again")[0])
    assert Path(again.labels).read_text() == "cat\ndog\n"
    assert msgspec.structs.replace(again, model="", labels="") == msgspec.structs.replace(spec, model="", labels="")
    model = onnx.load(spec.model)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    for value in (*model.graph.input, *model.graph.output):
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim)


def test_a_conversion_that_differs(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cfg, weights, labels = write_network(tmp_path, [conv(4), HEAD, YOLO], rng)
    monkeypatch.setattr("edge_sdk_tools.importers.darknet_graph._LEAKY_SLOPE", 0.2)
    with pytest.raises(ModelError, match=r"the ONNX model computes something else than Darknet: output .* differs by"):
        import_darknet(cfg, weights, labels, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_head_that_no_build_takes_is_refused_under_its_own_name(tmp_path: Path, rng: np.random.Generator) -> None:
    _, cfg, weights, labels = write_network(tmp_path, [conv(4, pad=0), HEAD, YOLO], rng)
    said = refusal(ModelError, import_darknet, cfg, weights, labels, tmp_path / "out")
    assert said.startswith(f"{tmp_path / 'out' / 'tiny.onnx'}: decoder yolov4: a head of 18x10 cells")


def test_an_old_header_with_32_bits_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    reference, cfg, weights, labels = write_network(tmp_path, [HEAD, YOLO], rng)
    weights.write_bytes(struct.pack("<iiii", 0, 1, 0, 32) + weights.read_bytes()[20:])
    import_darknet(cfg, weights, labels, tmp_path)
    np.testing.assert_allclose(run_onnx(tmp_path / "tiny.onnx", reference.image)[0][0], reference.heads[0], atol=1e-4)


def test_what_is_not_converted_is_named(tmp_path: Path) -> None:
    for layers, expected in (
        ([conv(4), ("lstm", {})], "layer 1 [lstm]: this kind of layer is not supported; supported: convolutional"),
        ([conv(4, activation="gelu")], "layer 0 [convolutional]: activation 'gelu' is not supported; supported: li"),
        ([conv(4, dilation=2)], "layer 0 [convolutional]: dilation=2 is not supported, expected dilation=1"),
        ([conv(4, stride=0)], "stride is 0, expected 1 to 2147483647"),
        ([conv(4), ("maxpool", {"size": 99, "stride": 2, "padding": 0})], "the window's size 99 is larger"),
        ([("route", {"layers": "-1"})], "layer 0 [route]: reads layer -1, expected one from 0 to -1"),
        ([conv(4), conv(4, stride=2), ("route", {"layers": "0,1"})], "layer 1 is 6x10, expected 12x20"),
        ([conv(4), ("route", {"layers": "0", "groups": 3})], "group_id 0 of 3 groups, expected a share of 4 ch"),
        ([conv(4), conv(5), ("shortcut", {"from": "-2"})], "layer -2 is 4x12x20, expected 5x12x20"),
        ([conv(4), YOLO], "layer 1 [yolo]: reads 4 channels, expected 14: 2 anchors x (5 + 2 classes)"),
        ([HEAD, ("yolo", {**YOLO[1], "mask": "7"})], "mask is [7], expected numbers of the 3 anchors"),
        ([HEAD, ("yolo", {**YOLO[1], "anchors": "1,nan"})], "anchors is 'nan', expected a number"),
        ([HEAD, ("yolo", {**YOLO[1], "new_coords": "1"})], "new_coords=1 is not supported"),
        ([HEAD, YOLO, conv(4)], "layer 2 [convolutional]: reads layer 1, a [yolo], which has no output"),
        ([conv(4)], "[net]: no [yolo] after it"),
        ([conv(2_000_000_000), conv(2_000_000_000), HEAD, YOLO], "truncated"),  # refused by size and not by memory
    ):
        cfg = write_cfg(tmp_path / "tiny.cfg", layers)
        cfg.with_suffix(".weights").write_bytes(struct.pack("<iiiQ", 0, 2, 5, 32))
        said = _complaint(tmp_path, cfg)
        assert expected in said
        assert said.startswith(str(tmp_path / "tiny."))


def test_a_wrong_cfg_is_named(tmp_path: Path) -> None:
    cfg = tmp_path / "tiny.cfg"
    for text, expected in (
        (None, "no such file"),
        ("", "does not begin with [net]"),
        ("[net]\nwidth=8\nheight=8", "no layers after [net]"),
        ("[net]\nwidth 8\n", "tiny.cfg:2: expected `[section]` or `key=value`, got 'width 8'"),
        ("[net]\nheight=8\n[yolo]", "[net]: width is missing"),
        (b"\xff\xfe\x00", "not text, expected a Darknet .cfg"),
    ):
        if text is not None:
            cfg.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert expected in _complaint(tmp_path, cfg)


def _complaint(folder: Path, cfg: Path) -> str:
    (folder / "names").write_text("cat\ndog\n")
    said = refusal(ModelError, import_darknet, cfg, folder / "tiny.weights", folder / "names", folder / "out")
    assert not (folder / "out").exists()
    return said


def test_wrong_weights_are_named_with_both_sizes(tmp_path: Path, rng: np.random.Generator) -> None:
    for change, expected in (
        (lambda data: data[:-4], "has 240 bytes, expected 244 for the layers of the .cfg; truncated"),
        (lambda data: data + b"1234", "has 248 bytes, expected 244 for the layers of the .cfg; they belong to an"),
        (lambda data: data[:7], "has 7 bytes, expected Darknet .weights with a header of 16 or 20"),
        (lambda data: data[:-4] + struct.pack("<f", float("nan")), "layer_0_weights is not finite"),
        (lambda data: None, "no such file, expected Darknet .weights"),
    ):
        _, cfg, weights, _ = write_network(tmp_path, [HEAD, YOLO], rng)  # 20 + 4 * (14 + 14 * 3) bytes
        changed = change(weights.read_bytes())
        weights.unlink()
        if changed is not None:
            weights.write_bytes(changed)
        said = _complaint(tmp_path, cfg)
        assert (expected in said, str(weights) in said) == (True, True)


def test_labels_and_name_must_fit(tmp_path: Path, rng: np.random.Generator) -> None:
    _, cfg, weights, labels = write_network(tmp_path, [HEAD, YOLO], rng)
    labels.write_text("cat\n")
    for name, expected in ((None, "has 1 labels, expected 2, the classes of"), ("../x", "'../x' is no model name")):
        assert expected in refusal(ModelError, import_darknet, cfg, weights, labels, tmp_path / "out", name=name)


def test_a_full_disk_leaves_nothing(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cfg, weights, labels = write_network(tmp_path, [HEAD, YOLO], rng)
    write_bytes = Path.write_bytes

    def fill(path: Path, data: bytes) -> int:
        if "model.toml" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(OutputError, match="out: cannot be written: No space left on device; nothing was changed"):
        import_darknet(cfg, weights, labels, tmp_path / "out")
    assert not (tmp_path / "out").exists()
