"""Bundles for tests: any bytes behind a manifest, real ones, several variants, models that misbehave."""

import functools
import hashlib
import io
import platform
import shutil
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
from onnx import helper

from edge_sdk.bundle import manifest as manifests
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Agreement, FileEntry, Golden, Manifest, Provenance, RuntimeRange, Variant
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings, onnxruntime_version
from edge_sdk.inference.session import Session, Stages
from edge_sdk.tasks.spec import ClassificationSpec, DetectionSpec, Thresholds
from edge_sdk.tuning.candidates import Candidate
from edge_sdk_tools.build.pipeline import build
from tests.support import models as tiny
from tests.support.projects import write_detector

# A small bundle for tests: any bytes for a model, a manifest that fits them.


def golden_file(*pairs: tuple[Tensor, Tensor]) -> bytes:
    """Pictures, and the one output of each."""
    file = io.BytesIO()
    images = {f"image_{i}": image for i, (image, _) in enumerate(pairs)}
    np.savez_compressed(file, **images, **{f"output_{i}_0": output for i, (_, output) in enumerate(pairs)})
    return file.getvalue()


FILES = {
    "model.int8.ort": b"not really a model",
    "labels.txt": b"cat\ndog\n",
    "golden.npz": golden_file((np.zeros((8, 8, 3), np.uint8), np.array([[0.25, 0.75]], np.float32))),
}


def make_variant(name: str = "int8", *, side: int = 8, golden: str = "golden.npz") -> Variant:
    return Variant(
        file=f"model.{name}.ort", precision="int8" if name.startswith("int8") else "fp32", size_wh=(side, side),
        golden=Golden(file=golden, count=1, absolute=0.0, relative=0.0), operators=("ai.onnx:Conv",),
        host_latency_ms=1.0,
    )  # fmt: skip


def make_manifest(files: dict[str, bytes] = FILES, *, side: int = 8) -> Manifest:
    return Manifest(
        name="tiny", version=1, created_at="2026-01-01T00:00:00Z", target="x86_64", machine="x86_64",
        providers=("CPUExecutionProvider",), intra_op_num_threads=1, allow_spinning=False, memory_mb=512,
        task="classification", decoder="softmax", input=InputSpec(size_wh=(side, side)), thresholds=Thresholds(),
        classification=ClassificationSpec(), detection=DetectionSpec(), labels="labels.txt",
        variants=(make_variant(side=side),), opset=13, operators=("ai.onnx:Conv",), latency_budget_ms=100.0,
        onnxruntime=RuntimeRange(minimum="1.20.1", maximum="1.31.1"),
        provenance=Provenance(
            edge_sdk="0.1.0", libraries={}, source_sha256="0" * 64, recipe={}, float_nodes=(),
            calibration_digests=("0" * 16,),
        ),
        files=tuple(FileEntry(n, len(b), hashlib.sha256(b).hexdigest()) for n, b in sorted(files.items())),
    )  # fmt: skip


def write_bundle(folder: Path, manifest: Manifest | None = None, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "manifest.json").write_bytes(manifests.encode_manifest(manifest or make_manifest(files)))
    return folder


def edit_manifest(folder: Path, **changes: object) -> None:
    """Change top-level keys of manifest.json as a stranger with an editor would; None removes a key."""
    path = folder / "manifest.json"
    document = msgspec.json.decode(path.read_bytes())
    for key, value in changes.items():
        document.pop(key) if value is None else document.update({key: value})
    path.write_bytes(msgspec.json.encode(document))


def for_here(manifest: Manifest) -> Manifest:
    """The manifest of a bundle that this machine and its ONNX Runtime can run."""
    span = msgspec.structs.replace(manifest.onnxruntime, maximum=onnxruntime_version())
    machine = "aarch64" if platform.machine() == "aarch64" else "x86_64"
    return msgspec.structs.replace(manifest, onnxruntime=span, machine=machine)


# A bundle with a larger and a smaller model, made by hand for this machine; the larger takes many times as long.

LARGE, SMALL = "int8", "int8.8x8"


def write_graded(
    folder: Path, *, side: int = 16, width: int = 4, latency_ms: float = 100.0, hostile: onnx.ModelProto | None = None
) -> Path:
    files, variants = {"labels.txt": FILES["labels.txt"]}, list[Variant]()
    for name, pixels in ((LARGE, side), (SMALL, 8)):
        model = hostile.SerializeToString() if name == SMALL and hostile is not None else _model(pixels, width)
        variant = make_variant(name, side=pixels, golden=f"golden.{name}.npz")
        variants.append(msgspec.structs.replace(variant, host_latency_ms=pixels**2 / 100))
        files[variant.file] = model
        files[variant.golden.file] = _golden(_model(pixels, width), InputSpec(size_wh=(pixels, pixels)))
    manifest = msgspec.structs.replace(
        make_manifest(files, side=side), variants=tuple(variants), latency_budget_ms=latency_ms
    )
    return write_bundle(folder, for_here(manifest), files)


def open_candidate(bundle: Bundle, candidate: Candidate) -> Stages:
    return Stages.open(bundle.with_primary(candidate.variant), candidate.settings(SessionSettings.of(bundle.manifest)))


def open_variant(folder: Path, variant: str, threads: int = 1) -> Stages:
    return Stages.open(Bundle.open(folder).with_primary(variant), SessionSettings(intra_op_num_threads=threads))


@functools.cache
def _model(side: int, width: int) -> bytes:
    random = np.random.default_rng(1)
    weights = {
        "w1": random.normal(0, 0.1, (width, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, 0.1, (width, width, 3, 3)).astype(np.float32),
        "w3": random.normal(0, 0.1, (2, width, 1, 1)).astype(np.float32),
    }
    text = """c1 = Conv<pads=[1,1,1,1]>(images, w1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2)
        g = GlobalAveragePool(r2) c3 = Conv(g, w3) logits = Flatten(c3) probabilities = Softmax<axis=1>(logits)"""
    return tiny.parsed(text, {"probabilities": [1, 2]}, weights, shape=[1, 3, side, side]).SerializeToString()


@functools.cache
def _golden(model: bytes, spec: InputSpec, brightest: int = 256) -> bytes:
    width, height = spec.size_wh
    image = np.random.default_rng(width).integers(0, brightest, (height, width, 3), np.uint8)
    [output] = Session(model, SessionSettings(), "m").run(Prepare(spec).normalise(image))
    return golden_file((image, output))


# A bundle of several models for tests: real, tiny, and each says something else of every picture.

SIDES = {"int8": 16, "int8.8x8": 8, "fp32": 16}
AGREEMENTS = {"int8": 0.95, "int8.8x8": 0.8}
"""With FP32, by name."""
INPUT = InputSpec(size_wh=(16, 16), std=(255.0, 255.0, 255.0))


@functools.cache
def variant_model(name: str, side: int) -> bytes:
    """Each says something else of every picture, so that it shows which one ran."""
    model = tiny.classifier(classes=2, size=side)
    [bias] = [weight for weight in model.graph.initializer if weight.name == "b2"]
    bias.raw_data = np.array([list(SIDES).index(name), 0], np.float32).tobytes()
    return model.SerializeToString()


def write_variants(folder: Path) -> Path:
    """Write three variants that agree with FP32 as `AGREEMENTS` has it."""
    files, variants = {"labels.txt": FILES["labels.txt"]}, list[Variant]()
    for name, side in SIDES.items():
        model = variant_model(name, side)
        variant = make_variant(name, side=side, golden=f"golden.{name}.npz")
        files[variant.file] = model
        files[variant.golden.file] = _golden(model, msgspec.structs.replace(INPUT, size_wh=(side, side)))
        value = AGREEMENTS.get(name)
        agreement = None if value is None else Agreement("top1_agreement", value, value, value, 50, 50)
        variants.append(msgspec.structs.replace(variant, agreement=agreement))
    manifest = msgspec.structs.replace(make_manifest(files), input=INPUT, variants=tuple(variants))
    return write_bundle(folder, for_here(manifest), files)


# Models that misbehave on bright pictures, and real bundles around them.

SIDE = 16
BRIGHT = 200.0
_WEIGHTS = {
    "w": np.array([[1, 0, 0], [0, 0, 1]], np.float32).T / 255,
    "bright": np.float32(BRIGHT).reshape(()),
    "first_axis": np.array([0], np.int64),
}


def _forever(operator: str, classes: int) -> str:
    return f"""body (int64 round, bool go, float[1,{classes}] x) => (bool go_on, float[1,{classes}] next)
        {{ go_on = Identity(go) next = {operator}(x) }}"""


def endless() -> onnx.ModelProto:
    return _model_of_troubled(f"""brightest = ReduceMax<keepdims=0>(images) goes_on = Greater(brightest, bright)
        end = Loop<body = {_forever("Relu", 3)}>("", goes_on, means)""")


def failing() -> onnx.ModelProto:
    """Two classes, red and blue; on a bright picture it looks where there is nothing, and ONNX Runtime gives up."""
    return _model_of_troubled("""brightest = ReduceMax<keepdims=0>(images) is_bright = Greater(brightest, bright)
        row = Cast<to=7>(is_bright) rows = Unsqueeze(row, first_axis) end = Gather(means, rows)""")


def coloured() -> onnx.ModelProto:
    """Two classes, red and blue: whatever there is more of."""
    return _model_of_troubled("end = Identity(means)")


def not_a_number() -> onnx.ModelProto:
    """Two classes, red and blue; of a bright picture it knows nothing: the root of what is negative."""
    return _model_of_troubled("rest = Sub(bright, means) root = Sqrt(rest) end = Mul(root, means)")


def _model_of_troubled(middle: str) -> onnx.ModelProto:
    text = f"""pooled = GlobalAveragePool(images) means = Flatten(pooled) {middle}
        logits = MatMul(end, w) probabilities = Softmax<axis=1>(logits)"""
    return tiny.parsed(text, {"probabilities": [1, 2]}, _WEIGHTS)


def picture(level: int) -> Tensor:
    """float32 (1, 3, 16, 16), all of one level."""
    return np.full((1, 3, SIDE, SIDE), level, np.float32)


def write_real_bundle(
    folder: Path, model: onnx.ModelProto, *, golden: list[tuple[Tensor, Tensor]] | None = None,
    operators: tuple[str, ...] = (), extra: dict[str, bytes] | None = None, **changes: object,
) -> Path:  # fmt: skip
    """A bundle of two classes that this machine can run."""
    data = model.SerializeToString()
    replayed = golden_file(*golden) if golden else _golden(data, InputSpec(size_wh=(SIDE, SIDE)), brightest=100)
    files = {"model.int8.ort": data, "labels.txt": b"red\nblue\n", "golden.npz": replayed, **(extra or {})}
    manifest = for_here(make_manifest(files, side=SIDE))
    [variant] = (builtins := msgspec.to_builtins(manifest))["variants"]
    variant["operators"] = [*variant["operators"], *operators]
    variant["golden"] |= {"count": len(golden or [1]), "absolute": 1e-5}
    builtins |= {"operators": variant["operators"], **changes}
    return write_bundle(folder, msgspec.convert(builtins, Manifest), files)


def open_real_bundle(folder: Path, model: onnx.ModelProto, **changes: object) -> Bundle:
    return Bundle.open(write_real_bundle(folder, model, **changes))


# Models that ONNX Runtime takes for models, and that end the process that loads or runs them.

_SHAPE = [1, 3, SIDE, SIDE]


def write_hostile(folder: Path, model: onnx.ModelProto) -> Path:
    golden = golden_file((np.zeros((SIDE, SIDE, 3), np.uint8), np.zeros((1, 2), np.float32)))
    files = {**FILES, "model.int8.ort": model.SerializeToString(), "golden.npz": golden}
    return write_bundle(folder, make_manifest(files, side=SIDE), files)


def _zeros(more: str, side: int = SIDE, **weights: np.ndarray) -> onnx.ModelProto:
    """A model that makes two zeros, `row`, of any picture, and of these, by the nodes `more`, its output `y`."""
    text = f"means = GlobalAveragePool(images) flat = Flatten(means) row = MatMul(flat, w) {more}"
    return tiny.parsed(text, {"y": [1, 2]}, {**weights, "w": np.zeros((3, 2), np.float32)}, shape=[1, 3, side, side])


def sound() -> onnx.ModelProto:
    return _zeros("y = Identity(row)")


def wants(gigabytes: float) -> onnx.ModelProto:
    """A hundred bytes that take so much memory while they are loaded: what is constant is worked out there."""
    text = "large = ConstantOfShape(shape) zero = ReduceSum<keepdims=0>(large) y = Add(row, zero)"
    return _zeros(text, shape=np.array([int(gigabytes * 2**30 / 4)]))


def endless_of_hostile(side: int = SIDE) -> onnx.ModelProto:
    """A loop of 1e15 rounds; that its values stand still keeps nobody from going round."""
    loop = f"y = Loop<body = {_forever('Sin', 2)}>(n, go, row)"
    return _zeros(loop, side, n=np.array(10**15), go=np.array(True))


def deep() -> onnx.ModelProto:
    """A chain of functions, each of which calls the next: what unfolds them runs out of stack."""
    levels, imports = 6000, [helper.make_opsetid("", tiny.OPSET), helper.make_opsetid("local", 1)]
    model = tiny.model([helper.make_node("f0", ["images"], ["y"], domain="local")], _SHAPE, {"y": _SHAPE})
    for level in range(levels):
        call = helper.make_node(f"f{level + 1}", ["x"], ["y"], domain="local")
        model.functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], [call], imports))
    last = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("local", f"f{levels}", ["x"], ["y"], last, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


# Real bundles for system tests, built once a test session for the machine that runs them.

NATIVE_TARGET = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]


def build_cell_detector(folder: Path) -> Path:
    """A detector of bright cells: 4 x 4 of them, boxes exactly the cell, class red or blue."""
    output = folder / f"cells-{NATIVE_TARGET}.edge"
    build(write_detector(folder / "project"), NATIVE_TARGET, output, bundle_version=1)
    return output


def copy_bundle(path: Path, to: Path, version: int) -> Path:
    shutil.copytree(path, to)
    edit_manifest(to, version=version)
    return to


def replace_bundle(path: Path, version: int) -> None:
    """Have another version in a bundle's folder, as whoever deploys one would: at once."""
    other, before = path.with_suffix(".new"), path.with_suffix(".old")
    copy_bundle(path, other, version)
    path.rename(before)
    other.rename(path)
    shutil.rmtree(before)


def write_cell_pictures(folder: Path, count: int = 4, side: int = 128) -> Path:
    """Black pictures of `side` pixels; picture i has cell (i % 4, 1) red and cell (3, i % 4) blue."""
    folder.mkdir()
    for index in range(count):
        cv2.imwrite(str(folder / f"{index}.png"), cell_picture(index, side))
    return folder


def cell_picture(index: int, side: int = 128) -> np.ndarray:
    """uint8 (side, side, 3), BGR."""
    cell = side // 4
    image = np.zeros((side, side, 3), np.uint8)
    for (column, row), color in (((index % 4, 1), (140, 140, 255)), ((3, index % 4), (255, 140, 140))):
        image[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = color
    return image
