"""Which differences of quality are noise, and that the comparison with golden outputs sees every value."""

import tracemalloc

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import judged_rows, largest_difference, row_count
from edge_sdk.bundle.manifest import (
    AGREEMENT,
    Agreement,
    Golden,
    Manifest,
    Quality,
    Rating,
    decode_manifest,
    encode_manifest,
    ratings,
)
from edge_sdk.core.errors import BundleError
from edge_sdk.tuning.candidates import Limits, Tuned, choose
from tests.support.bundles import make_manifest, make_variant
from tests.support.results import candidate, measurement, plan, quality, rated

FP32 = quality(0.800, -0.004, 0.004)
LOWER_BY_CHANCE = quality(0.795, -0.015, 0.005)
LOWER = quality(0.785, -0.028, -0.002)
HIGHER_BY_CHANCE = quality(0.805, -0.010, 0.020)
HIGHER = quality(0.815, 0.004, 0.026)


def _manifest(**qualities: Quality | None) -> Manifest:
    variants = (msgspec.structs.replace(make_variant(name), quality=q) for name, q in qualities.items())
    return msgspec.structs.replace(make_manifest(), variants=tuple(variants))


def _chosen(manifest: Manifest, p99_ms: dict[str, float], budget_ms: float = 100) -> tuple[str, str]:
    """Which variant runs where each takes so long, and why."""
    _, by_name = ratings(manifest)
    measured = [rated(candidate(name), by_name[name], ms, ms / 100) for name, ms in p99_ms.items()]
    chosen, reason = choose(measured, Limits(budget_ms))
    assert (chosen, reason) == choose(measured[::-1], Limits(budget_ms))
    return chosen.candidate.variant, reason


def test_a_faster_model_runs_where_it_is_as_good_within_noise() -> None:
    for fp32, int8, expected in (
        (FP32, LOWER_BY_CHANCE, "int8"),
        (FP32, LOWER, "fp32"),
        (FP32, HIGHER_BY_CHANCE, "int8"),
        # Of 20 images ten points may be noise, which does not make them noise.
        (FP32, quality(0.70, -0.3, 0.1), "fp32"),
        # At the edge of the interval.
        (FP32, quality(0.79, -0.02, 0.0), "int8"),
        (FP32, quality(0.79, -0.02, -0.001), "fp32"),
        # Bundles from before have no differences; nothing is known then.
        (quality(0.80), quality(0.799), "fp32"),
        # Not the same comparison: other images, another reference.
        (FP32, quality(0.795, -0.015, 0.005, images=400), "fp32"),
        (FP32, quality(0.795, -0.015, 0.005, reference="teacher"), "fp32"),
        (FP32, msgspec.structs.replace(LOWER_BY_CHANCE, fp32=0.79), "fp32"),
    ):
        chosen, reason = _chosen(_manifest(int8=int8, fp32=fp32), {"int8": 20, "fp32": 60})
        assert chosen == expected
        within_noise = "as good as fp32 within noise, and the fastest of these that keeps 100 ms"
        highest = "the highest quality of those that keep 100 ms"
        assert reason == (within_noise if chosen == "int8" and int8.value < fp32.value else highest)


def test_int8_that_is_the_slower_one_runs_only_where_it_is_better_for_certain() -> None:
    for int8, expected in (
        (LOWER_BY_CHANCE, "fp32"),
        (HIGHER_BY_CHANCE, "fp32"),
        (HIGHER, "int8"),
    ):
        chosen, reason = _chosen(_manifest(int8=int8, fp32=FP32), {"int8": 60, "fp32": 20})
        assert chosen == expected
        assert ("within noise" in reason) is (int8 is HIGHER_BY_CHANCE)


def test_two_beside_an_absent_float_model_are_equal_where_neither_is_told_apart_from_it() -> None:
    for int8, small, expected in (
        (HIGHER_BY_CHANCE, LOWER_BY_CHANCE, "small"),
        (HIGHER, LOWER_BY_CHANCE, "int8"),
        (LOWER_BY_CHANCE, LOWER, "int8"),
        # A point and a half above and below float each may be noise; three points between the two may not.
        (quality(0.815, -0.001, 0.031), quality(0.785, -0.031, 0.001), "int8"),
    ):
        assert _chosen(_manifest(int8=int8, small=small), {"int8": 60.0, "small": 20.0})[0] == expected


def test_agreement_has_no_noise() -> None:
    manifest = _manifest(int8=LOWER_BY_CHANCE, fp16=None, fp32=FP32)
    agreeing = [
        msgspec.structs.replace(v, agreement=a and Agreement("top1_agreement", a, a - 0.01, 1.0, 500, 500))
        for v, a in zip(manifest.variants, (0.998, 1.0, None), strict=True)
    ]
    manifest = msgspec.structs.replace(manifest, variants=tuple(agreeing))
    assert ratings(manifest) == (AGREEMENT, {"int8": Rating(0.998), "fp16": Rating(1.0), "fp32": Rating(1.0)})
    # One that gives the same answers everywhere is as good as float, as ever.
    assert _chosen(manifest, {"int8": 10, "fp16": 20, "fp32": 60})[0] == "fp16"


def test_what_is_not_the_best_by_its_figure_is_known_to_be_as_good() -> None:
    fp32 = rated(candidate("fp32"), Rating(0.8, like_reference=True), 60)
    int8 = rated(candidate("int8"), Rating(0.795, like_reference=True), 20)
    measured = [fp32, int8, measurement(candidate("a"), 9, 0.1, 0.7)]
    # At 50 ms int8 is the best of those that may run.
    for budget_ms, within_noise in ((100, [False, True, False]), (50, [False] * 3), (5, [False] * 3)):
        tuned = Tuned.of(plan(limits=Limits(budget_ms)), measured, seconds=1)
        assert [tuned.is_within_noise(one) for one in measured] == within_noise


def test_bundles_with_and_without_differences_open_and_impossible_ones_do_not() -> None:
    manifest = _manifest(int8=LOWER_BY_CHANCE)
    document = msgspec.json.decode(encode_manifest(manifest))
    assert decode_manifest(msgspec.json.encode(document), "here") == manifest
    found = document["variants"][0]["quality"]
    found["difference"]["low"] = -1.5
    with pytest.raises(BundleError, match=r"quality\.difference\.low"):
        decode_manifest(msgspec.json.encode(document), "here")
    del found["difference"]
    before = decode_manifest(msgspec.json.encode(document), "here").variants[0].quality
    assert before == msgspec.structs.replace(LOWER_BY_CHANCE, difference=None)


EXACT = Golden(file="golden.npz", count=1, absolute=0.0, relative=0.0)
LARGE = (1, 4, 50_000)  # more than is compared at once


def test_rows_are_counted_as_they_are_judged() -> None:
    for shape in ((1, 84, 100), (1, 10), (3,), (1, 1, 20, 30), (2, 5, 7)):
        output = np.zeros(shape, np.float32)
        assert row_count(output) == len(judged_rows(output)), shape


@pytest.mark.parametrize(("value", "place"), [(0.5, 0), (-0.5, 65_535), (np.nan, 65_536), (np.inf, 199_999)])
def test_one_wrong_value_anywhere_is_found(value: float, place: int) -> None:
    expected = np.zeros(LARGE, np.float32)
    got = expected.copy()
    got.reshape(-1)[place] = value
    assert largest_difference([expected], [expected.copy()], EXACT, []) == 0.0
    problem = largest_difference([got], [expected], EXACT, [])
    assert isinstance(problem, str)
    assert f"off by up to {abs(value):.3g} in 0.0% of its values" in problem


def test_what_is_allowed_is_measured_and_a_large_output_is_not_copied() -> None:
    golden = Golden(file="golden.npz", count=1, absolute=0.01, relative=0.1)
    expected = np.full((1, 84, 8400), 2, np.float32)
    got = expected.copy()
    got[0, 3, -1] = 2.2
    tracemalloc.start()
    try:
        assert largest_difference([got], [expected], golden, []) == pytest.approx(0.2, rel=1e-5)
        assert tracemalloc.get_traced_memory()[1] < expected.nbytes
    finally:
        tracemalloc.stop()
