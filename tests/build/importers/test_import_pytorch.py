"""PyTorch -> ONNX: what is written computes the same, in a graph that quantizes well."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from edge_sdk.cli.root import run as run_command
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.importers.plan import ImportReport
from edge_sdk_tools.importers.pytorch import import_pytorch
from tests.support.absent import Lazy, needs_torch
from tests.support.projects import (
    MODELS,
    is_documented,
    line_of,
    write_pictures,
    write_project,
    write_target,
    write_toml,
)
from tests.support.reports import from_json

torch, torch_models = Lazy("torch"), Lazy("tests.support.torch_models")
pytestmark = needs_torch()


def import_function(folder: Path, function: str, **options: object) -> tuple[ImportReport, onnx.ModelProto]:
    return import_pytorch(f"{MODELS}:{function}", write_toml(folder), **options), onnx.load(folder / "net.onnx")


def compare(folder: Path, module: Any, images: np.ndarray) -> None:
    """What was written must say what PyTorch says."""
    found = onnxruntime.InferenceSession(folder / "net.onnx").run(None, {"images": images})[0]
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(images.copy())).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(3).random((1, 3, 16, 16), np.float32)


@pytest.mark.long
def test_the_graph_is_what_quantization_wants(tmp_path: Path, picture: np.ndarray) -> None:
    report, proto = import_function(tmp_path, "net")
    operators = Counter(node.op_type for node in proto.graph.node)
    # Batch normalisation is in the convolution, ReLU6 is a Clip, and the mean that keeps its dimensions has integers.
    once = dict.fromkeys(("Clip", "GlobalAveragePool", "Sigmoid", "ReduceMean", "Gemm"), 1)
    assert operators == {"Conv": 2, "Mul": 2, **once}
    assert [o.version for o in proto.opset_import if o.domain == ""] == [18] == [report.opset]
    assert (report.input_shape, report.layout, report.nodes) == ((1, 3, 16, 16), "NCHW", len(proto.graph.node))
    assert report.exporter.startswith("torch.export of PyTorch")
    data = (tmp_path / "net.onnx").read_bytes()
    assert not [place for place in (str(MODELS.parent).encode(), b"site-packages") if place in data]
    compare(tmp_path, torch_models.Net(), picture)


def test_the_figures_are_printed_for_every_output(tmp_path: Path) -> None:
    report, _ = import_function(tmp_path, "outputs", images=[write_pictures(tmp_path / "pictures", 20)])
    shapes = {"logits": (1, 3), "maps_0": (1, 8, 8, 8), "maps_1_0": (1, 8, 8)}
    assert {o.name: o.shape for o in report.outputs} == shapes
    assert all(o.absolute <= 1e-5 and o.on_images is not None and o.on_images <= o.absolute for o in report.outputs)
    assert (report.probes, report.images, report.warnings) == (24, 16, ())


_LONG = pytest.mark.long  # each export takes seconds


@_LONG
@pytest.mark.parametrize("function", ["training", "ready", "item"])
def test_forms_of_a_model(tmp_path: Path, picture: np.ndarray, function: str) -> None:
    import_function(tmp_path, function)
    module = torch_models.Net() if function == "training" else getattr(torch_models, function)
    compare(tmp_path, module() if isinstance(module, type) else module, picture)


@_LONG
@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_other_floats_become_float32(tmp_path: Path, picture: np.ndarray, kind: str) -> None:
    report, proto = import_function(tmp_path, kind)
    name = {"half": "float16"}.get(kind, kind)
    assert report.warnings[0] == f"weights were {name} and became float32"
    assert {tensor.data_type for tensor in proto.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    compare(tmp_path, getattr(torch_models, kind)().float(), picture)


def test_a_state_dict_goes_into_the_model(tmp_path: Path, picture: np.ndarray) -> None:
    trained = torch_models.Net()
    trained.last.bias.data += 5
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    import_function(tmp_path, "net", weights=tmp_path / "weights.pth")
    compare(tmp_path, trained, picture)


@_LONG
@pytest.mark.parametrize("function", ["net", "alone"])
def test_a_free_batch(tmp_path: Path, picture: np.ndarray, function: str) -> None:
    report, _ = import_function(tmp_path, function, dynamic_batch=True)
    assert report.input_shape == ("batch", 3, 16, 16)
    assert report.exporter.startswith("torch.export")
    compare(tmp_path, torch_models.Net(), np.concatenate([picture, picture * 2, picture - 1]))


@_LONG
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("name", "exporter"), [("net.pt2", "torch.export"), ("net.pt", "TorchScript")])
def test_an_archive(tmp_path: Path, picture: np.ndarray, name: str, exporter: str) -> None:
    net, example = torch_models.Net().eval(), torch.zeros(1, 3, 16, 16)
    if name == "net.pt2":
        torch.export.save(torch.export.export(net, (example,)), tmp_path / name)
    else:
        torch.jit.save(torch.jit.trace(net, example), tmp_path / name)
    assert import_pytorch(str(tmp_path / name), write_toml(tmp_path)).exporter.startswith(exporter)
    compare(tmp_path, torch_models.Net(), picture)
    if name == "net.pt2":
        target = str(write_target(tmp_path, max_opset=15))
        with pytest.raises(ModelError, match="exported with opset 18 or more, this target runs up to 15"):
            import_pytorch(str(tmp_path / name), write_toml(tmp_path), target_name=target)


def test_a_target_of_a_low_opset(tmp_path: Path, picture: np.ndarray) -> None:
    target = write_target(tmp_path, max_opset=15)
    report, proto = import_function(tmp_path, "net", target_name=str(target))
    assert [o.version for o in proto.opset_import if o.domain == ""] == [15]
    assert report.exporter.startswith("TorchScript")
    compare(tmp_path, torch_models.Net(), picture)


def test_what_the_better_exporter_cannot_take_is_traced_and_said(tmp_path: Path) -> None:
    report, _ = import_function(tmp_path, "rare_branch")
    assert report.exporter.startswith("TorchScript")
    assert report.warnings[0] == (
        f"forward takes numbers out of tensors at {line_of('what data decides')}, and the graph keeps what they were "
        "at export; all 8 inputs that were compared agree, but to be sure use torch.where instead of if, fixed loop "
        "counts and shapes, and tensors instead of item()"
    )
    assert is_documented(report.warnings[0].replace(MODELS.name, "model.py"))


@pytest.mark.long
def test_a_build_shows_how_far_the_model_is_from_pytorch(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", 16)
    imported, _ = import_function(tmp_path, "net", images=[pictures])
    build(tmp_path / "model.toml", "x86_64", tmp_path / "net.edge", calibration=[pictures], bundle_version=1)
    source, fp32 = from_json((tmp_path / "net.edge" / "report.json").read_bytes()).steps[:2]
    assert (source.kind, source.name, source.what) == ("source", "PyTorch", f"imported by {imported.exporter}")
    assert (fp32.outputs.against, fp32.outputs.inputs, fp32.outputs.images) == ("source", 24, 16)
    assert fp32.outputs.largest == max(output.absolute for output in imported.outputs) > 0


@pytest.mark.long
def test_exporters_and_users_code_are_not_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toml = write_project(tmp_path, pictures=0)
    toml.write_text(toml.read_text().replace('"softmax"', '"logits"'))
    assert run_command(["import", "pytorch", f"{MODELS}:noisy", "--model", str(toml), "--json"]) == 0
    captured = capfd.readouterr()
    assert msgspec.json.decode(captured.out)["opset"] == 18
    assert captured.err == ""


def test_pytorch_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml = write_project(tmp_path, pictures=1)
    toml.write_text(toml.read_text().replace('"softmax"', '"logits"'))
    torch.save({"last.bias": torch.zeros(1)}, tmp_path / "weights.pth")
    command = ["import", "pytorch", f"{MODELS}:net", "--model", str(toml)]
    assert run_command([*command, "--weights", str(tmp_path / "weights.pth")]) == 2
    assert "weights.pth: does not fit" in capsys.readouterr().err
    assert run_command([*command, "--dynamic-batch", "--target", "arm64", "--images", str(tmp_path / "pictures")]) == 0
    printed = capsys.readouterr().out
    for said in (
        "\ncompared on 10 inputs, 1 of them real images\nmade by torch.export of PyTorch",
        f"\nwrote {tmp_path / 'model.onnx'}, replacing what was there\n",
        "input batchx3x16x16 NCHW\n",
    ):
        assert said in printed
