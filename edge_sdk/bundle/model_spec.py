"""Schema of model.toml, the user's description of a model for all commands.

`ModelSpec` and the Structs inside it are the schema; `load_model_spec` reads a file. A bundle's manifest uses the same
Structs to describe inputs and outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk.tasks.decoders import DecoderName, check_decoder, decoders_beside
from edge_sdk.tasks.spec import TaskSpec, check_finite

_FLOAT32_MAX = 3.4028234663852886e38

_Side = Annotated[int, Meta(ge=8, le=8192)]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="letters, digits, dot, underscore and hyphen, at most 100, the first a letter or digit",
    ),
]
_ModelFile = Annotated[str, Meta(description="the ONNX file, relative to model.toml")]
_LabelsFile = Annotated[
    str,
    Meta(
        description="a text file with one label a line, in output order, relative to model.toml, or coco80, imagenet1k "
        "or voc20"
    ),
]
_ImageFolder = Annotated[str, Meta(description="a folder of images, relative to model.toml")]
SizeWh = Annotated[tuple[_Side, _Side], Meta(examples=[[416, 416]])]


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """The section [input] of a model.toml: size, layout and normalisation of the model's one input.

    Attributes:
        size_wh: width and height in pixels.
        resize: `letterbox` keeps the aspect ratio and pads, `stretch` distorts, `center_crop` cuts out the centre.
        crop_fraction: for `center_crop`: which part of the largest centred region is used (ImageNet's usual .875).
        pad_value: for `letterbox`: level of the padding, 0-255.
        pad_anchor: where the picture lies in its padding.
        color: channel order of the model.
        mean: in the model's channel order, on 0-255 values: (x - mean) / std.
        std: standard deviations, as `mean`; never 0.
    """

    size_wh: SizeWh
    resize: Literal["letterbox", "stretch", "center_crop"] = "letterbox"
    crop_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    pad_value: Annotated[int, Meta(ge=0, le=255)] = 114
    pad_anchor: Literal["center", "top_left"] = "center"
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    @property
    def channels(self) -> int:
        """1 for GRAY, else 3."""
        return 1 if self.color == "GRAY" else 3

    @property
    def tensor_shape(self) -> tuple[int, int, int, int]:
        """Shape of the input tensor, batch 1."""
        width, height = self.size_wh
        return (1, self.channels, height, width) if self.layout == "NCHW" else (1, height, width, self.channels)

    def __post_init__(self) -> None:
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (self.channels, 3):
                raise ValueError(
                    f"{key} has {len(values)} values, expected {self.channels}, one a channel of {self.color}"
                )
            check_finite(key, values)
        if 0.0 in self.std:
            raise ValueError("std holds 0, expected numbers other than 0")
        farthest, narrowest = max(map(abs, self.mean)), min(map(abs, self.std))
        if max(farthest, *map(abs, self.std), (255 + farthest) / narrowest) > _FLOAT32_MAX:
            raise ValueError("mean and std make values of the picture that float32 does not hold")


class DataSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [data] of a model.toml: folders of images, relative to the file."""

    calibration: _ImageFolder | None = None
    evaluation: _ImageFolder | None = None


class TeacherSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [teacher] of a model.toml: the model from which this one was distilled."""

    model: Annotated[str, Meta(description="the teacher's model.toml, relative to this one")]
    labels: dict[str, str] = {}


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [gates] of a model.toml: the losses and the size beyond which a build fails."""

    int8_max_drop_relative: _Unit = 0.01
    int8_min_agreement: _Unit = 0.80
    distill_max_drop_points: Annotated[float, Meta(ge=0, le=100)] = 2.0
    distill_min_agreement: _Unit = 0.90
    max_size_mb: Annotated[float, Meta(gt=0)] | None = None


class BudgetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The latency budget in milliseconds, capture to outbox; it overrides the target's."""

    latency_ms: Annotated[float, Meta(gt=0, le=1e9)] | None = None

    def __post_init__(self) -> None:
        check_finite("latency_ms", [self.latency_ms] if self.latency_ms is not None else [])


class ModelSpec(TaskSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model.toml; docs/model-toml.md is the reference of its keys."""

    model: _ModelFile
    name: _Name
    decoder: Annotated[DecoderName, Meta(extra={"among": decoders_beside})]
    labels: _LabelsFile
    input: InputSpec
    data: DataSpec = DataSpec()
    teacher: TeacherSpec | None = None
    gates: Gates = Gates()
    budget: BudgetSpec = BudgetSpec()

    def __post_init__(self) -> None:
        check_decoder(self.task, self.decoder, self.detection)


def load_model_spec(path: Path) -> ModelSpec:
    """Read one model.toml and make its paths relative to the working folder; raise ModelError, or UsageError."""
    from edge_sdk.core.toml import read_toml  # a device reads manifests only

    if (path / "manifest.json").is_file():
        raise UsageError(f"{path}: is a bundle, expected a model.toml; `edge-sdk inspect {path}` shows what is in it")
    if path.suffix != ".toml":
        raise UsageError(f"{path}: expected a model.toml; `edge-sdk init MODEL.onnx` writes one")
    spec = read_toml(path, ModelSpec, ModelError)
    folder = path.parent
    return msgspec.structs.replace(
        spec,
        model=str(folder / spec.model),
        labels=str(folder / spec.labels),
        data=DataSpec(
            calibration=str(folder / spec.data.calibration) if spec.data.calibration else None,
            evaluation=str(folder / spec.data.evaluation) if spec.data.evaluation else None,
        ),
        teacher=TeacherSpec(str(folder / spec.teacher.model), spec.teacher.labels) if spec.teacher else None,
    )
