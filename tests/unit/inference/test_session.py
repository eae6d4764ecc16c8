"""Sessions are bound once and equal to a bare run, replay golden inputs, and are shared while somebody has them."""

import functools
import gc
import io
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edge_sdk.bundle.bundle import Bundle, largest_difference
from edge_sdk.bundle.manifest import Golden
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import BundleError, HungRunError, IncompatibleError, OutputError, SessionError
from edge_sdk.core.frame import Classification, Frame
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import RunGuard, Session, SessionCache, Stages, guarded
from tests.support import bundles
from tests.support import models as tiny
from tests.support.connections import until
from tests.support.logs import refusal

SPEC = InputSpec(size_wh=(bundles.SIDE, bundles.SIDE))
MODEL = tiny.classifier(classes=2)


def _session(settings: SessionSettings | None = None) -> Session:
    return Session(tiny.classifier().SerializeToString(), settings or SessionSettings(), "tiny.onnx")


def _tensors(count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).random((count, 1, 3, bundles.SIDE, bundles.SIDE), np.float32)


def _frame(seed: int) -> Frame:
    return Frame(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8), 0, 0.0, 0, "camera")


def test_results_equal_a_bare_run_and_share_one_buffer() -> None:
    session, prepare, outputs = _session(), Prepare(SPEC), list[np.ndarray]()
    bare = ort.InferenceSession(tiny.classifier().SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(3):
        inferred = session(prepare(_frame(seed)))
        [expected] = bare.run(None, {"images": prepare.tensor})
        assert np.array_equal(inferred.outputs[0], expected)
        assert inferred.inference_ns > 0
        outputs.append(inferred.outputs[0])
    assert outputs[0] is outputs[1] is outputs[2]


def test_other_tensors_are_bound_anew_and_a_twin_shares_the_model_and_no_buffer() -> None:
    session = _session()
    twin = session.clone()
    a, b = _tensors()
    expected_a, expected_b = session.run(a)[0].copy(), session.run(b)[0].copy()
    assert not np.array_equal(expected_a, expected_b)
    [of_a], [of_b] = session.run(a), twin.run(b)
    assert twin.inference is session.inference
    assert np.array_equal([of_a, of_b], [expected_a, expected_b])


def test_outputs_of_changing_shape_are_read_too() -> None:
    text = "where = NonZero(images) out = Cast<to=1>(where)"
    model = tiny.parsed(text, {"out": [4, "found"]}, shape=[1, 1, 2, 2])
    session = Session(model.SerializeToString(), SessionSettings(), "m")
    assert session.run(np.array([[[[0, 1], [1, 1]]]], np.float32))[0].shape == (4, 3)
    assert session.output_shapes == [(4, "found")]


def test_a_tensor_that_does_not_fit_is_refused() -> None:
    for tensor, expected in (
        (np.zeros((1, 3, 8, 8), np.float32), "float32 (1, 3, 16, 16), got float32 (1, 3, 8, 8)"),
        (np.zeros((1, 3, 16, 16), np.float64), "got float64 (1, 3, 16, 16); give numpy.ascontiguousarray(it, numpy"),
        (np.full((1, 3, 16, 16), None), "got object (1, 3, 16, 16); give"),
        (np.zeros((1, 3, 16, 32), np.float32)[..., ::2], "is not C-contiguous; give numpy.ascontiguousarray(it"),
        ([[0.0]], "got list; give a numpy array"),
    ):
        session = _session()
        [good, _] = _tensors()
        before = session.run(good)[0].copy()
        for one in (session, session.clone()):  # the twin has run nothing yet
            said = refusal(SessionError, one.run, tensor)
            assert said.startswith("tiny.onnx: input 'images' is float32 (1, 3, 16, 16), got ")
            assert expected in said
            assert np.array_equal(one.run(good)[0], before)


def _strings() -> onnx.ModelProto:
    nodes = [helper.make_node("Cast", ["images"], ["names"], to=TensorProto.STRING)]
    return tiny.model(nodes, [1, 3, 4, 4], {"names": [1, 3, 4, 4]}, output_type=TensorProto.STRING)


def _two_inputs() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
    return proto


def test_models_that_cannot_be_used() -> None:
    for model, expected in (
        (b"", "cannot load it"),
        (tiny.classifier().SerializeToString()[:400], "cannot load it"),
        (_strings(), "output 'names' is tensor(string), expected a tensor of numbers"),
        (_two_inputs(), "has 2 inputs, expected one image input"),
        (tiny.classifier(batch="n"), "expected float32, uint8 or int8 of fixed shape"),
    ):
        data = model if isinstance(model, bytes) else model.SerializeToString()
        said = refusal(SessionError, Session, data, SessionSettings(), "broken.onnx")
        assert said.startswith("broken.onnx: ")
        assert expected in said


def test_settings_reach_the_runtime(tmp_path: Path) -> None:
    settings = SessionSettings(
        intra_op_num_threads=2, inter_op_num_threads=3, allow_spinning=True, arena=False, prepacking=False,
        graph_level="basic", graph_file=str(tmp_path / "graph.onnx"),
    )  # fmt: skip
    modes, levels = ort.ExecutionMode, ort.GraphOptimizationLevel
    for chosen, expected in (
        (SessionSettings(), (1, 1, modes.ORT_SEQUENTIAL, levels.ORT_ENABLE_ALL, True, "0")),
        (settings, (2, 3, modes.ORT_PARALLEL, levels.ORT_ENABLE_BASIC, False, "1")),
    ):
        found = _session(chosen).inference.get_session_options()
        threads = (found.intra_op_num_threads, found.inter_op_num_threads)
        kind = (found.execution_mode, found.graph_optimization_level, found.enable_cpu_mem_arena)
        assert (*threads, *kind, found.get_session_config_entry("session.intra_op.allow_spinning")) == expected
    assert found.get_session_config_entry("session.disable_prepacking") == "1"
    assert onnx.load(tmp_path / "graph.onnx").graph.node


def test_a_profile_shows_which_kernels_run_and_its_file_is_gone(tmp_path: Path) -> None:
    relus = dict[str, int]()
    for level in ("disabled", "extended"):
        session = _session(SessionSettings(profile_prefix=str(tmp_path / "profile"), graph_level=level))  # type: ignore[arg-type]
        session.run(_tensors()[0])
        relus[level] = sum(e.args["op_name"] == "Relu" for e in session.stop_profile() if e.is_kernel)
    assert relus["disabled"] > relus["extended"] == 0
    assert list(tmp_path.iterdir()) == []


def _golden_bundle(
    folder: Path, *, error: float = 0.0, second_error: float = 0.0, noise: np.ndarray | None = None
) -> Bundle:
    """A real model in a bundle whose golden outputs are off by errors, and whose quantization costs `noise`."""
    image = np.random.default_rng(1).integers(0, 256, (bundles.SIDE, bundles.SIDE, 3), np.uint8)
    [output] = Session(MODEL.SerializeToString(), SessionSettings(), "m").run(Prepare(SPEC).normalise(image))
    buffer, first, second = io.BytesIO(), output + np.float32(error), output + np.float32(second_error)
    arrays = {"image_0": image, "image_1": image, "output_0_0": first, "output_1_0": second}
    np.savez_compressed(buffer, **arrays, **({} if noise is None else {"noise_0": noise, "noise_1": noise}))
    path = bundles.write_real_bundle(folder, MODEL, extra={"golden.npz": buffer.getvalue()})
    [variant] = msgspec.json.decode((path / "manifest.json").read_bytes())["variants"]
    variant["golden"] |= {"count": 2, "absolute": 0.0} | ({} if noise is None else {"noise_share": 0.5})
    bundles.edit_manifest(path, variants=[variant])
    return Bundle.open(path)


@pytest.mark.parametrize(
    ("error", "noise", "fits"),
    [
        (0.0, None, True),
        (1e-3, None, False),
        (math.nan, None, False),
        # Integers that were rounded to the other side are no fault.
        (-0.009, 0.02, True),
        (0.011, 0.02, False),
        (math.nan, 0.02, False),
    ],
)
def test_other_golden_results_refuse_the_device(tmp_path: Path, error: float, noise: float | None, fits: bool) -> None:
    rows = None if noise is None else np.array([noise], np.float32)
    bundle = _golden_bundle(tmp_path / "a.edge", error=error, second_error=error, noise=rows)
    replay = functools.partial(Session.open(bundle).replay_golden, bundle, Prepare(SPEC))
    if fits:
        assert replay() == pytest.approx(abs(error), rel=1e-3)
    else:
        assert "golden input 0 gives other results here" in refusal(IncompatibleError, replay)


@pytest.mark.parametrize("noise", [np.zeros(2, np.float32), np.zeros(1), np.array([np.inf], np.float32)])
def test_noise_that_is_not_one_number_a_row_is_refused(tmp_path: Path, noise: np.ndarray) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", noise=noise)
    said = refusal(BundleError, Session.open(bundle).replay_golden, bundle, Prepare(SPEC))
    assert "noise_0 is not one finite float32 a row of output 0" in said


def test_one_golden_input_is_enough_where_all_were_seen(tmp_path: Path) -> None:
    bundle = _golden_bundle(tmp_path / "a.edge", second_error=1.0)
    session, prepare = Session.open(bundle), Prepare(SPEC)
    assert session.replay_golden(bundle, prepare, 1) == 0.0
    assert "golden input 1" in refusal(IncompatibleError, session.replay_golden, bundle, prepare)


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


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (b"\x18\0\0\0ORTM" + bytes(100), "model.int8.ort: ONNX Runtime "),
        (b"not a model", "model.int8.ort: cannot load it: neither in ORT format nor ONNX"),
    ],
)
def test_a_model_that_this_runtime_cannot_load_is_incompatible(tmp_path: Path, model: bytes, expected: str) -> None:
    bundle = Bundle.open(bundles.write_bundle(tmp_path / "a.edge", files={**bundles.FILES, "model.int8.ort": model}))
    cache = SessionCache()
    for _ in range(2):
        assert expected in refusal(IncompatibleError, cache.open, bundle)
    assert len(cache) == 0


# The cache: what is loaded is not loaded again, and what is in use is never dropped.


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return bundles.open_real_bundle(tmp_path / "a.edge", MODEL)


def test_the_same_model_is_loaded_once_and_shared_while_somebody_has_it(bundle: Bundle) -> None:
    cache = SessionCache()
    first, second = cache.open(bundle), cache.open(Bundle.open(bundle.path))
    assert (first is second, first.inference is second.inference) == (False, True)
    assert cache.open(bundle, SessionSettings(intra_op_num_threads=2)).inference is not first.inference
    assert len(cache) == 1
    del first
    assert cache.open(bundle).inference is second.inference
    del second  # what nobody has is gone
    assert len(cache) == 0


def test_stages_that_come_back_replay_nothing(bundle: Bundle) -> None:
    cache = SessionCache()
    first = Stages.open(bundle, cache=cache)
    assert first.session.is_proved
    (bundle.path / "golden.npz").unlink()  # whoever replays golden now fails
    second = Stages.open(bundle, cache=cache)
    assert second.session.inference is first.session.inference
    assert second.prepare is not first.prepare
    results = [stages(_frame(1)) for stages in (first, second)]
    assert all(isinstance(result, Classification) for result in results)
    assert np.array_equal(results[0].confidence, results[1].confidence)  # type: ignore[union-attr]


class _Watched(Bundle):
    """A bundle that notes how often it is read."""

    reads = 0

    def read(self, name: str) -> bytes:
        self.reads += 1
        return super().read(name)


def test_one_model_that_two_want_at_once_is_loaded_once(bundle: Bundle) -> None:
    given = bundle.path, bundle.manifest, bundle.manifest_bytes
    wanted, cache = [_Watched(*given, signed=bundle.signed) for _ in range(8)], SessionCache()
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(cache.open, wanted))
    assert sum(one.reads for one in wanted) == len({id(session.inference) for session in opened}) == 1


@pytest.mark.parametrize("left", [b"", b"[{", None], ids=["empty", "cut", "gone"])
def test_a_profile_that_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None) -> None:
    profile = tmp_path / "profile.json"
    session = _session()
    monkeypatch.setattr(session, "inference", SimpleNamespace(end_profiling=lambda: str(profile)))
    if left is not None:
        profile.write_bytes(left)
    said = refusal(OutputError, session.stop_profile)
    assert "profile.json: not the whole profile of a run; check the space on its" in said
    assert not profile.exists()


# Runs that come to no end: ended by the watchdog, and the session goes on.

BRIGHT, DARK = bundles.picture(255), bundles.picture(50)


def _hanging(limit_s: float = 0.5) -> Session:
    return Session(bundles.endless().SerializeToString(), SessionSettings(limit_s=limit_s), "endless.onnx")


def test_a_run_that_does_not_end_is_ended_and_the_next_one_works() -> None:
    session = _hanging()
    [before] = session.run(DARK)
    before = before.copy()
    for _ in range(2):
        said = refusal(HungRunError, session.run, BRIGHT)
        assert said == "endless.onnx: a run did not finish within 0.5 s and was ended"
        assert np.array_equal(session.run(DARK)[0], before)


def test_only_the_twin_that_hangs_is_ended() -> None:
    session, runs = _hanging(), 0
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(session.clone().run, BRIGHT)
        while not hanging.done():
            session.run(DARK)
            runs += 1
    assert isinstance(hanging.exception(), HungRunError)
    assert runs > 10


def test_the_guard_counts_its_own_looks_and_no_clock() -> None:
    """A process that was stopped for an hour is looked at once when it goes on: that is no hour of running."""
    guard, seen = RunGuard(limit_s=1.0), list[bool]()
    guard.steps = 1
    for _ in range(5):  # first seen: it may have begun just now
        guard.look(0.25)
        seen.append(guard.options.terminate)
    assert seen == [False] * 4 + [True]


def test_the_watchdog_ends_with_the_last_session() -> None:
    session = _hanging(limit_s=0.05)
    guard = weakref.ref(session._guard)
    assert "edge-watchdog" in {thread.name for thread in threading.enumerate()}
    del session
    gc.collect()
    assert guard() is None
    # Another session is watched whether the thread is about to leave or has left.
    again = guarded(0.05)
    again.steps = 1
    until(lambda: again.options.terminate)


def test_golden_raises_the_limit_to_what_the_board_needs(tmp_path: Path) -> None:
    bundle = bundles.open_real_bundle(tmp_path / "a.edge", bundles.endless())
    stages = Stages.open(bundle, SessionSettings(limit_s=0.2))
    limit_s = stages.session._guard.limit_s  # a golden input may have taken longer than a tenth of it
    assert limit_s >= 0.2
    said = refusal(HungRunError, stages, Frame.of(np.full((16, 16, 3), 255, np.uint8)))
    assert f"model.int8.ort: a run did not finish within {limit_s:g} s" in said
    session = Session.open(bundle, SessionSettings(limit_s=1e-9))
    session.replay_golden(bundle, Prepare.of(bundle.manifest))
    assert session._guard.limit_s > 1e-9
