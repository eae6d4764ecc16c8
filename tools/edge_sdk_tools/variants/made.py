"""Made: one model that a bundle may carry, with all that was measured of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.bundle.manifest import (
    Agreement,
    BoardEstimate,
    Difference,
    Golden,
    InputTensor,
    Precision,
    Quality,
    Variant,
)
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.inference.session import Session
from edge_sdk_tools.convert import Converted
from edge_sdk_tools.evaluate import Evaluation, Figure
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.variants.request import size_text


class Made(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One model.

    Attributes:
        precision: of what it computes with.
        spec: model.toml, with this model's input size.
        is_resized: whether that is another size than model.toml's own.
        onnx: the model before conversion, by which golden outputs are computed.
        converted: the file that ships.
        tensor: what it takes; None where that is what `spec` says, in float32.
        timed: the file whose time is taken here: the same, unless that is written for another core.
        fp32: of the same size, loaded.
        proof: what was measured beside that.
        evaluation: beside FP32 of model.toml's own size.
        agreement: with the same.
        latency_ms: median on this machine, one thread, in turn with the others.
        latency_ratio: of that to FP32 of model.toml's own size.
        estimate: of its time on the target; None where nothing counted it.
        problem: why the bundle does not carry it; None when it does.
        doubt: what to know before believing it; None where there is nothing.
    """

    precision: Precision
    spec: ModelSpec
    is_resized: bool = False
    onnx: Path
    converted: Converted
    tensor: InputTensor | None = None
    timed: Path
    fp32: Session
    proof: Proof
    evaluation: Evaluation
    agreement: Agreement
    latency_ms: float
    latency_ratio: float
    estimate: BoardEstimate | None = None
    problem: str | None = None
    doubt: str | None = None

    @property
    def name(self) -> str:
        """Such as `int8` or `int8.320x320`."""
        return f"{self.precision}.{size_text(self.spec.input.size_wh)}" if self.is_resized else self.precision

    @property
    def figure(self) -> Figure:
        """What it is judged by: quality by labels, and without them agreement."""
        return next(iter((*self.evaluation.quality, *self.evaluation.agreement)))

    def promised(self, golden: Golden) -> Variant:
        """What the manifest says of it."""
        is_reference = self.precision == "fp32" and not self.is_resized
        return Variant(
            file=f"model.{self.name}{self.converted.model.suffix}",
            precision=self.precision,
            size_wh=self.spec.input.size_wh,
            golden=golden,
            operators=self.converted.operators,
            host_latency_ms=self.latency_ms,
            quality=self._quality(),
            agreement=None if is_reference else self.agreement,
            integer_mac_share=self.proof.integer_mac_share if self.precision.startswith("int8") else None,
            estimate=self.estimate,
            tensor=self.tensor,
        )

    def _quality(self) -> Quality | None:
        figure = next(iter(self.evaluation.quality), None)
        if figure is None or figure.reference is None:
            return None
        value = figure.value
        images = self.evaluation.images
        paired = figure.difference
        difference = None if paired is None else Difference("fp32", paired.value, paired.low, paired.high)
        return Quality(figure.name, value.value, value.low, value.high, figure.reference.value, images, difference)
