"""Attempt: one model made and measured, all but its time; a job that may be done anywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import onnx

from edge_sdk.core.errors import OutputError
from edge_sdk_tools.candidates import key_of
from edge_sdk_tools.convert import Converted, convert
from edge_sdk_tools.disk import is_full
from edge_sdk_tools.float_file import float_file
from edge_sdk_tools.prove import Measured, measure
from edge_sdk_tools.quantize import Recipe, quantize
from edge_sdk_tools.search.setting import Setting


class Attempt(msgspec.Struct, frozen=True):
    """What to make.

    Attributes:
        recipe: how to quantize; None for the float model as it is.
        ranges: low and high of every activation, by its name.
    """

    recipe: Recipe | None
    ranges: dict[str, tuple[float, float]] = {}

    def key(self, setting: Setting) -> str:
        """Names it by all that decides what comes of it."""
        return key_of("attempt", setting.digest, self)


class Made(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        onnx: the model before conversion.
        file, suffix: what a bundle would carry, and how its name ends.
        operators: as `Converted` has them.
        float_nodes, macs, has_integers: as `Quantized` has them.
        measured: all but its time.
    """

    onnx: bytes
    file: bytes
    suffix: str
    operators: tuple[str, ...]
    float_nodes: tuple[str, ...]
    macs: dict[str, int]
    has_integers: bool
    measured: Measured

    def unpack(self, folder: Path) -> tuple[Path, Converted]:
        """Write the files into a folder, which must exist: the model before conversion and after it.

        Raises:
            OSError: the disk is full.
        """
        model, carried = folder / "model.onnx", folder / f"carried{self.suffix}"
        model.write_bytes(self.onnx)
        carried.write_bytes(self.file)
        return model, Converted(carried, self.operators)


def make(attempt: Attempt, setting: Setting) -> Made:
    """Quantize, convert and measure.

    Raises:
        EdgeError: as these do.
        OutputError: the disk is full, or refuses.
    """
    setting.check_here(attempt.recipe)
    try:
        with tempfile.TemporaryDirectory(prefix="attempt-", dir=setting.folder) as name:
            return _make(attempt, setting, Path(name))
    except OSError as cause:
        why = "no space left on the disk" if is_full(cause) else cause.strerror or str(cause)
        where = setting.folder or tempfile.gettempdir() if is_full(cause) else cause.filename
        raise OutputError(f"{where}: {why}; nothing was changed") from cause


def _make(attempt: Attempt, setting: Setting, folder: Path) -> Made:
    path = folder / "model.onnx"
    float_nodes: tuple[str, ...] = ()
    macs: dict[str, int] = {}
    has_integers = False
    if attempt.recipe is None:
        onnx.save(setting.simplified.proto, path)
        converted = float_file(path, setting.target, folder)
    else:
        quantized = quantize(setting.simplified, attempt.ranges, attempt.recipe, path)
        float_nodes, macs, has_integers = quantized.float_nodes, quantized.macs, quantized.has_integers
        converted = convert(path, setting.target, folder)
    measured = measure(
        setting.spec, setting.fp32, macs, converted, setting.evaluation, setting.on_progress, setting.threads
    )
    return Made(
        path.read_bytes(),
        converted.model.read_bytes(),
        converted.model.suffix,
        converted.operators,
        float_nodes,
        macs,
        has_integers,
        measured,
    )
