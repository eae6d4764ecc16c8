"""What a bundle's stream may fall back to."""

from __future__ import annotations

import msgspec
import pytest

from edge_sdk.bundle.manifest import Agreement, BoardEstimate, Manifest, Quality, Variant
from edge_sdk.tuning.degradation import Level, levels_of
from tests.support.bundles import make_manifest, make_variant


def _variant(
    name: str, ms: float, quality: float | None = None, agreement: float | None = None, side: int = 8
) -> Variant:
    return msgspec.structs.replace(
        make_variant(name, side=side),
        host_latency_ms=ms,
        quality=None if quality is None else Quality("top-1", quality, quality, quality, fp32=0.9, images=10),
        agreement=None if agreement is None else Agreement("top1_agreement", agreement, agreement, agreement, 10, 10),
    )


def _manifest(*variants: Variant) -> Manifest:
    return msgspec.structs.replace(make_manifest(), variants=variants)


def _names(manifest: Manifest) -> list[str]:
    return list(dict.fromkeys(rung.variant for rung in levels_of(manifest)))


def test_one_model_can_only_leave_out_frames() -> None:
    assert [str(rung) for rung in levels_of(make_manifest())] == [
        *("int8", "int8, 2 of 3 frames", "int8, every 2nd frame", "int8, every 3rd frame"),
        *("int8, every 4th frame", "int8, every 6th frame", "int8, every 8th frame"),
    ]


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        # The promised one first, then the faster ones, the slower of them first; nothing slower than it.
        (
            [_variant("int8", 10, 0.8), _variant("fp32", 30, 0.82), _variant("a", 3, 0.5), _variant("b", 6, 0.7)],
            ["int8", "b", "a"],
        ),
        # Started with FP32, INT8 is a step down.
        ([_variant("fp32", 30, 0.82), _variant("int8", 10, 0.8)], ["fp32", "int8"]),
        # b is beaten: a is faster and better.
        ([_variant("int8", 10, 0.8), _variant("b", 6, 0.5), _variant("a", 3, 0.6)], ["int8", "a"]),
        # Of two that take the same, the larger picture.
        ([_variant("int8", 10), _variant("a", 5, side=320), _variant("b", 5, side=416)], ["int8", "b"]),
        # Nine tenths of the time are no gain.
        ([_variant("int8", 10, 0.8), _variant("b", 9.5, 0.8), _variant("a", 3, 0.6)], ["int8", "a"]),
        # Without labels agreement with FP32 counts, and FP32 itself, which has none, is the measure.
        (
            [_variant("int8", 10, None, 0.9), _variant("fp32", 8, None, None), _variant("a", 9, None, 0.5)],
            ["int8", "fp32"],
        ),
        # Of the integer model nothing is known, and what was measured does not give way to it, as in tuning.
        ([_variant("fp32", 30), _variant("int8", 10), _variant("int8.a", 5, None, 0.5)], ["fp32", "int8.a"]),
        # Labels count only where all variants have them.
        (
            [_variant("fp32", 30, 0.8), _variant("int8.b", 10, 0.9, 0.4), _variant("int8.a", 5, None, 0.5)],
            ["fp32", "int8.a"],
        ),
    ],
)
def test_variants_stand_by_time_and_none_is_beaten(variants: list[Variant], expected: list[str]) -> None:
    assert _names(_manifest(*variants)) == expected


def test_frames_are_left_out_of_the_fastest_only() -> None:
    rungs = levels_of(_manifest(_variant("int8", 10, 0.8), _variant("a", 3, 0.6)))
    assert rungs[:3] == (Level("int8", 1, 10), Level("a", 1, 3), Level("a", 1.5, 3))
    assert {rung.variant for rung in rungs[1:]} == {"a"}


def test_a_fixed_variant_is_never_left() -> None:
    rungs = levels_of(_manifest(_variant("int8", 10, 0.8), _variant("a", 3, 0.6)), fixed=True)
    assert {rung.variant for rung in rungs} == {"int8"}
    assert rungs[-1].every == 8


def test_the_boards_own_times_count_where_all_have_them() -> None:
    def with_estimate(variant: Variant, ms: float) -> Variant:
        estimate = BoardEstimate(core="cortex-a76", million_instructions=1, latency_ms=ms, low_ms=ms, high_ms=ms)
        return msgspec.structs.replace(variant, estimate=estimate)

    fp32, int8 = _variant("fp32", 10, 0.8), _variant("int8", 12, 0.8)
    assert _names(_manifest(fp32, int8)) == ["fp32"]
    assert _names(_manifest(with_estimate(fp32, 90), int8)) == ["fp32"]
    assert _names(_manifest(with_estimate(fp32, 90), with_estimate(int8, 30))) == ["fp32", "int8"]
    assert levels_of(_manifest(with_estimate(fp32, 90), with_estimate(int8, 30)))[0].cost == 90
