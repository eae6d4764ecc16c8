"""What `import pytorch` refuses is one line that says what, where and what to do; nothing is written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="PyTorch is the extra [torch]")
pytest.importorskip("onnxscript", reason="PyTorch's exporter is the extra [torch]")

from edge_sdk.errors import DataError, EdgeError, ModelError, UsageError
from edge_sdk_tools.importing.pytorch import import_pytorch
from tests.support.projects import (
    MODEL_TOML,
    MODELS,
    is_documented,
    line_of,
    refusal,
    write_pictures,
    write_target,
    write_toml,
)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("missing", "has no function 'missing'; in it are training, half, bfloat16, "),
        ("trainin", "torch_models.py: has no function 'trainin'; did you mean 'training'? in it are training, half, "),
        (
            "argument",
            "argument: FUNCTION is called without arguments, but argument(n, m, *, k) needs n, k "
            f"({line_of('def argument(')}); give them defaults",
        ),
        (
            "Argument",
            "Argument: FUNCTION is called without arguments, but Argument(n) needs n "
            f"({line_of('a class that asks')}); give them defaults",
        ),
        ("text", "text: returns a str, expected a torch.nn.Module"),
        ("gives_none", "gives_none: returns nothing, expected a torch.nn.Module"),
        ("gives_tensor", "gives_tensor: returns a Tensor, expected a torch.nn.Module"),
        ("gives_checkpoint", "returns a dict, expected a torch.nn.Module; its key 'net' holds one, return that"),
        ("raises", f"raises: failed: KeyError: 'backbone' ({line_of('backbone')})"),
        ("exits", f"exits: failed: SystemExit: no GPU here ({line_of('no GPU here')})"),
        ("fails", "forward failed on an input of 1x3x16x16 (size_wh, color and layout of model.toml): RuntimeError: "),
        ("fails", f"({line_of('reshape(1, 3, 8, 8)')})"),
        ("leaves", f"SystemExit: 3 ({line_of('sys.exit(3)')})"),
        ("two", "two: forward takes 2 inputs (x, y), expected one image"),
        ("words", "words: forward returns output_1 of type str, expected tensors, alone or in tuples, lists and dicts"),
        ("nothing", "nothing: forward returns nothing, expected tensors"),
        ("random", "random: output 'output' differs between two runs on input "),
        ("remembers", "output 'output' differs between two runs on input 'zeros'"),
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
    ("function", "place", "probe"), [("branch", "what data decides", "ones"), ("loop", "what data counts", "ones")]
)
def test_control_flow_that_depends_on_data_is_found(tmp_path: Path, function: str, place: str, probe: str) -> None:
    said = refusal(tmp_path, f"{MODELS}:{function}")
    assert said.startswith(
        f"{MODELS}:{function}: data-dependent control flow, shape or item() at {line_of(place)}; use torch.where "
        "instead of if, fixed loop counts and shapes, and tensors instead of item() (TorchScript: output 'output' "
        "differs by "
    )
    assert f" on input '{probe}', where rounding explains " in said
    assert "torch.export" not in said


def test_control_flow_is_found_in_a_package_too(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "m.py").write_text("from tests.support.torch_models import branch\n")
    said = refusal(tmp_path, f"{folder / 'm.py'}:branch")
    assert f": data-dependent control flow, shape or item() at {line_of('what data decides')}; " in said


def test_control_flow_comes_before_what_tracing_could_not_take(tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{MODELS}:branch_unsupported")
    assert f": data-dependent control flow, shape or item() at {line_of('what data decides')}; " in said
    assert said.index("; use torch.where ") < said.index("(TorchScript: Exporting the operator")


def test_the_message_on_control_flow_is_the_documented_one(tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{MODELS}:branch").removeprefix(f"{MODELS}:branch: ").replace(MODELS.name, "model.py")
    assert is_documented(said)


def test_a_shape_that_depends_on_data_is_found(tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{MODELS}:shapes")
    assert f": data-dependent control flow, shape or item() at {line_of('what data cuts')}; use torch.where " in said
    assert said.endswith("(TorchScript: output 'output' has shape (1, 3) on input 'ones', expected (1, 2))")


def test_a_function_that_traces_itself_is_found_too(tmp_path: Path) -> None:
    """With an opset that torch.export does not write, tracing is all there is."""
    target = str(write_target(tmp_path, max_opset=15))
    said = refusal(tmp_path, f"{MODELS}:branch", target_name=target)
    assert f": data-dependent control flow, shape or item() at {line_of('what data decides')}; " in said
    assert "torch.export" not in said


def test_a_real_image_that_overflows(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "pictures", 1)
    said = refusal(tmp_path, f"{MODELS}:overflows", images=[images])
    assert "overflows: output 'output' is not finite on 000.png; check mean, std and weights" in said


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("missing.py:net", ModelError, "missing.py: no such file; expected a Python file"),
        ("model.py", UsageError, "model.py: expected FILE.py:FUNCTION, with a function that returns the model"),
        ("model.bin", UsageError, "model.bin: expected FILE.py:FUNCTION, a .pt2 (torch.export) or a .pt (TorchScript)"),
        ("model.py:a.b", UsageError, "model.py:a.b: expected FILE.py:FUNCTION"),
        ("missing.pt2", ModelError, "missing.pt2: no such file; expected a torch.export archive"),
        ("missing.pt", ModelError, "missing.pt: no such file; expected a TorchScript archive"),
    ],
)
def test_a_source_that_is_none(tmp_path: Path, source: str, kind: type[EdgeError], expected: str) -> None:
    assert refusal(tmp_path, source, kind).startswith(expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "import no_such_package\n",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package' (m.py:1)",
        ),
        ("x = 1\ndef net(:\n", "cannot be loaded: SyntaxError: "),
        ("x = 1\ndef net(:\n", "(m.py:2)"),
        ("raise SystemExit\n", "cannot be loaded: SystemExit (m.py:1)"),
        ("", "has no function 'net'"),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, code: str, expected: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "m.py").write_text(code)
    assert expected in refusal(tmp_path, f"{folder / 'm.py'}:net")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("maek", "m.py: has no function 'maek'; did you mean 'make'? in it are make, Net"),
        ("other", "m.py: has no function 'other'; in it are make, Net"),
    ],
)
def test_functions_come_before_classes(tmp_path: Path, function: str, expected: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    code = "from os.path import join\nclass Net: pass\ndef make(): pass\ndef _hidden(): pass\n"
    (folder / "m.py").write_text(code)
    assert refusal(tmp_path, f"{folder / 'm.py'}:{function}").endswith(expected)


def test_a_decorator_may_give_the_arguments(tmp_path: Path) -> None:
    assert onnx.load(import_pytorch(f"{MODELS}:decorated", write_toml(tmp_path)).model).graph.node


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "edge_sdk_test_neighbour.py").write_text(MODELS.read_text())
    (folder / "m.py").write_text("from edge_sdk_test_neighbour import net\n")
    import_pytorch(f"{folder / 'm.py'}:net", write_toml(tmp_path))
    assert onnx.load(tmp_path / "net.onnx").graph.node


@pytest.mark.parametrize(
    ("old", "new", "kind", "expected"),
    [
        ("net.onnx", "net.bin", UsageError, "model is 'net.bin', expected the name of the .onnx file to write"),
        ("net.onnx", "none/net.onnx", UsageError, "none does not exist"),
        ("labels.txt", "none.txt", ModelError, "none.txt: no such labels file"),
        ("[16, 16]", "[16]", ModelError, "size_wh"),
        ("[16, 16]", "[24, 24]", ModelError, "forward failed on an input of 1x3x24x24"),
        ("[16, 16]", '[16, 16]\ncolor = "GRAY"', ModelError, "forward failed on an input of 1x1x16x16"),
        ("[16, 16]", '[16, 16]\nlayout = "NHWC"', ModelError, "forward failed on an input of 1x16x16x3"),
    ],
)
def test_a_model_toml_that_does_not_fit(
    tmp_path: Path, old: str, new: str, kind: type[EdgeError], expected: str
) -> None:
    toml = write_toml(tmp_path)
    toml.write_text(MODEL_TOML.replace(old, new))
    with pytest.raises(kind) as caught:
        import_pytorch(f"{MODELS}:net" if "24" not in new else f"{MODELS}:fails", toml)
    assert expected in str(caught.value)
    assert not list(tmp_path.rglob("*.onnx"))


@pytest.mark.parametrize("name", ["none", "labels.txt"])
def test_images_that_are_none(tmp_path: Path, name: str) -> None:
    assert str(tmp_path / name) in refusal(tmp_path, f"{MODELS}:net", DataError, images=[tmp_path / name])


def test_no_model_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"net\.onnx: expected a model\.toml"):
        import_pytorch(f"{MODELS}:net", tmp_path / "net.onnx")
