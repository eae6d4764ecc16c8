"""What integers cost layer by layer: at the outputs of the model, and at the layer itself."""

from __future__ import annotations

import msgspec

from edge_sdk_tools.ledger.sound import settle


class LayerSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer loses when it computes in integers.

    Attributes:
        node: its name.
        operator: its type.
        sqnr_db: signal to quantization noise of the model's outputs, decibels, when this layer alone computes in
            integers; None where it was not measured, or not a bit differs.
        loss: of the whole model's quality, when this layer alone computes in integers, -1 to 1; below 0 it gained.
        macs_share: of the model's multiply-accumulates, 0-1.
        is_integer: it computes in integers; False for one that was left float.
    """

    node: str
    operator: str
    sqnr_db: float | None = None
    loss: float | None = None
    macs_share: float | None = None
    is_integer: bool

    def __post_init__(self) -> None:
        settle(self)


class LayerNoise(msgspec.Struct, frozen=True, kw_only=True):
    """How much quantization disturbs what one layer reads; what that does to the outputs is not known from it.

    Attributes:
        node: its name.
        operator: its type.
        activation_sqnr_db: signal to quantization noise of its input on the calibration images, decibels; None where
            that is not quantized, or exact.
        weight_sqnr_db: the same of its weights.
        sqnr_db: of both together.
        macs_share: of the model's multiply-accumulates, 0-1.
    """

    node: str
    operator: str
    activation_sqnr_db: float | None = None
    weight_sqnr_db: float | None = None
    sqnr_db: float | None = None
    macs_share: float | None = None

    def __post_init__(self) -> None:
        settle(self)
