"""A model.toml for the models of torch_models.py, and what to check when an import of them is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.errors import EdgeError, ModelError
from edge_sdk_tools.importing.pytorch import import_pytorch

MODELS = Path(__file__).with_name("torch_models.py")
MODEL_TOML = """
model = "net.onnx"
name = "net"
task = "classification"
decoder = "logits"
labels = "labels.txt"

[input]
size_wh = [16, 16]
std = [255, 255, 255]
"""


def write_toml(folder: Path) -> Path:
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "model.toml").write_text(MODEL_TOML)
    return folder / "model.toml"


def write_target(folder: Path, *, max_opset: int) -> Path:
    text = (Path(__file__).parents[2] / "targets" / "arm64.toml").read_text()
    path = folder / "old.toml"
    path.write_text(
        text.replace('name = "arm64" ', 'name = "old" ').replace("max_opset = 21", f"max_opset = {max_opset}")
    )
    return path


def line_of(text: str) -> str:
    return f"torch_models.py:{next(i for i, line in enumerate(MODELS.read_text().splitlines(), 1) if text in line)}"


def refusal(folder: Path, source: str, kind: type[EdgeError] = ModelError, **options: object) -> str:
    """The error's text; the file that was there must still be, and nothing beside it."""
    toml = write_toml(folder)
    (folder / "net.onnx").write_bytes(b"an older model")
    before = sorted(folder.iterdir())
    with pytest.raises(EdgeError) as caught:
        import_pytorch(source, toml, **options)
    assert type(caught.value) is kind
    assert (folder / "net.onnx").read_bytes() == b"an older model"
    assert sorted(folder.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_documented(said: str) -> bool:
    """Whether docs/importing.md has this message, but for its figures."""
    text = (MODELS.parents[2] / "docs" / "importing.md").read_text()
    figure = re.compile(r"[0-9][0-9.e-]*")
    return f"`{figure.sub('#', said)}`" in figure.sub("#", text)


class Code:
    """What a pickle runs when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.ran = folder / "ran"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.ran,)
