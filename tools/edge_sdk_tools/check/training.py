"""What training left behind, and what gives another result at every run.

Owns the list. Such a model runs, and is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edge_sdk_tools.check.functions import nodes_of
from edge_sdk_tools.check.report import Finding

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that draw numbers."""

_TRAINING_MODE_INPUT = 2  # of Dropout since opset 12
_EVAL = "export it in evaluation mode: model.eval()"


def check_training(proto: onnx.ModelProto) -> list[Finding]:
    """Name dropout that drops, normalisation by the batch, losses, and operators that draw numbers."""
    constants = _constants(proto)
    findings = [f for node in nodes_of(proto.graph.node) for f in _check_node(node, constants)]
    if proto.training_info:
        what = "holds how to train it (training_info); a device does not need that, and it is left out"
        step = "nothing to do; model.ClearField('training_info') takes it out of the file too"
        findings.append(Finding(severity="note", rule="training", what=what, next_step=step))
    return findings


def _check_node(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> list[Finding]:
    where = f"node {node.name!r} ({node.op_type})"
    if node.op_type == "Dropout" and _drops(node, constants):
        return [_error(node, f"{where} drops values at random: its training_mode is true or not fixed", _EVAL)]
    if node.op_type == "BatchNormalization" and _learns(node):
        return [
            _error(node, f"{where} is in training mode: it normalises by the picture, not by what it learned", _EVAL)
        ]
    if node.op_type in RANDOM:
        step = "export it without; golden outputs could not be replayed"
        return [_error(node, f"{where} draws random numbers: every run gives another result", step)]
    if node.op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        return [_error(node, f"{where} computes a loss", "export the model alone, without its loss")]
    return []


def _drops(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Before opset 12 there is no such input, and Dropout does nothing."""
    if len(node.input) <= _TRAINING_MODE_INPUT or not node.input[_TRAINING_MODE_INPUT]:
        return False
    mode = constants.get(node.input[_TRAINING_MODE_INPUT])
    return mode is None or mode.data_type != TensorProto.BOOL or bool(np.any(numpy_helper.to_array(mode)))


def _learns(node: onnx.NodeProto) -> bool:
    """By its attribute since opset 14; before, by outputs for running statistics."""
    return any(a.name == "training_mode" and a.i for a in node.attribute) or sum(map(bool, node.output)) > 1


def _constants(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in nodes_of(proto.graph.node):
        if node.op_type == "Constant":
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def _error(node: onnx.NodeProto, what: str, next_step: str) -> Finding:
    return Finding(severity="error", rule="training", where=node.name, what=what, next_step=next_step)
