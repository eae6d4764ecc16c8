"""One rule for check and build: a model is held against the lowest ONNX Runtime that its bundle admits."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from edge_sdk.cli.root import run
from edge_sdk.errors import DataError, ModelError
from edge_sdk.manifest import parse_version
from edge_sdk.target import load_target
from edge_sdk_tools.build import build
from edge_sdk_tools.check import as_admitted, runtime_range
from tests.support import models as tiny
from tests.support.projects import write_project

pytestmark = pytest.mark.skipif(parse_version(ort.__version__) < (1, 24, 0), reason="needs a runtime beyond opset 23")

_OLDEST = "opset 24, but ONNX Runtime 1.20.1 on arm64 runs up to 21"


def _newer(folder: Path) -> Path:
    """A model that 1.20.1 does not run, and no pictures, so that a build ends behind the check."""
    return write_project(folder, model=tiny.classifier(opset=24), pictures=0)


@pytest.mark.parametrize(
    ("target", "versions", "lowest"),
    [
        ("arm64", [], ort.__version__),
        ("arm64", ["1.20.1"], "1.20.1"),
        ("arm64", ["1.23.2", "1.22.1"], "1.22.1"),
        ("jetson_orin_nano", ["1.23.2"], "1.23.2"),
    ],
)
def test_both_go_by_the_same_version(target: str, versions: list[str], lowest: str) -> None:
    device = load_target(target)
    assert runtime_range(device, versions).minimum == as_admitted(device, versions).min_onnxruntime == lowest


def test_a_device_that_cannot_have_the_builder_s_version_is_held_against_its_highest() -> None:
    assert as_admitted(load_target("jetson_orin_nano"), []).min_onnxruntime == "1.23.2"


def test_check_holds_a_model_against_what_its_bundle_will_admit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["check", str(_newer(tmp_path)), "--target", "arm64"]
    assert run(check) == 0
    assert f"tiny for arm64, ONNX Runtime {ort.__version__}" in capsys.readouterr().out
    assert run([*check, "--prove-runtime", "1.20.1"]) == 2
    assert _OLDEST in " ".join(capsys.readouterr().out.split())


def test_a_build_holds_it_against_the_same(tmp_path: Path) -> None:
    model = _newer(tmp_path)
    with pytest.raises(DataError, match="pictures"):
        build(model, "arm64", tmp_path / "a.edge")
    with pytest.raises(ModelError, match=_OLDEST):
        build(model, "arm64", tmp_path / "a.edge", prove_runtimes=["1.20.1"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--prove-runtime", "1.20.1"], "give --target too"),
        (["--target", "arm64", "--prove-runtime", "1.19.2"], "expected a version from 1.20.1, the lowest of arm64, to"),
    ],
)
def test_versions_that_make_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert run(["check", str(_newer(tmp_path)), *options]) == 2
    assert expected in capsys.readouterr().err
