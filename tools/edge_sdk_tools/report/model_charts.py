"""The two charts of the model itself: which layers suffer from integers, and where its bytes are."""

from __future__ import annotations

from collections.abc import Sequence

from edge_sdk_tools.ledger import LayerNoise, LayerSensitivity, OperatorSize
from edge_sdk_tools.report.axis import Axis, axis_over
from edge_sdk_tools.report.bar_chart import Bar, BarChart, Row, Tone, bar_between
from edge_sdk_tools.report.words import decibels, octets, percent, points_alone

MOST_ROWS = 20
"""Layers that are shown at once; a network has fifty to a few hundred, and few of them matter."""

MOST_NOISY = 12
"""The same for noise that says nothing yet of the outputs."""

_TICKS = 6
_LEAST_LOSS = 0.005
_LEAST_NOISE = 0.01
_DRAWN_DB = (-40.0, 200.0)  # beyond it a bar says nothing more, and powers of ten overflow


def sensitivity(layers: Sequence[LayerSensitivity]) -> BarChart:
    """Layers by what their integers cost, the worst first: quality where it was measured, else noise."""
    by_loss = any(layer.loss is not None for layer in layers)
    harms = {id(layer): layer.loss if by_loss else _noise(layer.sqnr_db) for layer in layers}
    ordered = sorted(layers, key=lambda layer: (harms[id(layer)] is None, -(harms[id(layer)] or 0.0), layer.node))
    known = [harm for harm in harms.values() if harm is not None]
    axis = axis_over(known, least=_LEAST_LOSS if by_loss else _LEAST_NOISE)
    rows = tuple(_layer_row(axis, layer, harms[id(layer)], by_loss=by_loss) for layer in ordered)
    in_hundreds = Axis(100 * axis.low, 100 * axis.high)
    form, unit = ("{:g}", "points of quality lost") if by_loss else ("{:g}%", "noise over signal")
    return BarChart(
        "what each layer's integers cost", unit, rows[:MOST_ROWS], in_hundreds.ticks(_TICKS, form), axis.at(0.0),
        rows[MOST_ROWS:],
    )  # fmt: skip


def noise(layers: Sequence[LayerNoise]) -> BarChart:
    """Layers by the noise that they read, the worst first: that of activations above, that of weights below."""
    ordered = sorted(layers, key=lambda layer: (layer.sqnr_db is None, layer.sqnr_db or 0.0, layer.node))
    both = [_noise(db) for layer in layers for db in (layer.activation_sqnr_db, layer.weight_sqnr_db)]
    axis = axis_over([one for one in both if one is not None], least=_LEAST_NOISE)
    rows = tuple(_noise_row(axis, layer) for layer in ordered)
    in_percent = Axis(100 * axis.low, 100 * axis.high)
    return BarChart(
        "noise that each layer reads", "noise over signal", rows[:MOST_NOISY], in_percent.ticks(_TICKS, "{:g}%"),
        axis.at(0.0), rows[MOST_NOISY:],
    )  # fmt: skip


def sizes(operators: Sequence[OperatorSize]) -> BarChart:
    """Bytes of weights by type of operator, FP32 above INT8."""
    known = [size for op in operators for size in (op.fp32_bytes, op.int8_bytes) if size is not None]
    axis = axis_over([size / 1e6 for size in known], least=1e-6)
    rows = tuple(_size_row(axis, operator) for operator in operators)
    return BarChart("weights by type of operator", "MB", rows[:MOST_ROWS], axis.ticks(_TICKS), 0.0, rows[MOST_ROWS:])


def _layer_row(axis: Axis, layer: LayerSensitivity, harm: float | None, *, by_loss: bool) -> Row:
    work = percent(layer.macs_share)
    detail = f"{layer.operator}, {'integer' if layer.is_integer else 'left float'}" + (
        f", {work} of MACs" if work else ""
    )
    tone: Tone = "float" if not layer.is_integer else ("loss" if harm is None or harm >= 0 or not by_loss else "gain")
    bars = () if harm is None else (bar_between(axis, 0.0, harm, tone),)
    change = points_alone(None if layer.loss is None else -layer.loss)
    words = (change and f"{change} points") if by_loss else decibels(layer.sqnr_db)
    return Row(layer.node, detail, words, bars)


def _noise_row(axis: Axis, layer: LayerNoise) -> Row:
    work = percent(layer.macs_share)
    pairs: tuple[tuple[float | None, Tone, float], ...] = (
        (_noise(layer.activation_sqnr_db), "int8", 4.0),
        (_noise(layer.weight_sqnr_db), "float", 15.0),
    )
    bars = tuple(Bar(0.0, axis.at(harm), tone, y_px, 9.0) for harm, tone, y_px in pairs if harm is not None)
    detail = layer.operator + (f", {work} of MACs" if work else "")
    return Row(layer.node, detail, decibels(layer.sqnr_db), bars)


def _noise(sqnr_db: float | None) -> float | None:
    """Amplitude of the noise over that of the signal: 20 dB are 10 %."""
    if sqnr_db is None:
        return None
    low, high = _DRAWN_DB
    return float(10 ** (-min(max(sqnr_db, low), high) / 20))


def _size_row(axis: Axis, operator: OperatorSize) -> Row:
    pairs: tuple[tuple[int | None, Tone, float], ...] = (
        (operator.fp32_bytes, "fp32", 4.0),
        (operator.int8_bytes, "int8", 15.0),
    )
    bars = tuple(Bar(0.0, axis.at(size / 1e6), tone, y_px, 9.0) for size, tone, y_px in pairs if size is not None)
    texts = [octets(size) or "not measured" for size, _, _ in pairs]
    return Row(operator.operator, "", " → ".join(texts) if bars else None, bars)
