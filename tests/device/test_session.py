"""Session: bound once, equal to a bare run, and errors that say what was expected."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edge_sdk.bundle import Bundle
from edge_sdk.errors import BundleError, IncompatibleError, SessionError
from edge_sdk.frame import Frame
from edge_sdk.golden import largest_difference
from edge_sdk.manifest import Golden
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings
from tests.device import tiny
from tests.device.bundles import FILES, make_manifest, write_bundle

SPEC = InputSpec(size_wh=(16, 16))


def _session(settings: SessionSettings | None = None) -> Session:
    return Session(tiny.classifier().SerializeToString(), settings or SessionSettings(), "tiny.onnx")


def _frame(seed: int) -> Frame:
    return Frame(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8), 0, 0.0, 0, "camera")


def test_results_equal_a_bare_run_and_share_one_buffer() -> None:
    session, prepare = _session(), Prepare(SPEC)
    bare = ort.InferenceSession(tiny.classifier().SerializeToString(), providers=["CPUExecutionProvider"])
    first = None
    for seed in range(3):
        inferred = session(prepare(_frame(seed)))
        [expected] = bare.run(None, {"images": prepare.tensor})
        assert np.array_equal(inferred.outputs[0], expected)
        assert inferred.inference_ns > 0
        first = first or inferred
        assert inferred.outputs[0] is first.outputs[0]


def test_the_file_is_not_kept_beside_the_model() -> None:
    model = tiny.classifier().SerializeToString()
    before = sys.getrefcount(model)
    session = Session(model, SessionSettings(), "tiny.onnx")
    assert sys.getrefcount(model) == before
    assert session.input_name == "images"


def test_another_tensor_is_bound_anew() -> None:
    session = _session()
    random = np.random.default_rng(0)
    a, b = (random.random((1, 3, 16, 16), dtype=np.float32) for _ in range(2))
    first = session.run(a)[0].copy()
    second = session.run(b)[0].copy()
    assert not np.array_equal(first, second)
    assert np.array_equal(session.run(a)[0], first)


def test_a_twin_shares_the_model_and_no_buffer() -> None:
    session = _session()
    twin = session.twin()
    random = np.random.default_rng(0)
    a, b = (random.random((1, 3, 16, 16), dtype=np.float32) for _ in range(2))
    expected_a, expected_b = session.run(a)[0].copy(), session.run(b)[0].copy()
    [of_a], [of_b] = session.run(a), twin.run(b)
    assert twin.inference is session.inference
    assert np.array_equal(of_a, expected_a)
    assert np.array_equal(of_b, expected_b)


def test_twins_run_in_threads_of_their_own() -> None:
    session, tensors = _session(), np.random.default_rng(0).random((8, 1, 3, 16, 16), dtype=np.float32)
    expected = [session.run(tensor)[0].copy() for tensor in tensors]

    def run(index: int) -> bool:
        twin = session.twin()
        return all(np.array_equal(twin.run(tensors[index])[0], expected[index]) for _ in range(200))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(8)))


def test_outputs_of_changing_shape_are_read_too() -> None:
    nodes = [
        helper.make_node("NonZero", ["images"], ["where"]),
        helper.make_node("Cast", ["where"], ["out"], to=TensorProto.FLOAT),
    ]
    model = tiny.model(nodes, [1, 1, 2, 2], {"out": [4, "found"]})
    session = Session(model.SerializeToString(), SessionSettings(), "m")
    assert session.run(np.array([[[[0, 1], [1, 1]]]], np.float32))[0].shape == (4, 3)
    assert session.output_shapes == [(4, "found")]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (np.zeros((1, 3, 8, 8), np.float32), "float32 (1, 3, 16, 16), got float32 (1, 3, 8, 8)"),
        (np.zeros((1, 3, 16, 16), np.float64), "got float64 (1, 3, 16, 16); convert it, as with astype(numpy.float32)"),
        (np.zeros((1, 3, 16, 16), ">f4"), "got >f4 (1, 3, 16, 16); convert it"),
        (np.full((1, 3, 16, 16), "0"), "got <U1 (1, 3, 16, 16); convert it"),
        (np.full((1, 3, 16, 16), None), "got object (1, 3, 16, 16); convert it"),
        (np.zeros((1, 16, 16, 3), np.float32).transpose(0, 3, 1, 2), "that is not C-contiguous"),
        (np.zeros((1, 3, 16, 32), np.float32)[..., ::2], "give numpy.ascontiguousarray of it"),
        (np.zeros((3, 16, 16), np.float32), "got float32 (3, 16, 16)"),
        (np.zeros((), np.float32), "got float32 ()"),
        ([[0.0]], "got list; give a numpy array"),
        (None, "got NoneType; give a numpy array"),
        ("picture.png", "got str; give a numpy array"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tensor: np.ndarray, expected: str) -> None:
    session = _session()
    good = np.random.default_rng(0).random((1, 3, 16, 16), dtype=np.float32)
    before = session.run(good)[0].copy()
    with pytest.raises(SessionError) as caught:
        session.run(tensor)
    assert str(caught.value).startswith("tiny.onnx: input 'images' is float32 (1, 3, 16, 16), got ")
    assert expected in str(caught.value)
    assert np.array_equal(session.run(good)[0], before)


def test_nothing_is_no_tensor_for_the_first_run_either() -> None:
    session = _session()
    for fresh in (session, session.twin()):
        with pytest.raises(SessionError, match="got NoneType"):
            fresh.run(None)  # type: ignore[arg-type]


def _strings() -> bytes:
    nodes = [helper.make_node("Cast", ["images"], ["names"], to=TensorProto.STRING)]
    proto = tiny.model(nodes, [1, 3, 4, 4], {"names": [1, 3, 4, 4]}, output_type=TensorProto.STRING)
    return proto.SerializeToString()


def _two_inputs() -> bytes:
    proto = tiny.classifier()
    proto.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
    return proto.SerializeToString()


def _unknown_operator() -> bytes:
    node = helper.make_node("Frobnicate", ["images"], ["out"], domain="com.example")
    proto = tiny.model([node], [1, 3, 4, 4], {"out": [1, 3, 4, 4]})
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (b"", "cannot load it"),
        (b"not a model", "cannot load it"),
        (tiny.classifier().SerializeToString()[:400], "cannot load it"),
        (_unknown_operator(), "Frobnicate"),
        (_strings(), "output 'names' is tensor(string), expected a tensor of numbers"),
        (_two_inputs(), "has 2 inputs, expected one image input"),
        (tiny.classifier(batch="n").SerializeToString(), "expected float32 or uint8 of fixed shape"),
    ],
)
def test_models_that_cannot_be_used(model: bytes, expected: str) -> None:
    with pytest.raises(SessionError) as caught:
        Session(model, SessionSettings(), "broken.onnx")
    assert str(caught.value).startswith("broken.onnx: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_spinning_and_threads_reach_the_runtime() -> None:
    options = _session(SessionSettings(intra_op_num_threads=2)).inference.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    spinning = _session(SessionSettings(allow_spinning=True)).inference.get_session_options()
    assert spinning.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert spinning.get_session_config_entry("session.force_spinning_stop") == "1"


def _golden_bundle(folder: Path, *, error: float, noise: np.ndarray | None = None) -> Bundle:
    """A real model in a bundle whose golden outputs are off by `error`, and whose quantization costs `noise`."""
    model = tiny.classifier(classes=2).SerializeToString()
    image = np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)
    outputs = Session(model, SessionSettings(), "m").run(Prepare(SPEC).normalise(image))
    buffer = io.BytesIO()
    noises = {} if noise is None else {"noise_0": noise}
    np.savez_compressed(buffer, image_0=image, output_0_0=outputs[0] + np.float32(error), **noises)
    files = {**FILES, "model.int8.ort": model, "golden.npz": buffer.getvalue()}
    manifest = make_manifest(files, side=16)
    if noise is not None:
        [variant] = manifest.variants
        golden = msgspec.structs.replace(variant.golden, noise_share=0.5)
        manifest = msgspec.structs.replace(manifest, variants=(msgspec.structs.replace(variant, golden=golden),))
    return Bundle.open(write_bundle(folder, manifest, files))


@pytest.mark.parametrize(("error", "fits"), [(0.009, True), (-0.009, True), (0.011, False), (float("nan"), False)])
def test_integers_that_were_rounded_to_the_other_side_are_no_fault(tmp_path: Path, error: float, fits: bool) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", error=error, noise=np.array([0.02], np.float32))
    if fits:
        assert Session.open(bundle).replay_golden(bundle, Prepare(SPEC)) == pytest.approx(0.009, rel=1e-3)
    else:
        with pytest.raises(IncompatibleError, match="golden input 0 gives other results here"):
            Session.open(bundle).replay_golden(bundle, Prepare(SPEC))


@pytest.mark.parametrize(
    "noise", [np.zeros(2, np.float32), np.zeros(1), np.array([np.inf], np.float32), np.array([np.nan], np.float32)]
)
def test_noise_that_is_not_one_number_a_row_is_refused(tmp_path: Path, noise: np.ndarray) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", error=0.0, noise=noise)
    with pytest.raises(BundleError, match="noise_0 is not one finite float32 a row of output 0"):
        Session.open(bundle).replay_golden(bundle, Prepare(SPEC))


def test_rows_are_judged_apart() -> None:
    """Scores that are wrong are not lost among boxes that are hundreds of pixels wide."""
    expected = np.zeros((1, 5, 40), np.float32)
    expected[0, :4] = 300
    noise = np.array([2, 2, 2, 2, 0.01], np.float32)
    golden = Golden(file="golden.npz", count=1, absolute=0.0, relative=0.0, noise_share=0.5)
    rounded = expected + np.array([0.9, -0.9, 0.9, 0.9, 0.004], np.float32).reshape(1, 5, 1)
    assert largest_difference([rounded], [expected], golden, [noise]) == pytest.approx(0.9, rel=1e-3)
    wrong = expected.copy()
    wrong[0, 4] += 0.006
    assert isinstance(largest_difference([wrong], [expected], golden, [noise]), str)


def test_one_golden_image_is_enough_where_all_were_seen(tmp_path: Path) -> None:
    """The second one is wrong, and not looked at."""
    folder = tmp_path / "a.edge"
    bundle = _golden_bundle(folder, error=0.0)
    with np.load(folder / "golden.npz") as arrays:
        first = dict(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **first, image_1=first["image_0"], output_1_0=first["output_0_0"] + 1)
    files = {name: (folder / name).read_bytes() for name in FILES} | {"golden.npz": buffer.getvalue()}
    manifest = make_manifest(files, side=16)
    variant = msgspec.structs.replace(
        bundle.manifest.variants[0], golden=msgspec.structs.replace(bundle.manifest.variants[0].golden, count=2)
    )
    other = Bundle.open(
        write_bundle(tmp_path / "b.edge", msgspec.structs.replace(manifest, variants=(variant,)), files)
    )
    session, prepare = Session.open(other), Prepare(SPEC)
    assert session.replay_golden(other, prepare, 1) == 0.0
    with pytest.raises(IncompatibleError, match="golden input 1"):
        session.replay_golden(other, prepare)


def test_golden_is_replayed(tmp_path: Path) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", error=0.0)
    assert Session.open(bundle).replay_golden(bundle, Prepare(SPEC)) == 0.0


def test_a_model_that_this_runtime_cannot_load_is_incompatible(tmp_path: Path) -> None:
    files = {**FILES, "model.int8.ort": b"\x18\0\0\0ORTM" + bytes(100)}
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", files=files))
    with pytest.raises(IncompatibleError, match=r"model\.int8\.ort: ONNX Runtime .* cannot load it"):
        Session.open(bundle)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    with pytest.raises(IncompatibleError, match=r"model\.int8\.ort: cannot load it: neither in ORT format nor ONNX"):
        Session.open(bundle)


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_golden_that_differs_refuses_the_device(tmp_path: Path, error: float) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", error=error)
    with pytest.raises(IncompatibleError, match="golden input 0 gives other results here"):
        Session.open(bundle).replay_golden(bundle, Prepare(SPEC))
