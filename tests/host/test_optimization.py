"""What ONNX Runtime's graph optimization changes is refused, and what it only rounds is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.session import Session, SessionSettings
from edge_sdk_tools.build import build
from edge_sdk_tools.evaluate import evaluate
from edge_sdk_tools.evaluate.optimization import check_optimization
from tests.device import tiny
from tests.host.images import write_pictures
from tests.host.projects import CLASSIFIER, write_project
from tests.host.test_evaluate import changed


def _vector_after_transpose() -> onnx.ModelProto:
    """Rows weighted and summed after a transpose: ONNX Runtime 1.20 to 1.31 folds the transpose away, wrongly."""
    nodes = [
        helper.make_node("Transpose", ["images"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["turned", "vector"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["means"], axes=[2], keepdims=0),
        helper.make_node("Softmax", ["means"], ["probabilities"], axis=1),
    ]
    vector = np.linspace(-1, 3, 16, dtype=np.float32) ** 3
    return tiny.model(nodes, [1, 3, 16, 16], {"probabilities": [1, 3]}, {"vector": vector})


def _is_wrong_here() -> bool:
    model = _vector_after_transpose().SerializeToString()
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    noise = np.random.default_rng(0).random((1, 3, 16, 16), dtype=np.float32)
    results = [ort.InferenceSession(model, options).run(None, {"images": noise})[0] for options in (None, plain)]
    return not np.allclose(*results, atol=1e-3)


@pytest.mark.skipif(not _is_wrong_here(), reason="this ONNX Runtime computes it right")
def test_a_graph_that_is_optimized_into_another_one_is_refused(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=_vector_after_transpose())
    with pytest.raises(ModelError, match=r"model\.onnx: .* computes output 0 differently after its own graph optimiz"):
        evaluate(model, write_pictures(tmp_path / "data", 2, first=50), reference=model)
    with pytest.raises(ModelError, match="differently after its own graph optimization"):
        build(model, "x86_64", tmp_path / "a.edge")


def test_another_result_is_another_result(tmp_path: Path) -> None:
    spec = load_model_spec(write_project(tmp_path, CLASSIFIER, pictures=0))
    model = tiny.classifier().SerializeToString()
    check_optimization(model, Session(model, SessionSettings(), "m"), spec)
    with pytest.raises(ModelError, match=r"output 0 differently .*by up to 0\.\d+, the largest value is 0\.\d+"):
        check_optimization(changed(2).SerializeToString(), Session(model, SessionSettings(), "m"), spec)
