"""Counts and estimates: classes of instructions, the plugin's record, the arithmetic and when there is no estimate."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from edge_sdk.target import Target, load_target
from edge_sdk_tools.arm_cost import Counts, estimate
from edge_sdk_tools.arm_cost.core import CORES
from edge_sdk_tools.arm_cost.counter import CPUS
from edge_sdk_tools.arm_cost.counts import count_classes
from edge_sdk_tools.arm_cost.cycles import CYCLES, WORST_ERROR
from edge_sdk_tools.arm_cost.instructions import CLASSES, classify

# Encodings as an assembler writes them.
ENCODINGS = {
    0x91000400: "integer",  # add x0, x0, #1
    0x8B010000: "integer",  # add x0, x0, x1
    0x9B017C00: "integer",  # mul x0, x0, x1
    0x94000001: "branch",  # bl
    0x54000041: "branch",  # b.ne
    0xB4000040: "branch",  # cbz
    0x37000040: "branch",  # tbnz
    0xD65F03C0: "branch",  # ret
    0xD503201F: "other",  # nop
    0xD4000001: "other",  # svc #0
    0xF9800000: "other",  # prfm pldl1keep, [x0]
    0xF9400000: "load",  # ldr x0, [x0]
    0xA9400400: "load",  # ldp x0, x1, [x0]
    0xF8200000: "load",  # ldadd x0, x0, [x0]
    0xF9000000: "store",  # str x0, [x0]
    0xA9000400: "store",  # stp x0, x1, [x0]
    0x3DC00000: "vector_load",  # ldr q0, [x0]
    0xAD400400: "vector_load",  # ldp q0, q1, [x0]
    0x4C407000: "vector_load",  # ld1 {v0.16b}, [x0]
    0x4D40C800: "vector_load",  # ld1r {v0.4s}, [x0]
    0x3D800000: "vector_store",  # str q0, [x0]
    0x4C007000: "vector_store",  # st1 {v0.16b}, [x0]
    0x1E212800: "scalar_float",  # fadd s0, s0, s1
    0x4E21CC00: "fmla",  # fmla v0.4s, v0.4s, v1.4s
    0x4F811000: "fmla",  # fmla v0.4s, v0.4s, v1.s[0]
    0x0E410C00: "fmla",  # fmla v0.4h, v0.4h, v1.4h
    0x4E21D400: "vector_float",  # fadd v0.4s, v0.4s, v1.4s
    0x4F819000: "vector_float",  # fmul v0.4s, v0.4s, v1.s[0]
    0x4E21D800: "vector_float",  # scvtf v0.4s, v0.4s
    0x4E819400: "sdot",  # sdot v0.4s, v0.16b, v1.16b
    0x4F81E000: "sdot",  # sdot v0.4s, v0.16b, v1.4b[0]
    0x6E819400: "udot",  # udot v0.4s, v0.16b, v1.16b
    0x6F81E000: "udot",  # udot v0.4s, v0.16b, v1.4b[0]
    0x4E819C00: "mixed_dot",  # usdot v0.4s, v0.16b, v1.16b
    0x4E81A400: "mixed_dot",  # smmla v0.4s, v0.16b, v1.16b
    0x0E618000: "smlal",  # smlal v0.4s, v0.4h, v1.4h
    0x2E21C000: "smlal",  # umull v0.8h, v0.8b, v1.8b
    0x0F412000: "smlal",  # smlal v0.4s, v0.4h, v1.h[0]
    0x4EA19C00: "smlal",  # mul v0.4s, v0.4s, v1.4s
    0x4EA18400: "vector_integer",  # add v0.4s, v0.4s, v1.4s
    0x4EA11C20: "vector_integer",  # mov v0.16b, v1.16b
    0x0F08A400: "vector_integer",  # sshll v0.8h, v0.8b, #0
    0x4F000400: "permute",  # movi v0.4s, #0
    0x4E040C00: "permute",  # dup v0.4s, w0
    0x4E813800: "permute",  # zip1 v0.4s, v0.4s, v1.4s
    0x6E014000: "permute",  # ext v0.16b, v0.16b, v1.16b, #8
    0x04000000: "other",  # SVE
}


def block(runs: int, *words: int) -> bytes:
    return struct.pack(f"=QI{len(words)}I", runs, len(words), *words)


def counted(cpu: str = "cortex-a76", **classes: int) -> Counts:
    by_class = {name: classes.get(name, 0) for name in CLASSES}
    return Counts("model.ort", cpu, "1.31.1", sum(by_class.values()), by_class)


@pytest.mark.parametrize(("word", "expected"), ENCODINGS.items(), ids=lambda value: str(value))
def test_an_instruction_belongs_to_its_class(word: int, expected: str) -> None:
    assert CLASSES[classify(np.array([word], np.uint32))[0]] == expected


def test_a_record_is_summed_by_class() -> None:
    record = block(3, 0x4E819400, 0xF9400000, 0x54000041) + block(2**33, 0x4E819400)
    by_class = count_classes(record)
    assert list(by_class) == list(CLASSES)
    assert {k: v for k, v in by_class.items() if v} == {"sdot": 3 + 2**33, "load": 3, "branch": 3}


def test_an_empty_record_counts_nothing() -> None:
    assert set(count_classes(b"").values()) == {0}


@pytest.mark.parametrize("length", [3, 4, 12, 14, 16])
def test_a_record_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut short"):
        count_classes(block(3, 0x4E819400, 0xF9400000)[:length])


def test_integer_share_is_of_multiplications() -> None:
    assert counted(load=10).integer_share == 0
    assert counted(fmla=30, load=100).integer_share == 0
    assert counted(fmla=30, sdot=5, udot=5, smlal=20, load=100).integer_share == 0.5
    assert counted(smlal=1).integer_share == 1


@pytest.mark.parametrize(
    ("board", "cpu", "millions", "multiplication", "expected_ms"),
    [
        ("raspberry_pi_5", "cortex-a76", 181, "fmla", 181 * 0.57 / 2.4),
        ("raspberry_pi_5", "cortex-a76", 60, "sdot", 60 * 0.59 / 2.4),
        ("raspberry_pi_4", "cortex-a72", 181, "fmla", 181 * 1.33 / 1.8),
        ("raspberry_pi_4", "cortex-a72", 120, "smlal", 120 * 0.84 / 1.8),
    ],
)
def test_the_arithmetic(board: str, cpu: str, millions: int, multiplication: str, expected_ms: float) -> None:
    estimated = estimate(counted(cpu, **{multiplication: millions * 10**6}), load_target(board))
    assert estimated is not None
    assert estimated.core == cpu
    assert estimated.million_instructions == millions
    assert estimated.latency_ms == pytest.approx(expected_ms)
    assert estimated.low_ms == pytest.approx(expected_ms / 1.35)
    assert estimated.high_ms == pytest.approx(expected_ms * 1.35)
    assert estimated.worst_error == WORST_ERROR == 1.35
    assert "estimate" in estimated.method
    assert "not measured" in estimated.method


def test_a_mix_of_precisions_costs_between_the_two() -> None:
    board = load_target("raspberry_pi_4")
    fp32, half, int8 = (estimate(counted("cortex-a72", fmla=f, smlal=100 - f, load=100), board) for f in (100, 50, 0))
    assert fp32 is not None
    assert half is not None
    assert int8 is not None
    assert half.latency_ms == pytest.approx((fp32.latency_ms + int8.latency_ms) / 2)


def other(board: str, **changes: object) -> Target:
    return msgspec.structs.replace(load_target(board), **changes)


def test_without_a_clock_or_a_known_core_there_is_no_estimate() -> None:
    assert estimate(counted(), other("raspberry_pi_5", clock_mhz=0)) is None
    assert load_target("jetson_orin_nano").cpu not in CYCLES
    jetson = other("jetson_orin_nano", clock_mhz=1500)
    assert estimate(counted(jetson.cpu), jetson) is None


@pytest.mark.parametrize("board", ["raspberry_pi_4", "arm64"])
def test_counts_of_another_core_are_refused(board: str) -> None:
    with pytest.raises(ValueError, match="counted on cortex-a76"):
        estimate(counted(), load_target(board))


def test_every_core_that_is_counted_has_a_table_and_a_board() -> None:
    assert set(CPUS) == {core.model for core in CORES} == set(CYCLES)
    clocks = {load_target(name).cpu: load_target(name).clock_mhz for name in ("raspberry_pi_4", "raspberry_pi_5")}
    assert clocks == {"cortex-a72": 1800, "cortex-a76": 2400}


def test_only_one_core_has_the_dot_product() -> None:
    assert [core.model for core in CORES if "asimddp" in core.cpuinfo()] == ["cortex-a76"]
    assert all(core.cpuinfo().count("processor\t") == 4 for core in CORES)
