"""VariantRow: what is said of one model of a bundle, or of one that was left out."""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.manifest import BoardEstimate, Precision
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger.sound import settle


class VariantRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        name: such as `int8` or `int8.320x320`; `edge-sdk run --variant` takes it.
        precision, size_wh: as in the manifest.
        model_mb: its file, MB of 1e6 bytes.
        latency_ms: median on this machine, one thread, in turn with the others.
        latency_ratio: of that to FP32 at model.toml's size.
        metric, value: by labels, or else agreement with FP32 at model.toml's size; 0-1.
        change: value less FP32's at model.toml's size, paired; of agreement, value less 1.
        integer_mac_share: as in the manifest; None for float.
        estimate: of its time on the target; None where nothing counted it.
        problem: why the bundle does not carry it; None when it does.
        doubt: what to know before believing it; None where there is nothing.
    """

    name: str
    precision: Precision
    size_wh: tuple[int, int]
    model_mb: float
    latency_ms: float
    latency_ratio: float
    metric: str
    value: float
    change: Interval
    integer_mac_share: float | None
    estimate: BoardEstimate | None
    problem: str | None
    doubt: str | None

    def __post_init__(self) -> None:
        settle(self)
