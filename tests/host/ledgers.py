"""Ledgers for tests: one with everything in it, and edges of it."""

from __future__ import annotations

import cv2
import msgspec
import numpy as np

from edge_sdk.manifest import BoardEstimate
from edge_sdk_tools.chain import OutputChange, StepKind
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import (
    Candidate,
    LayerNoise,
    LayerSensitivity,
    Ledger,
    Measure,
    OperatorSize,
    Step,
    VariantRow,
    Verdict,
    WorstImage,
)


def jpeg(size: int = 16) -> bytes:
    return cv2.imencode(".jpg", np.full((size, size, 3), 90, np.uint8))[1].tobytes()


def top1(value: float) -> Measure:
    return Measure("top-1", Interval(value, value - 0.03, value + 0.03))


def change(value: float, reach: float = 0.02) -> Interval:
    return Interval(value, value - reach, value + reach)


def variant(name: str, **changes: object) -> VariantRow:
    row = VariantRow(
        name=name,
        precision="int8",
        size_wh=(320, 320),
        model_mb=4.99,
        latency_ms=5.9,
        latency_ratio=0.62,
        metric="top-1",
        value=0.829,
        change=change(-0.01),
        integer_mac_share=1.0,
        estimate=None,
        problem=None,
        doubt=None,
    )
    return msgspec.structs.replace(row, **changes)


def layers(count: int) -> tuple[LayerSensitivity, ...]:
    return tuple(
        LayerSensitivity(
            node=f"node_{index}",
            operator="Conv",
            sqnr_db=10.0 + index % 40,
            macs_share=1 / count,
            is_integer=index % 7 > 0,
        )
        for index in range(count)
    )


def noisy_layers(count: int) -> tuple[LayerNoise, ...]:
    return tuple(
        LayerNoise(
            node=f"noisy_{index}",
            operator="Conv",
            activation_sqnr_db=40.0 + index % 9,
            weight_sqnr_db=None if index == 3 else 35.0 + index % 5,
            sqnr_db=30.0 + index,
            macs_share=1 / count,
        )
        for index in range(count)
    )


def output_change(against: StepKind, own: float, total: float) -> OutputChange:
    return OutputChange(
        against=against,
        images=8,
        inputs=8,
        identical=own == 0,
        largest=own,
        relative_error=own,
        total_error=total,
        cosine=1 - own,
        top1_agreement=1.0,
    )


def empty_ledger() -> Ledger:
    return Ledger(
        name="tiny", target="arm64", task="classification", data="photographs", verdict=Verdict(carries=None, why="no")
    )


def full_ledger() -> Ledger:
    """Every field has something in it; one step and one candidate were not measured."""
    return Ledger(
        name="tiny",
        target="arm64",
        task="classification",
        data="photographs",
        images=488,
        verdict=Verdict(
            carries="int8", why="INT8 holds the gate", next_steps=("more images",), least_change=-0.01,
            latency_budget_ms=100.0,
        ),
        steps=(
            Step(kind="source", name="PyTorch", what="tiny.pth"),
            Step(kind="teacher", name="teacher", what="large", size_mb=40.0, quality=top1(0.85), latency_ratio=2.5),
            Step(
                kind="fp32", name="FP32", what="tiny.onnx", size_mb=18.5, quality=top1(0.83), change=change(-0.02),
                latency_ratio=1.0, peak_memory_mb=141.0,
                outputs=OutputChange(against="source", images=16, inputs=24, largest=1.2e-6, largest_share=1e-7),
            ),
            Step(
                kind="simplified", name="simplified", size_mb=18.0, latency_ratio=0.0,
                outputs=output_change("fp32", 0.0, 0.0),
            ),
            Step(
                kind="int8", name="INT8", what="QDQ", size_mb=5.0, quality=top1(0.825), agreement=top1(0.96),
                change=change(-0.005), against="fp32", latency_ratio=0.54,
                outputs=output_change("simplified", 0.09, 0.09),
            ),
            Step(
                kind="ort", name="ORT file", size_mb=4.99, quality=top1(0.825), change=change(0.0, 0.0),
                latency_ratio=0.53, peak_memory_mb=88.4, outputs=output_change("int8", 0.01, 0.0907), shipped=True,
            ),
            Step(kind="arm", name="ARM", left_out="not run: too large"),
        ),
        candidates=(
            Candidate(
                recipe="percentile", change=change(-0.005), latency_ratio=0.53, board_minstructions=79.0, held=True,
                chosen=True,
            ),
            Candidate(recipe="minmax", change=change(-0.05), latency_ratio=0.52, held=False, why="lost 5.0 points"),
            Candidate(recipe="entropy", held=False, why="stopped early"),
        ),
        sensitivity=layers(30),
        local_noise=noisy_layers(30),
        sizes=(OperatorSize("Conv", 13_400_000, 3_690_000), OperatorSize("Clip", 8, 0), OperatorSize("Gemm", 9, None)),
        worst_images=(
            WorstImage(image="a.jpg", truth="cat", fp32="cat 90%", int8="dog 51%", picture=jpeg()),
            WorstImage(image="b.jpg", truth=None, fp32="nothing", int8="dog 30%"),
        ),
        variants=(variant("int8"), variant("int8.64x64", problem="it is too slow"), variant("fp32", doubt="noise")),
        boards=(
            BoardEstimate("cortex-a76", million_instructions=79.0, latency_ms=15.2, low_ms=13.1, high_ms=17.7),
        ),
        warnings=("few images",),
        command=("edge-sdk", "build", "model.toml", "--calibration", "my photographs"),
        libraries={"onnxruntime": "1.31.1", "numpy": "2.4.6"},
        created_at="2026-11-21T12:00:00Z",
        host_cpu="a CPU",
    )  # fmt: skip
