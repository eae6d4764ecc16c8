"""PyTorch -> ONNX: load, observe, export, compare, write, in this order.

PyTorch takes seconds to import, so a wrong path is reported before that; `pytorch_export` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sdk.core.errors import UsageError
from edge_sdk.core.files import LIST_BYTES
from edge_sdk_tools.importers.comparison import observe
from edge_sdk_tools.importers.plan import ImportReport, check_source, needed_by, plan_import, silenced
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent

_ARCHIVES = {".pt2": "a torch.export archive", ".pt": "a TorchScript archive", ".pth": "a TorchScript archive"}


def import_pytorch(
    source: str,
    model_toml: Path,
    *,
    weights: Path | None = None,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    dynamic_batch: bool = False,
    on_progress: OnProgress = silent,
) -> ImportReport:
    """Export a PyTorch model to the ONNX file that model.toml names.

    SOURCE is `FILE.py:FUNCTION` (called without arguments, returns a torch.nn.Module, into which the state dict
    `weights` is loaded), a .pt2 or a TorchScript .pt. `dynamic_batch` leaves the batch free. The other arguments are
    those of `plan_import`.
    """
    path, function = _find_source(source, weights)
    plan = plan_import(source, model_toml, target_name, images, batch=dynamic_batch)
    with needed_by("pytorch", "torch", "in the checkout: pip install -c constraints.txt '.[torch]'"):
        from edge_sdk_tools.importers.pytorch_export import PREFERRED_OPSET, Order, export, load_model
    with one_step(on_progress, "load"), silenced():
        model = load_model(path, function, weights)
        observation = observe(model, model.where, plan.probes)
    with one_step(on_progress, "export"):
        order = Order(model, plan.probes, observation, plan.limit_opset(PREFERRED_OPSET), dynamic_batch)
        made = export(order)
        notes = (*model.notes, *made.notes)
        del model, order  # the gate loads the ONNX model again
    with one_step(on_progress, "check"):
        return plan.finish(made.proto, "PyTorch", made.exporter, made.outputs, notes)


def _find_source(source: str, weights: Path | None) -> tuple[Path, str]:
    file, colon, function = source.rpartition(":")
    if colon and function.isidentifier():
        check_source(Path(file), "expected a Python file", most_bytes=LIST_BYTES)
        if weights is not None:
            check_source(weights, "expected a file of torch.save")
        return Path(file), function
    path = Path(source)
    if path.suffix == ".py":
        raise UsageError(f"{source}: expected FILE.py:FUNCTION, with a function that returns the model")
    if weights is not None:
        raise UsageError("--weights is for FILE.py:FUNCTION; an archive holds its own weights")
    if path.suffix not in _ARCHIVES:
        raise UsageError(f"{source}: expected FILE.py:FUNCTION, a .pt2 (torch.export) or a .pt (TorchScript)")
    check_source(path, f"expected {_ARCHIVES[path.suffix]}")
    return path, ""
