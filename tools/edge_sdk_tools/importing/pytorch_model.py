"""A PyTorch model, loaded and ready: how it is run, and what its outputs are called.

Owns the three forms that a model comes in, and the flattening of dicts and tuples of outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import torch

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.importing.fault import describe_fault
from edge_sdk_tools.importing.pytorch_archive import load_program, load_script
from edge_sdk_tools.importing.pytorch_function import call_function
from edge_sdk_tools.importing.pytorch_source import Form, PytorchSource
from edge_sdk_tools.importing.pytorch_weights import load_state_dict, settle_weights

_EXPECTED = "tensors, alone or in tuples, lists and dicts"


class TorchModel(msgspec.Struct, frozen=True, eq=False):
    """One model in evaluation mode, in float32 on the CPU.

    Attributes:
        where: what to call it in errors.
        folder: of its file; faults are looked for there.
        form: Python code, a torch.export archive or TorchScript.
        module: to run.
        program: what .pt2 archives hold, and exporters take; None for the other forms.
        notes: what was changed for the export, in words.
    """

    where: str
    folder: Path
    form: Form
    module: torch.nn.Module
    program: torch.export.ExportedProgram | None = None
    notes: tuple[str, ...] = ()

    def __call__(self, tensor: Tensor) -> dict[str, Tensor]:
        """Run it on one input.

        Args:
            tensor: float32, of model.toml's shape.

        Returns:
            The outputs by name, in order: `output`, or the keys and numbers of the dicts and tuples they lie in.

        Raises:
            ModelError: when forward raises, or returns other things than tensors.
        """
        try:
            with torch.no_grad():
                made = self.module(torch.from_numpy(tensor.copy()))  # a copy: forward may write to its input
        except (Exception, SystemExit) as cause:  # whatever users' code raises
            shape = "x".join(map(str, tensor.shape))
            raise ModelError(
                f"{self.where}: forward failed on an input of {shape} (size_wh, color and layout of model.toml): "
                f"{describe_fault(cause, self.folder)}"
            ) from cause
        outputs = dict(_flatten(made, ""))
        if not outputs:
            raise ModelError(f"{self.where}: forward returns nothing, expected {_EXPECTED}")
        return {name: self._to_array(name, value) for name, value in outputs.items()}

    def _to_array(self, name: str, value: object) -> Tensor:
        if not isinstance(value, torch.Tensor) or value.is_complex():
            kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ModelError(f"{self.where}: forward returns {name} of type {kind}, expected {_EXPECTED}")
        array: Tensor = value.detach().cpu().numpy()
        return array


def load_model(source: PytorchSource) -> TorchModel:
    """Load a model.

    Raises:
        ModelError: it cannot be loaded, or cannot be exported as it is.
    """
    return _LOADERS[source.form](source)


def _load_function(source: PytorchSource) -> TorchModel:
    module = call_function(source.path, source.function)
    if source.weights is not None:
        load_state_dict(module, source.weights, source.where)
    notes = settle_weights(module, source.where, source.weights)
    inputs = _required_inputs(module)
    if len(inputs) > 1:
        raise ModelError(
            f"{source.where}: forward takes {len(inputs)} inputs ({', '.join(inputs)}), expected one image"
        )
    return TorchModel(source.where, source.folder, source.form, module.eval(), notes=notes)


def _load_program(source: PytorchSource) -> TorchModel:
    program = load_program(source.path)
    module = program.module()
    notes = settle_weights(module, source.where)
    if notes:
        raise ModelError(
            f"{source.where}: {notes[0].replace('became', 'cannot become')}; make the archive with float32"
        )
    return TorchModel(source.where, source.folder, source.form, module, program)


def _load_script(source: PytorchSource) -> TorchModel:
    module = load_script(source.path)
    notes = settle_weights(module, source.where)
    return TorchModel(source.where, source.folder, source.form, module.eval(), notes=notes)


def _required_inputs(module: torch.nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]


def _flatten(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}_{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name or 'output'}_{index}")
    else:
        yield name or "output", value


_LOADERS = {"module": _load_function, "program": _load_program, "script": _load_script}
