"""The recipe search: what holds at once is taken, what is lost is bought back, and FP32 carries what nothing helps."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Agreement
from edge_sdk.bundle.model_spec import Gates
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import AccuracyGateError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.statistics import Figure, Interval, cross_validated
from edge_sdk_tools.graph.profile import host_saturates
from edge_sdk_tools.prove import parity
from edge_sdk_tools.prove.parity import Proof
from edge_sdk_tools.quantize.quantize import Recipe, first_recipe
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search import search
from edge_sdk_tools.search.gates import GateFailure, gate_failure_of, loss_of
from edge_sdk_tools.search.search import RecipeSearch, Search, chosen_among
from edge_sdk_tools.search.sensitivity import Layer, layers_of, rank_layers, with_inner_nodes
from edge_sdk_tools.search.variant import ModelVariant
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.models import uneven
from tests.support.program import Cli
from tests.support.projects import write_labelled, write_pictures, write_project
from tests.support.reports import evaluation_of, flawless_proof, model_variant


def _built(folder: Path, model: onnx.ModelProto, **arguments: Any) -> BuildResult:
    path = write_project(folder, model=model, pictures=16)
    data = write_labelled(folder / "data", model, 60)
    return build(path, "x86_64", folder / "a.edge", evaluation=[data], bundle_version=1, **arguments)


def test_what_holds_at_once_is_not_searched_for(tmp_path: Path) -> None:
    report = _built(tmp_path, tiny.classifier())
    first = first_recipe(load_target("x86_64"), reduce_range=host_saturates())
    assert [(trial.recipe, trial.held) for trial in report.candidates] == [(first.text, True)]
    assert (report.precision, report.fallback_reason) == ("int8", None)
    assert not any("may be noise" in doubt for doubt in report.warnings)


def test_layers_that_cost_quality_return_to_float(tmp_path: Path) -> None:
    report = _built(tmp_path, uneven())
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    assert report.precision == manifest.variants[0].precision == "int8"
    assert [trial.held for trial in report.candidates[:5]] == [False] * 5
    assert report.candidates[0].change.value < -0.1
    assert [trial.held for trial in report.candidates if trial.chosen] == [True]
    assert report.quality[0].value.value >= 0.99 * report.quality[0].reference.value
    assert report.measured_on == "60 images, by cross-validation"
    left = set(manifest.provenance.float_nodes)
    assert (bool(left & {"uneven", "even"}), "first" in left) == (True, False)
    assert manifest.variants[0].integer_mac_share == 1.0


def test_with_ranges_that_keep_quality_fewer_float_layers_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(running: RecipeSearch, recipes: list[Recipe]) -> list[ModelVariant]:
        [recipe] = recipes  # min-max holds with two layers or more
        failure = GateFailure("drop", "") if recipe.calibration != "min-max" or len(recipe.float_nodes) < 2 else None
        proof = _proof(len(recipe.float_nodes) / 10, 0, 0)
        running._trials.append(model_variant(proof, recipe=recipe, gate_failure=failure))
        return running._trials[-1:]

    monkeypatch.setattr(RecipeSearch, "_try", tried)
    monkeypatch.setattr(RecipeSearch, "_joins", lambda _: False)
    monkeypatch.setattr(RecipeSearch, "_float", lambda _, one, kept: msgspec.structs.replace(one, float_nodes=kept))
    running = RecipeSearch(SimpleNamespace(job_runner=SimpleNamespace(executor=SimpleNamespace(at_once=1))), None, None)
    for count in (1, 2, 4):
        running._try([Recipe(float_nodes=tuple("abcd"[:count]))])
    running._try_other_ranges(list("abcd"), [1, 2, 4])
    found = [(one.recipe.calibration, len(one.recipe.float_nodes)) for one in running._trials[3:]]
    assert found[found.index(("min-max", 4)) :] == [("min-max", 4), ("min-max", 2), ("min-max", 1)]


def test_layers_are_ranked_by_their_noise(tmp_path: Path) -> None:
    model = simplify(uneven(), tmp_path)
    noises = {"first": 0.2, "uneven": 0.15, "even": 1e-4}  # the last tells nothing
    runner = SimpleNamespace(run=lambda _noise, layers, **_: [noises.get(one.nodes[0], 0.0) for one in layers])
    ranked = rank_layers(SimpleNamespace(model=model, digest=""), runner, lambda _step, _done, _total: None)
    assert [one.nodes[0] for one in ranked] == ["first", "uneven"]


def test_a_layer_goes_back_to_float_with_its_activation_and_what_lies_before_it() -> None:
    """SiLU is two nodes, HardSwish may be four; float nodes alone read the slices of a focus layer, and their join."""
    proto = onnx.helper.make_model(
        onnx.parser.parse_graph(
            """graph (float[1] x) => (float[1] y) <float[1] start = {0}, float[1] end = {0}, float[1] w = {0}>
            { [even] even = Slice(x, start, end) [odd] odd = Slice(x, start, end)
              [join] joined = Concat<axis=1>(even, odd) [first] a = Conv(joined, w) [gate] gate = Sigmoid(a)
              [silu] b = Mul(a, gate) [pool] c = MaxPool<kernel_shape=[1,1]>(b) [second] d = Conv(c, w)
              [plus] p = Add(d, w) [clip] q = Clip(p) [times] r = Mul(d, q) [sixth] e = Div(r, w)
              [add] f = Add(b, e) [tail] y = Sigmoid(f) }"""
        )
    )
    first, second = ("first", "gate", "silu"), ("second", "plus", "clip", "times", "sixth")
    others = (("Slice", ("even", "odd")), ("Concat", ("join",)), ("MaxPool", ("pool",)), ("Add", ("add",)))
    assert layers_of(proto, {"tail"}) == [Layer("Conv", first), Layer("Conv", second), *(Layer(*one) for one in others)]
    assert with_inner_nodes(proto, first) == ("even", "odd", "join", *first)
    assert with_inner_nodes(proto, second) == second
    assert with_inner_nodes(proto, [*second, *first]) == ("even", "odd", "join", *first, "pool", *second)


def test_where_int8_gains_nothing_the_bundle_carries_fp32_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    # As if INT8 took twice the time: nothing here is slow enough to say so.
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: [20.0, 10.0])
    model, bundle = write_project(tmp_path, pictures=16), tmp_path / "a.edge"
    out = cli(0, "build", model, "--target", "x86_64", "-o", bundle).out
    assert "THE BUNDLE CARRIES FP32" in out
    assert "INT8 takes 20.00 ms and FP32 10.00 ms here, one thread: it gains" in out
    manifest = Bundle.open(bundle).manifest
    [one] = manifest.variants
    assert (one.precision, one.file, one.agreement, one.integer_mac_share) == ("fp32", "model.fp32.onnx", None, None)
    assert manifest.fallback_reason.startswith("INT8 takes 20.00 ms")
    assert (manifest.provenance.recipe, manifest.provenance.float_nodes) == ({}, ())
    found = evaluate(bundle, write_pictures(tmp_path / "data", 30, first=400), reference=model)
    assert found.agreement[0].value.value == 1
    # Whoever requires INT8 gets an error and no bundle.
    required = cli(3, "build", model, "--target", "x86_64", "-o", tmp_path / "b.edge", "--require-int8").err
    assert "INT8 takes 20.00 ms and FP32 10.00 ms here" in required.splitlines()[-1]
    assert not (tmp_path / "b.edge").exists()


def test_where_no_recipe_holds_fp32_is_carried_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_FLOAT", 0.0)  # a model with nothing left to return to float
    report = _built(tmp_path, uneven())
    assert len(report.candidates) == 5
    assert report.precision == "fp32"
    assert report.fallback_reason.startswith("none of 5 INT8 recipes holds; of the best: top-1 fell from 100.0% to")
    assert report.fallback_reason.endswith("or set gates.int8_max_drop_relative = 0.17 in model.toml")
    assert "leave out --require-int8" in refusal(AccuracyGateError, _built, tmp_path, uneven(), require_int8=True)
    assert Bundle.open(tmp_path / "a.edge").manifest.variants[0].precision == "fp32"


def _proof(value: float, low: float, high: float, *, fallen: float = 0.0, **changes: object) -> Proof:
    """The proof of a model with two gated figures: one as given, and one that fell for certain."""

    def figure(value: float, low: float, high: float) -> Figure:
        difference = Interval(value - 0.8, low, high)
        return Figure("top-1", Interval(value, 0, 1), Interval(0.8, 0, 1), difference, is_gated=True)

    figures = figure(value, low, high), figure(0.8 - fallen, -fallen - 0.001, -fallen)
    agreement = Figure("top-1 agreement", Interval(0.95, 0.9, 0.97))
    agrees = Agreement("top1_agreement", 0.95, 0.9, 0.97, 650, 650)
    given = {"agreement": agrees, "fp32_latency_ms": 10.0, "latency_ms": 4.0, **changes}
    given["evaluation"] = evaluation_of(figures, (agreement,))
    return msgspec.structs.replace(flawless_proof(ImageSet(())), **given)


def test_the_gravest_reason_is_the_one() -> None:
    for proof, kind, noise in (
        (_proof(0.80, -0.01, 0.01), None, False),
        (_proof(0.792, -0.02, 0.01), None, False),  # 1 % of .8
        (_proof(0.79, -0.03, 0.01), "drop", True),
        (_proof(0.78, -0.06, 0.02), "drop", False),  # more than twice the gate, whatever the interval says
        (_proof(0.80, -0.01, 0.01, fallen=0.03), "drop", False),  # another gated figure
        (_proof(0.79, -0.02, -0.001), "drop", False),
        (_proof(0.80, -0.01, 0.01, integer_mac_share=0.5), "float", False),
        (_proof(0.80, -0.01, 0.01, latency_ms=12.0), "slow", False),
        (_proof(0.80, -0.01, 0.01, latency_ms=10.1), None, False),
        (_proof(0.80, -0.01, 0.01, latency_ms=0.05, fp32_latency_ms=0.02), None, False),  # too small to be slower
        (_proof(0.79, -0.03, 0.01, latency_ms=12.0), "slow", False),
        (_proof(0.8, 0, 0, agreement=Agreement("top1_agreement", 0.7, 0.6, 0.8, 99, 99)), "agreement", False),
    ):
        gate_failure, first = (gate_failure_of(proof, Gates(), quality_first=one) for one in (False, True))
        assert (gate_failure.kind if gate_failure else None) == kind
        # More float layers may mend the quality of a model that has some, and only make its time worse.
        assert kind != "slow" or (first.kind == "slow") == (proof.evaluation.quality[0].drop == 0)
        if gate_failure is not None:
            assert bool(gate_failure.noise) is noise
            assert "expected" in gate_failure.line or kind == "slow"


def test_a_loss_has_a_word_whatever_the_gates_allow() -> None:
    for name, value, labelled, band in (
        ("top-1", 0.793, True, "ok"),
        ("F1", 0.78, True, "worse"),  # no gate judges it
        ("F1", 0.70, True, "bad"),
        ("detections matched (F1)", 0.96, False, "ok"),
        ("detections matched (F1)", 0.85, False, "worse"),
        ("detections matched (F1)", 0.84, False, "bad"),
    ):
        found, same = Interval(value, 0, 1), Interval(0.8, 0, 1)
        figure = Figure(name, found, same, Interval(value - 0.8, -1, -0.001)) if labelled else Figure(name, found)
        found_band, line = loss_of(evaluation_of((figure,), ()) if labelled else evaluation_of((), (figure,)))
        assert found_band == band
        assert line.startswith(name)
    words = "F1 96.0% (ok from 95%, bad below 85%)"
    sure, unsure = (evaluation_of((), (Figure("F1", Interval(0.96, low, 1)),)) for low in (0.9, 0.86))
    assert loss_of(unsure) == ("ok", f"{words}; that may be chance: as many other images may give 82%")
    assert loss_of(msgspec.structs.replace(sure, lost_class="'blue' is lost")) == ("bad", f"'blue' is lost; {words}")


def test_images_that_chose_nothing_may_take_the_choice_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for proof, carried, doubted in (
        (_proof(0.80, -0.01, 0.01), True, False),
        (_proof(0.78, -0.06, 0.02), True, True),  # a search would pass it over
        (_proof(0.75, -0.10, 0.01), False, False),
        (_proof(0.79, -0.02, -0.001), False, False),
    ):
        trial, claimed = model_variant(_proof(0.80, -0.01, 0.01)), [model_variant(proof)]
        monkeypatch.setattr(search, "make_variants", lambda *_, claimed=claimed: claimed)
        found = search.claim(Search((trial,), trial, ()), SimpleNamespace(spec=SimpleNamespace(gates=Gates())), None)
        assert found.int8.proof is proof
        assert (found.chosen is not None, found.doubt is not None) == (carried, doubted)
        if not carried:
            assert found.fallback_reason.startswith("on 650 images that chose nothing, top-1 fell from 80.0% to")


def test_each_half_of_few_images_measures_what_the_other_half_would_choose() -> None:
    held, lost, worse = _proof(0.80, -0.03, 0.01), _proof(0.70, -0.13, -0.08), _proof(0.60, -0.22, -0.18)
    halves = ((held, lost), (worse, held))  # of two recipes
    proofs = [msgspec.structs.replace(held, halves=tuple((p.evaluation, p.agreement) for p in two)) for two in halves]
    trials = tuple(model_variant(proof, recipe=Recipe(calibration=str(i))) for i, proof in enumerate(proofs))
    found = search.cross_validate(Search(trials, trials[0], ()), Gates(), elsewhere=False)
    figure = found.int8.proof.evaluation.quality[0]
    apart = math.sqrt(2) * 0.15  # on all images, what ships loses nothing
    low, high = -0.15 - math.hypot(0.03, 0.02, apart) / 2, -0.15 + math.hypot(0.02, 0.02, apart) / 2
    assert (figure.value.value, *msgspec.structs.astuple(figure.difference)) == pytest.approx((0.65, -0.15, low, high))
    assert found.doubt.startswith("by cross-validation on 650 images, top-1 fell from 80.0% to 65.0%, by")
    assert (found.chosen.recipe, found.fallback_reason) == (trials[0].recipe, None)
    once = Search(trials[:1], trials[0], ())
    assert search.cross_validate(once, Gates(), elsewhere=False) is once
    best = Figure("top-1", Interval(1.0, 0.9, 1.0), Interval(1.0, 0.9, 1.0), Interval(0.02, 0.0, 0.04))
    assert cross_validated(best, best, best).value == Interval(1.0, 0.92, 1.0)


@pytest.mark.parametrize(("names", "count"), [("ab", 2), ("a", 0)])
def test_halves_that_miss_a_figure_claim_nothing(monkeypatch: pytest.MonkeyPatch, names: str, count: int) -> None:
    figures = {name: Figure(name, Interval(0.8, 0.7, 0.9)) for name in "ab"}
    whole, half = (evaluation_of(tuple(figures[name] for name in of), ()) for of in ("ab", names))
    monkeypatch.setattr(parity, "summarise", lambda *_: half)
    monkeypatch.setattr(parity, "agreement_of", lambda *_: None)
    dataset = SimpleNamespace(truths=(), stratified_indices=lambda parts: [[0]] * parts)
    observed = SimpleNamespace(dataset=dataset, records=range(120), picked=lambda _places: None)
    assert len(parity._halves(observed, whole)) == count


def test_of_those_that_may_be_noise_the_closest_to_fp32_is_carried() -> None:
    """A figure .004 higher says nothing inside its noise; 5 points of agreement do."""
    proofs = [
        _proof(0.786, -0.03, 0.01, agreement=Agreement("top1_agreement", 0.93, 0.9, 0.97, 650, 650)),
        _proof(0.790, -0.03, 0.01, agreement=Agreement("top1_agreement", 0.88, 0.8, 0.97, 650, 650)),
        _proof(0.770, -0.04, -0.01, agreement=Agreement("top1_agreement", 0.99, 0.9, 1.0, 650, 650)),  # a loss, surely
    ]
    trials = [model_variant(proof, gate_failure=gate_failure_of(proof, Gates())) for proof in proofs]
    assert chosen_among(trials) is trials[0]
    doubt = Search(tuple(trials), trials[0], ()).doubt
    assert doubt.startswith("top-1 fell from 80.0% to 78.6%, by 1.8% of what FP32 has")
    assert "from 2.9 points on; give about 8,300 labelled images, which would show a loss of 1.0%" in doubt
    assert doubt.endswith("(of 2 such recipes the one that agrees most with FP32 is carried)")
