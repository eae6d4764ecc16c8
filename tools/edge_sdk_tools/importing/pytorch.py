"""PyTorch -> ONNX: load, observe, export, compare, write.

Owns the order of the steps, and what is said when the exported graph computes something else than the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sdk.errors import ModelError
from edge_sdk.target import load_target
from edge_sdk_tools.importing.comparison import Comparison, compare_model
from edge_sdk_tools.importing.import_report import ImportReport, OnProgress, make_report
from edge_sdk_tools.importing.model_file import load_destination, write_model
from edge_sdk_tools.importing.observation import Observation, observe
from edge_sdk_tools.importing.probe import Probe, make_probes, probe_images
from edge_sdk_tools.importing.pytorch_export import PREFERRED_OPSET, Exported, Order, exporters_for
from edge_sdk_tools.importing.pytorch_model import load_model
from edge_sdk_tools.importing.silence import silenced


def import_pytorch(
    source: str,
    model_toml: Path,
    *,
    weights: Path | None = None,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    dynamic_batch: bool = False,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> ImportReport:
    """Export a PyTorch model to the ONNX file that model.toml names.

    Args:
        source: `FILE.py:FUNCTION` (called without arguments, returns a torch.nn.Module), a .pt2 or a TorchScript .pt.
        model_toml: describes the input and names the file.
        weights: a state dict for FUNCTION's module.
        target_name: name or path of a target, whose ONNX Runtime limits the opset.
        images: folders of images to compare on; model.toml's calibration folder by default.
        dynamic_batch: leave the batch free.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it; what was at the file's place is still there.
    """
    spec = load_destination(model_toml)
    target = load_target(target_name) if target_name else None
    opset = min(PREFERRED_OPSET, target.max_opset) if target else PREFERRED_OPSET
    probes = make_probes(spec.input, probe_images(spec, images), batch=dynamic_batch)
    on_progress("load", 0, 1)
    with silenced():
        model = load_model(source, weights)
        observation = observe(model, probes)
    on_progress("load", 1, 1)
    on_progress("export", 0, 1)
    order = Order(model, probes[0].make(), observation.names, opset, dynamic_batch)
    exported, comparison, notes = _export(order, probes, observation)
    notes = (*model.notes, *notes)
    del model, order  # the gate loads the ONNX model again
    on_progress("export", 1, 1)
    on_progress("check", 0, 1)
    replaced = write_model(exported.proto, spec, target)
    on_progress("check", 1, 1)
    return make_report(
        spec,
        exported.proto,
        source=source,
        exporter=exported.exporter,
        outputs=comparison.outputs,
        probes=probes,
        warnings=notes,
        replaced=replaced,
    )


def _export(
    order: Order, probes: Sequence[Probe], observation: Observation
) -> tuple[Exported, Comparison, tuple[str, ...]]:
    """The first export that computes what the model computes, its figures, and what is to be known about it."""
    failures: list[str] = []
    for exporter in exporters_for(order.model, order.opset):
        made = exporter.export(order)
        tried = made if isinstance(made, str) else _compare(made, probes, observation)
        if isinstance(made, Exported) and isinstance(tried, Comparison):
            return made, tried, _notes(made, failures, len(probes))
        failures.append(f"{exporter.name}: {tried}")
    where = order.model.where
    if not failures:
        raise ModelError(
            f"{where}: a torch.export archive is exported with opset {PREFERRED_OPSET} or more, this target runs up to "
            f"{order.opset}; export from FILE.py:FUNCTION"
        )
    raise ModelError(f"{where}: cannot be exported; {'; '.join(reversed(failures))}")


def _compare(made: Exported, probes: Sequence[Probe], observation: Observation) -> Comparison | str:
    """The figures, or what is wrong and what to do about it."""
    data = made.proto.SerializeToString()
    try:
        found = compare_model(data, "the exported model", probes, observation.outputs, observation.names)
    except ModelError as cause:  # exporters do write what ONNX Runtime does not load
        return str(cause)
    if found.problem is None:
        return found
    if found.is_explained:
        return found.problem
    if not made.frozen_at:
        return f"{found.problem}: the exporter wrote another computation"
    return (
        f"{found.problem}: control flow that depends on data was frozen at export ({', '.join(made.frozen_at)}); "
        "use torch.where instead of if, and a fixed number of steps in loops"
    )


def _notes(made: Exported, failures: Sequence[str], probes: int) -> tuple[str, ...]:
    notes = [f"the model was traced, because the better exporter could not take it ({f})" for f in failures]
    if made.frozen_at:
        notes.append(
            f"forward takes numbers out of tensors at {', '.join(made.frozen_at)}, and the graph keeps what they were "
            f"at export; all {probes} inputs that were compared agree"
        )
    return tuple(notes)
