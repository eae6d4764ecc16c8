"""State dicts and archives: what does not belong to the model is named, and nothing in them is run."""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is the extra [torch]")
pytest.importorskip("onnxscript", reason="PyTorch's exporter is the extra [torch]")

import torch

from edge_sdk.errors import ModelError, UsageError
from edge_sdk_tools.importing.pytorch_weights import load_state_dict
from tests.support import torch_models
from tests.support.projects import MODELS, Code, is_documented, refusal

WEIGHTS = "weights.pth"
PREFIXED = "begins with 'module.', as torch.nn.DataParallel writes them"
NO_FILE = (
    "weights.pth: is no file of torch.save, expected a state dict; save the state dict alone: "
    "torch.save(model.state_dict(), 'state_dict.pth')"
)


def _lacking(path: Path) -> None:
    state = torch_models.Net().state_dict()
    torch.save({f"net.{key}": value for key, value in state.items()}, path)


def _larger(path: Path) -> None:
    torch.save(torch_models.four_classes().state_dict(), path)


def _cut(path: Path) -> None:
    torch.save(torch_models.Net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])


def _cut_old(path: Path) -> None:
    torch.save(torch_models.Net().state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: None, "weights.pth: no such file; expected a file of torch.save"),
        (lambda path: path.write_bytes(b""), NO_FILE),
        (lambda path: path.write_text("not weights"), NO_FILE),
        (lambda path: path.write_text("."), NO_FILE),  # a pickle that pops from an empty stack
        (lambda path: path.write_bytes(pickle.dumps({"weights": [1.0]})), NO_FILE),
        (lambda path: _other_archive(path), NO_FILE),
        (
            lambda path: path.mkdir(),
            "weights.pth: cannot be read: it is a folder, expected a regular file; expected a file of torch.save",
        ),
        (_cut, "weights.pth: lacks its end, expected a whole file of torch.save; copy it again"),
        (_cut_old, "weights.pth: cannot be read, and is probably damaged; copy it again, or save the state dict alone"),
        (
            lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path),
            "weights.pth: is a TorchScript archive, expected a state dict; import it alone: edge-sdk import pytorch ",
        ),
        (
            lambda path: torch.save(torch_models.Net(), path),
            "holds more than tensors (tests.support.torch_models.Net), ",
        ),
        (lambda path: torch.save(torch.zeros(3), path), "holds a Tensor, expected a state dict of tensors"),
        (
            lambda path: torch.save({"epoch": 3, "state_dict": {}}, path),
            "expected a state dict of tensors; save the state dict alone: torch.save(model.state_dict(), 'state_dict",
        ),
        (_lacking, "torch_models.py:net: lacks first.weight, norm.weight, norm.bias and 6 more; has net.first"),
        (_larger, "does not fit"),
        (_larger, "size mismatch for last.weight: copying a param with shape torch.Size([4, 8])"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, write: Callable[[Path], object], expected: str) -> None:
    write(tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert said.startswith(str(tmp_path / WEIGHTS))
    assert expected in said


@pytest.mark.parametrize("write", [torch.save, lambda code, path: path.write_bytes(pickle.dumps(code, 2))])
def test_weights_with_code_run_nothing(tmp_path: Path, write: Callable[[object, Path], object]) -> None:
    code = Code(tmp_path)
    write(code, tmp_path / WEIGHTS)
    refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert not code.ran.exists()


def paste(said: str) -> None:
    """Do what a message says to write, as somebody would who pastes it into a new Python."""
    exec(said[said.index("import torch; ") :], {})


def parallel(net: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.DataParallel(net)


@pytest.mark.parametrize("name", ["last.pth", "state_dict.pth"])
def test_the_prefix_of_data_parallel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / name
    torch.save(parallel(torch_models.Net()).state_dict(), path)
    before = path.read_bytes()
    said = refusal(tmp_path, f"{MODELS}:net", weights=path)
    begin = f"{path}: does not fit {MODELS}:net: every key {PREFIXED}; save it without: import torch; torch.save("
    assert said.startswith(begin)
    monkeypatch.chdir(tmp_path)
    paste(said)
    assert path.read_bytes() == before
    saved = "state_dict.pth" if name == "last.pth" else "state_dict_alone.pth"
    torch_models.Net().load_state_dict(torch.load(saved))
    if name == "last.pth":
        shown = said.removeprefix(f"{path}: ").replace(str(path), "last.pth")
        assert is_documented(shown.replace(str(MODELS), "net.py"))


def test_a_model_that_is_wrapped_itself_keeps_the_prefix(tmp_path: Path) -> None:
    module = parallel(torch_models.Net())
    torch.save({"epoch": 3, "model": module.state_dict()}, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match=r"save that: import torch; torch\.save\(torch\.load\(.*\)\['model'\], "):
        load_state_dict(module, tmp_path / WEIGHTS, "net.py:net")
    torch.save(module.state_dict(), tmp_path / WEIGHTS)
    load_state_dict(module, tmp_path / WEIGHTS, "net.py:net")


def _with_options(state: dict[str, torch.Tensor]) -> dict[str, object]:
    return {"options": argparse.Namespace(epochs=3), "weights": state}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("checkpoint", "place", "saved"),
    [
        (lambda net: {"epoch": 3, "model": net.state_dict()}, "a state dict is under 'model'; ", "['model'],"),
        (lambda net: {"epoch": 3, "net": net}, "a module is under 'net'; ", "['net'].state_dict(),"),
        (lambda net: _with_options(net.state_dict()), "a state dict is under 'weights'; ", "['weights'],"),
        (lambda net: {"run": {0: net.state_dict()}}, "a state dict is under 'run' > 0; ", "['run'][0],"),
        (lambda net: {"ema": net, "model": net}, "a module is under 'ema' or 'model'; ", "['ema'].state_dict(),"),
        (lambda net: net, "it is a module; ", ".state_dict(),"),
        (
            lambda net: {"net": parallel(net)},
            f"under 'net', where every key {PREFIXED}; ",
            "['net'].state_dict().items()",
        ),
        (
            lambda net: {"s": parallel(net).state_dict()},
            f"under 's', where every key {PREFIXED}; save that ",
            "['s'].items",
        ),
    ],
)
def test_the_state_dict_in_a_checkpoint_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Callable[[torch.nn.Module], object],
    place: str,
    saved: str,
    zipped: bool,
) -> None:
    torch.save(checkpoint(torch_models.Net()), tmp_path / WEIGHTS, _use_new_zipfile_serialization=zipped)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert said.startswith(f"{tmp_path / WEIGHTS}: holds ")
    assert place in said
    assert saved in said
    monkeypatch.chdir(tmp_path)
    paste(said)
    torch_models.Net().load_state_dict(torch.load("state_dict.pth"))


@pytest.mark.parametrize(
    "checkpoint", [lambda net: {"epoch": 3, "model": net.state_dict()}, lambda net: {"epoch": 3, "net": net}]
)
def test_the_messages_on_checkpoints_are_the_documented_ones(
    tmp_path: Path, checkpoint: Callable[[torch.nn.Module], object]
) -> None:
    path = tmp_path / "last.pth"
    torch.save(checkpoint(torch_models.Net()), path)
    said = refusal(tmp_path, f"{MODELS}:net", weights=path).removeprefix(f"{path}: ")
    assert is_documented(said.replace(str(path), "last.pth").replace("tests.support.torch_models.", "net."))


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """The file is named, but for what is not in it."""
    torch.save(torch_models.nan().state_dict(), tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert said == f"{tmp_path / WEIGHTS}: last.weight holds numbers that are not finite; train or load it again"
    torch.save(torch_models.Net().state_dict(), tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:mask", weights=tmp_path / WEIGHTS)
    assert said.startswith(f"{MODELS}:mask: mask holds numbers that are not finite")


def test_weights_beside_an_archive(tmp_path: Path) -> None:
    assert "--weights is for FILE.py:FUNCTION" in refusal(tmp_path, "a.pt2", UsageError, weights=Path("w.pth"))


def _archive(path: Path) -> None:
    torch.export.save(torch.export.export(torch_models.Net().eval(), (torch.zeros(1, 3, 16, 16),)), path)


def _cut_archive(path: Path) -> None:
    _archive(path)
    path.write_bytes(path.read_bytes()[:1000])


def _other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("something", b"else")


def _two_inputs(path: Path) -> None:
    x = torch.zeros(1, 3, 16, 16)
    torch.export.save(torch.export.export(torch_models.Two().eval(), (x, x)), path)


def _half(path: Path) -> None:
    module = torch_models.half().eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 16, 16, dtype=torch.float16),)), path)


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("m.pt2", lambda path: path.write_text("no archive"), "m.pt2: is not a torch.export archive, or truncated"),
        ("m.pt2", _cut_archive, "m.pt2: is not a torch.export archive, or truncated"),
        ("m.pt2", _other_archive, "m.pt2: is no torch.export archive, or damaged: "),
        ("m.pt2", _two_inputs, "m.pt2: takes 2 inputs (x, y), expected one image"),
        ("m.pt2", _half, "m.pt2: weights were float16 and cannot become float32; make the archive with float32"),
        ("m.pt", lambda path: path.write_text("no archive"), "m.pt: is not a TorchScript archive, or truncated"),
        ("m.pt", lambda path: torch.save(torch_models.Net().state_dict(), path), "m.pt: is no TorchScript archive, "),
        (
            "m.pt",
            lambda path: torch.save(torch_models.Net(), path),
            "edge-sdk import pytorch FILE.py:FUNCTION --weights",
        ),
    ],
)
def test_an_archive_that_is_none(tmp_path: Path, name: str, write: Callable[[Path], object], expected: str) -> None:
    write(tmp_path / name)
    assert expected in refusal(tmp_path, str(tmp_path / name))


@pytest.mark.parametrize("prefix", ["opaque_obj_", "custom_obj_"])
def test_an_archive_with_code_runs_nothing(tmp_path: Path, prefix: str) -> None:
    _archive(tmp_path / "m.pt2")
    code = Code(tmp_path)
    with zipfile.ZipFile(tmp_path / "m.pt2", "a") as archive:
        archive.writestr(f"m/data/constants/{prefix}0", pickle.dumps(code))
    said = refusal(tmp_path, str(tmp_path / "m.pt2"))
    assert f"holds a Python object (m/data/constants/{prefix}0), and loading that would run code" in said
    assert not code.ran.exists()


def test_example_inputs_with_code_run_nothing(tmp_path: Path) -> None:
    """torch.export.load falls back to unpickling anything, and takes the example inputs so."""
    _archive(tmp_path / "whole.pt2")
    code = Code(tmp_path)
    torch.save(code, tmp_path / "code")
    with zipfile.ZipFile(tmp_path / "whole.pt2") as whole, zipfile.ZipFile(tmp_path / "m.pt2", "w") as changed:
        inputs = next(
            name for name in whole.namelist() if name.endswith(("sample_inputs/model.pt", "example_inputs.pt"))
        )
        for name in whole.namelist():
            changed.writestr(name, (tmp_path / "code").read_bytes() if name == inputs else whole.read(name))
    refusal(tmp_path, str(tmp_path / "m.pt2"))
    assert not code.ran.exists()
