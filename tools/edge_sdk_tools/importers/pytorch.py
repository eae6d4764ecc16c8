"""PyTorch -> ONNX: load, observe, export, compare, write.

This module runs the steps in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sdk_tools.importers.comparison import observe
from edge_sdk_tools.importers.plan import ImportReport, OnProgress, needed_by, plan_import, silenced
from edge_sdk_tools.importers.pytorch_source import find_source


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
    """
    found = find_source(source, weights)
    plan = plan_import(source, model_toml, target_name, images, batch=dynamic_batch)
    on_progress("load", 0, 1)
    # Not before: PyTorch takes seconds to load, and a wrong path shall be said at once.
    with needed_by("pytorch", "torch", "in the checkout: pip install -c constraints.txt '.[torch]'"):
        from edge_sdk_tools.importers.pytorch_export import PREFERRED_OPSET, Order, export
        from edge_sdk_tools.importers.pytorch_model import load_model
    with silenced():
        model = load_model(found)
        observation = observe(model, plan.probes)
    on_progress("load", 1, 1)
    on_progress("export", 0, 1)
    opset = plan.limit_opset(PREFERRED_OPSET)
    order = Order(model, plan.probes[0].make(), observation.names, opset, dynamic_batch)
    made = export(order, plan.probes, observation)
    notes = (*model.notes, *made.notes)
    del model, order  # the gate loads the ONNX model again
    on_progress("export", 1, 1)
    on_progress("check", 0, 1)
    report = plan.finish(made.exported.proto, "PyTorch", made.exported.exporter, made.comparison.outputs, notes)
    on_progress("check", 1, 1)
    return report
