"""Attempts: the exporters in their order, until one writes what computes the same.

Owns what is said when none does, and what is to be known about one that was not the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk.core.errors import ModelError
from edge_sdk_tools.importing.comparison import Comparison, compare_model
from edge_sdk_tools.importing.observation import Observation
from edge_sdk_tools.importing.probe import Probe
from edge_sdk_tools.importing.pytorch_export import (
    PREFERRED_OPSET,
    Exported,
    Exporter,
    Failure,
    Order,
    exporters_for,
)

_REMEDY = "use torch.where instead of if, fixed loop counts and shapes, and tensors instead of item()"


class Success(msgspec.Struct, frozen=True, eq=False):
    """An export that computes what the model computes.

    Attributes:
        exported: what was made.
        comparison: its figures.
        notes: what is to be known about it.
    """

    exported: Exported
    comparison: Comparison
    notes: tuple[str, ...] = ()


def export(order: Order, probes: Sequence[Probe], observation: Observation) -> Success:
    """Try the exporters.

    Raises:
        ModelError: when none succeeds.
    """
    failures: list[Failure] = []
    for exporter in exporters_for(order.model, order.opset):
        tried = _try(exporter, order, probes, observation)
        if isinstance(tried, Success):
            return msgspec.structs.replace(tried, notes=_notes(tried.exported, failures, len(probes)))
        failures.append(tried)
    if not failures:
        raise ModelError(
            f"{order.model.where}: a torch.export archive is exported with opset {PREFERRED_OPSET} or more, this "
            f"target runs up to {order.opset}; export from FILE.py:FUNCTION"
        )
    raise ModelError(f"{order.model.where}: {_explain(failures)}")


def _try(exporter: Exporter, order: Order, probes: Sequence[Probe], observation: Observation) -> Success | Failure:
    made = exporter.export(order)
    if isinstance(made, Failure):
        return made
    data = made.proto.SerializeToString()
    try:
        found = compare_model(data, "the exported model", probes, observation.outputs, observation.names)
    except ModelError as cause:  # exporters do write what ONNX Runtime does not load
        return Failure(exporter.name, str(cause))
    if found.problem is None:
        return Success(made, found)
    if found.is_explained or made.frozen_at:
        return Failure(exporter.name, found.problem, () if found.is_explained else made.frozen_at)
    return Failure(exporter.name, f"{found.problem}: the exporter wrote another computation")


def _explain(failures: Sequence[Failure]) -> str:
    """What is wrong and what to do about it; the exporters' own words last."""
    reasons = "; ".join(f"{failure.exporter}: {failure.reason}" for failure in reversed(failures) if failure.reason)
    places = next((failure.data_decides_at for failure in failures if failure.data_decides_at), ())
    if not places:
        return f"cannot be exported; {reasons}"
    details = f" ({reasons})" if reasons else ""
    return f"data-dependent control flow, shape or item() at {', '.join(places)}; {_REMEDY}{details}"


def _notes(made: Exported, failures: Sequence[Failure], probes: int) -> tuple[str, ...]:
    notes = [f"the model was traced, because {f.exporter} could not take it: {f.reason}" for f in failures if f.reason]
    if made.frozen_at:
        notes.append(
            f"forward takes numbers out of tensors at {', '.join(made.frozen_at)}, and the graph keeps what they were "
            f"at export; all {probes} inputs that were compared agree, but to be sure {_REMEDY}"
        )
    return tuple(notes)
