"""What `import pytorch` refuses is one line that says what, where and what to do; nothing is written or run."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from edge_sdk_tools.importers.pytorch import import_pytorch
from tests.support.absent import Lazy, needs_torch
from tests.support.configs import write_files
from tests.support.projects import (
    MODELS,
    Code,
    is_documented,
    line_of,
    refusal,
    write_pictures,
    write_target,
    write_toml,
)

torch, torch_models = Lazy("torch"), Lazy("tests.support.torch_models")
pytestmark = [
    needs_torch(),
    pytest.mark.long,
]  # half a minute of PyTorch's exporters; what is accepted is shown by test_import_pytorch


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("trainin", "torch_models.py: has no function 'trainin'; it has "),
        ("argument", "argument: is called without arguments: missing a required argument: 'n'; give them defaults"),
        ("text", "text: returned str, expected a torch.nn.Module"),
        ("raises", f"raises: failed: KeyError: 'backbone' ({line_of('backbone')})"),
        ("fails", "forward failed on an input of 1x3x16x16 (size_wh, color and layout of model.toml): RuntimeError: "),
        ("leaves", f"SystemExit: 3 ({line_of('sys.exit(3)')})"),
        ("two", "two: forward takes 2 inputs (x, y), expected one image"),
        ("words", "words: forward returns output_1 of type str, expected tensors, alone or in tuples, lists and dicts"),
        ("random", "random: output 'output' differs between two runs on input "),
        ("changing", "has outputs bright on input 'ones' and dark on 'zeros', expected the same ones always"),
        ("meta", "meta: first.weight is on the device meta and has no data; load weights into the model"),
        ("nan", "nan: last.weight holds numbers that are not finite"),
        ("hidden", "hidden: has 3.0 GB of weights, an ONNX file holds at most 2.1 GB"),
        ("four_classes", "net.onnx: labels has 3 lines, the model has 4 classes (output 1x4); "),
        ("unsupported", "TorchScript: Exporting the operator 'aten::linalg_svdvals' to ONNX"),
        ("narrow", "; torch.export: the exported model: ONNX Runtime "),
        ("unsupported", "; torch.export: No ONNX function found for <OpOverload(op='aten._linalg_svd'"),
    ],
)
def test_a_model_that_cannot_be_imported(tmp_path: Path, function: str, expected: str) -> None:
    said = refusal(tmp_path, f"{MODELS}:{function}")
    assert said.startswith((str(MODELS), str(tmp_path / "net.onnx")))
    assert expected in said


@pytest.mark.parametrize(
    ("function", "place", "difference"),
    [
        ("branch", "what data decides", "output 'output' differs by "),
        ("loop", "what data counts", "output 'output' differs by "),
        ("shapes", "what data cuts", "output 'output' has shape (1, 3) on input 'ones', expected (1, 2))"),
        ("branch_unsupported", "what data decides", "Exporting the operator"),
    ],
)
def test_control_flow_that_depends_on_data_is_found(tmp_path: Path, function: str, place: str, difference: str) -> None:
    said = refusal(tmp_path, f"{MODELS}:{function}")
    assert said.startswith(
        f"{MODELS}:{function}: data-dependent control flow, shape or item() at {line_of(place)}; use torch.where "
        f"instead of if, fixed loop counts and shapes, and tensors instead of item() (TorchScript: {difference}"
    )
    if function == "branch":
        assert is_documented(said.removeprefix(f"{MODELS}:branch: ").replace(MODELS.name, "model.py"))


def _module(folder: Path, code: str) -> Path:
    """A file in a folder of its own."""
    write_files(folder / "code", {"m.py": code})
    return folder / "code" / "m.py"


def test_control_flow_is_found_in_a_package_and_where_tracing_is_all_there_is(tmp_path: Path) -> None:
    module = _module(tmp_path, "from tests.support.torch_models import branch\n")
    said = refusal(tmp_path, f"{module}:branch", target_name=str(write_target(tmp_path, max_opset=15)))
    assert f": data-dependent control flow, shape or item() at {line_of('what data decides')}; " in said
    assert "torch.export" not in said


def test_a_real_image_that_overflows(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "pictures", 1)
    said = refusal(tmp_path, f"{MODELS}:overflows", images=[images])
    assert "overflows: output 'output' is not finite on 000.png; check mean, std and weights" in said


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import no_such_package\n", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package' (m.py"),
        ("x = 1\ndef net(:\n", "(m.py:2)"),
        ("raise SystemExit\n", "cannot be loaded: SystemExit (m.py:1)"),
        ("def nett(): 0\nclass Net: 0\ndef _hidden(): 0\n", "no function 'net'; it has nett, Net"),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, code: str, expected: str) -> None:
    assert expected in refusal(tmp_path, f"{_module(tmp_path, code)}:net")


def test_a_decorator_may_give_the_arguments(tmp_path: Path) -> None:
    assert onnx.load(import_pytorch(f"{MODELS}:decorated", write_toml(tmp_path)).model).graph.node


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    module = _module(tmp_path, "from edge_sdk_test_neighbour import net\n")
    module.with_name("edge_sdk_test_neighbour.py").write_text(MODELS.read_text())
    assert onnx.load(import_pytorch(f"{module}:net", write_toml(tmp_path)).model).graph.node


WEIGHTS = "weights.pth"
PREFIXED = "every key begins with 'module.', as torch.nn.DataParallel writes them; save the state dict of"
NO_FILE = "weights.pth: is no state dict that can be read, or damaged (PyTorch: "


def _lacking(path: Path) -> None:
    state = torch_models.Net().state_dict()
    torch.save({f"net.{key}": value for key, value in state.items()}, path)


def _cut(path: Path) -> None:
    torch.save(torch_models.Net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: None, "weights.pth: no such file; expected a file of torch.save"),
        (lambda path: path.write_text("."), NO_FILE),  # a pickle that pops from an empty stack
        (lambda path: _other_archive(path), NO_FILE),
        (_cut, NO_FILE),
        (lambda p: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), p), NO_FILE),
        (lambda p: torch.save(torch_models.Net(), p), "holds more than tensors (tests.support.torch_models.Net), "),
        (lambda p: torch.save({"epoch": 3, "state_dict": {}}, p), "expected a state dict of tensors; save the state"),
        (lambda p: torch.save([3], p), "holds a list, expected a state dict of tensors; save the state dict alone: "),
        (lambda p: torch.save(torch.nn.DataParallel(torch_models.Net()).state_dict(), p), PREFIXED),
        (_lacking, "torch_models.py:net: lacks first.weight, norm.weight, norm.bias and 6 more; has net.first"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, write: Callable[[Path], object], expected: str) -> None:
    write(tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert said.startswith(str(tmp_path / WEIGHTS))
    assert expected in said


@pytest.mark.parametrize(
    "write", [lambda code, path: torch.save(code, path), lambda code, path: path.write_bytes(pickle.dumps(code, 2))]
)
def test_weights_with_code_run_nothing(tmp_path: Path, write: Callable[[object, Path], object]) -> None:
    code = Code(tmp_path)
    write(code, tmp_path / WEIGHTS)
    refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert not code.ran.exists()


def test_the_state_dict_in_a_checkpoint_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"epoch": 3, "model": torch_models.Net().state_dict()}, tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    monkeypatch.chdir(tmp_path)
    exec(said[said.index("import torch; ") :], {})  # what it says, pasted into a new Python
    torch_models.Net().load_state_dict(torch.load("state_dict_alone.pth"))
    assert is_documented(said.replace(str(tmp_path / WEIGHTS), "last.pth").removeprefix("last.pth: "))


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    torch.save(torch_models.nan().state_dict(), tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:net", weights=tmp_path / WEIGHTS)
    assert said == f"{tmp_path / WEIGHTS}: last.weight holds numbers that are not finite; train or load it again"
    torch.save(torch_models.Net().state_dict(), tmp_path / WEIGHTS)
    said = refusal(tmp_path, f"{MODELS}:mask", weights=tmp_path / WEIGHTS)
    assert said.startswith(f"{MODELS}:mask: mask holds numbers that are not finite")


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


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("m.pt2", _cut_archive, "m.pt2: is not a torch.export archive, or truncated"),
        ("m.pt2", _other_archive, "m.pt2: is no torch.export archive, or damaged: "),
        ("m.pt2", _two_inputs, "m.pt2: takes 2 inputs (x, y), expected one image"),
        ("m.pt", lambda path: path.write_text("no archive"), "m.pt: is not a TorchScript archive, or truncated"),
        ("m.pt", lambda path: torch.save(torch_models.Net().state_dict(), path), "m.pt: is no TorchScript archive, "),
        ("m.pt", lambda p: torch.save(torch_models.Net(), p), "edge-sdk import pytorch FILE.py:FUNCTION --weights"),
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
        ends = ("sample_inputs/model.pt", "example_inputs.pt")
        [inputs] = [name for name in whole.namelist() if name.endswith(ends)]
        for name in whole.namelist():
            changed.writestr(name, (tmp_path / "code").read_bytes() if name == inputs else whole.read(name))
    refusal(tmp_path, str(tmp_path / "m.pt2"))
    assert not code.ran.exists()
