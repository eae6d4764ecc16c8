"""Run all checks on a model, in order, and collect the findings.

This is the program of the limited process, because the file is untrusted: `python -m edge_sdk_tools.check.examination`.
All imports happen before the limits of `sandbox` apply. Each check is in a module of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import onnx.version_converter

from edge_sdk.bundle.target import CPU
from edge_sdk_tools.check import operators, shapes
from edge_sdk_tools.check.constants import check_data, check_numbers, check_training
from edge_sdk_tools.check.costs import check_counted, check_memory, measure, operator_uses
from edge_sdk_tools.check.dry_run import compare, trial_run
from edge_sdk_tools.check.model_file import ModelFile, read_model
from edge_sdk_tools.check.report import CheckReport, Costs, Finding, RefusedModelError, error, in_order, note, warning
from edge_sdk_tools.check.sandbox import Examined, Job, read_request, write_answer
from edge_sdk_tools.graph.index import Values, declared_value, graph_values, nodes_of
from edge_sdk_tools.graph.profile import extension_nodes

_OF_VALUES = ("nan-weight", "infinite-weight", "variance")
"""Rules whose errors lie in values of weights, which a trial with zeros does not see."""

_STRIDE = 32  # the stride of the deepest level of most detectors
_MISFITS = ("shape", "run", "onnx")  # rules whose errors follow from a size that the layers cannot halve often enough
_SAID_BETTER = ("No Op registered", "is deprecated in domain_version")


def main() -> None:
    """Run as the limited process: read one job, examine its model, and write the result."""
    job = msgspec.msgpack.decode(read_request(), type=Job)
    own = os.dup(sys.stdout.fileno())
    # Libraries print, and their output must not be in the answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    examined = examine_model(job)
    os.dup2(own, sys.stdout.fileno())
    write_answer(msgspec.msgpack.encode(examined))


def examine_model(job: Job) -> Examined:
    """Examine one model; whatever is wrong with it is a finding."""
    try:
        file = read_model(Path(os.fsdecode(job.model)))
        try:
            check_data(file.proto)
            proto = shapes.inline_functions(file.proto)
        except RefusedModelError as cause:
            return _Examination(job, file, file.proto).refused(cause)
        return _Examination(job, file, proto).examined()
    except RefusedModelError as cause:
        return Examined(job.report(cause.finding("file")))
    except MemoryError:
        what, rule = "examining it took more memory than a model of its size needs", "memory"
    except UnicodeDecodeError:
        # A name that no check has reached: protobuf decodes a name when it is first read.
        what, rule = "not an ONNX model, or damaged: a name in it is not UTF-8", "file"
    return Examined(job.report(RefusedModelError(what, "export it again").finding(rule)))


class _Examination:
    """Examines one readable model, a skeleton with its functions put in place, step by step, and collects findings."""

    def __init__(self, job: Job, file: ModelFile, proto: onnx.ModelProto) -> None:
        self._job, self._file, self._proto = job, file, proto
        self._weights = file.weights
        self._table = operators.kernel_table(job.onnxruntime)  # None where edge-sdk brings none
        self._opset = shapes.opsets_of(proto).get("")
        self._original: onnx.ModelProto | None = None  # before its opset was raised
        self._findings: list[Finding] = []
        self._values: Values = {}
        self._runtime = f"ONNX Runtime {job.onnxruntime}"
        self._where = f"{self._runtime} on {job.target.name if job.target else 'this machine'}"

    def examined(self) -> Examined:
        """Take all steps but those that an earlier error makes meaningless."""
        shapes.free_unknown(self._proto.graph)
        self._findings += shapes.take_floats(self._proto, self._weights, self._job.input)
        report = shapes.with_facts(self._job.report(), self._file, self._proto, self._table)
        self._check_opset()
        self._fix_input()
        self._findings += check_training(self._proto)
        self._proto.ClearField("training_info")
        self._findings += check_numbers(self._proto, self._weights)
        if self._opset is None or self._opset < shapes.LOWEST_OPSET:
            return self._as_declared(report)
        if self._opset < shapes.QUANTIZABLE_OPSET:
            self._raise_opset()
        if not self._needs_weights():
            # The trial takes zeros for weights; no page of them is written, so their memory is free for activations.
            self._file.weights.update((name, np.zeros(w.shape, w.dtype)) for name, w in self._weights.items())
        self._infer()
        report = self._judge(report)
        costs, target = measure(self._proto, self._weights, self._values), self._job.target
        if target is not None and not any(finding.rule == "size" for finding in self._findings):
            self._findings += check_memory(costs, target.memory_mb, target.name)
        if self._can_run():
            self._try()
            costs = measure(self._proto, self._weights, self._values)
        self._check_whole()
        return self._finish(report, costs)

    def refused(self, cause: RefusedModelError) -> Examined:
        """Report what a model declares whose constants or functions cannot be used."""
        report = shapes.with_facts(self._job.report(), self._file, self._proto, self._table)
        self._findings.append(cause.finding("file"))
        self._check_opset()
        self._fix_input()
        return self._as_declared(report)

    def _as_declared(self, report: CheckReport) -> Examined:
        report = shapes.with_tensors(report, self._proto, self._weights)
        return Examined(msgspec.structs.replace(report, findings=in_order(self._findings)))

    def _check_opset(self) -> None:
        newest = onnx.defs.onnx_opset_version()
        target = self._job.target
        max_opset = min(self._table.max_opset if self._table else newest, target.max_opset if target else newest)
        max_ir_version = self._table.max_ir_version if self._table else onnx.IR_VERSION
        self._findings += shapes.check_opset(self._opset, max_opset, self._where)
        self._findings += shapes.lower_ir_version(self._proto, max_ir_version, self._where)
        if self._table is None:
            what = f"edge-sdk brings no table of {self._runtime}: opset, IR version and operators were not compared"
            step = "try the model on the device, or raise min_onnxruntime in the target to 1.20.1"
            self._findings.append(warning("kernel", what, step))

    def _fix_input(self) -> None:
        shapes.name_nodes(self._proto)
        try:
            image = shapes.image_input(self._proto, self._weights)
            given = self._job.input
            shapes.fix_input(image, shapes.adopted(declared_value(image).shape, given) if self._job.adopts else given)
        except RefusedModelError as cause:
            self._findings.append(cause.finding("input"))

    def _raise_opset(self) -> None:
        try:
            converted = shapes.raise_opset(self._proto)
        except RefusedModelError as cause:
            self._findings.append(cause.finding("opset"))
            return
        self._original, self._proto = self._proto, converted
        shapes.name_nodes(self._proto)
        what = f"opset {self._opset} was raised to {shapes.QUANTIZABLE_OPSET}, which per-channel weights need"
        self._findings.append(note("opset", what, "nothing to do; a model exported with opset 17 needs no raising"))

    def _needs_weights(self) -> bool:
        """Tell whether the trial needs real weights: to compare with the original, or for shapes or operators."""
        is_open = any(node.op_type in shapes.DATA_DEPENDENT for node in nodes_of(self._proto.graph.node))
        return self._original is not None or is_open or bool(extension_nodes(self._proto))

    def _infer(self) -> None:
        self._proto, found = shapes.infer(self._proto)
        if rows := shapes.rows_to_fix(self._proto):
            for proto in (self._proto, self._original):
                if proto is not None:
                    shapes.fix_rows(proto, rows)
            shapes.name_nodes(self._proto)
            self._proto, found = shapes.infer(self._proto)
            what = f"outputs {', '.join(rows)} have a row for each object found"
            self._findings.append(note("dynamic", f"{what}, and were filled up to {shapes.DETECTIONS}"))
        self._values = graph_values(self._proto.graph)
        self._findings += [*found, *shapes.check_sizes(self._proto), *shapes.check_outputs(self._proto, self._weights)]

    def _judge(self, report: CheckReport) -> CheckReport:
        self._findings += operators.check_control_flow(self._proto)
        if self._table is None:
            return report
        opsets = shapes.opsets_of(self._proto)
        judged = operators.judge_nodes(self._proto.graph, self._table, opsets)
        found = operators.check_kernels(judged, self._runtime, opsets[""])
        if not shapes.QUANTIZABLE_OPSET <= opsets[""] <= self._table.max_opset:
            # The table does not cover this opset, so nothing is known of ONNX's own operators.
            self._findings += [finding for finding in found if finding.rule == "custom-operator"]
            return report
        self._findings += found
        source = f"kernels of ONNX Runtime {self._table.onnxruntime}, by operator, opset and type"
        target = self._job.target
        providers = operators.cover(target.providers if target else [CPU], judged, opsets, source)
        return msgspec.structs.replace(report, providers=providers)

    def _check_whole(self) -> None:
        """Run ONNX's own checker; of operators that do not exist, keep the findings made before, which say more."""
        if (self._opset or 0) > onnx.defs.onnx_opset_version():
            return
        try:
            onnx.checker.check_model(self._proto)
        except onnx.checker.ValidationError as cause:
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
            telling = [line for line in lines if "No Op registered" in line or "Error" in line]
            said = (telling or lines or [type(cause).__name__])[0]
            self._findings.append(error("onnx", said, "export the model again"))
        if any(f.rule == "unknown-operator" for f in self._findings):
            self._findings = [f for f in self._findings if not any(words in f.what for words in _SAID_BETTER)]

    def _try(self) -> None:
        """Load and run the model, fill in what inference left open, and compare with the original opset."""
        try:
            self._values = trial_run(self._proto, self._weights, self._values)
        except RefusedModelError as cause:
            self._findings.append(cause.finding("run"))
            return
        # The trial found the outputs of custom operators; shapes that follow from them are inferred now.
        if made := [name for node in extension_nodes(self._proto) for name in node.output]:
            shapes.declare(self._proto, made, self._values)
            self._proto = onnx.shape_inference.infer_shapes(self._proto, data_prop=True)
            self._values = {**self._values, **graph_values(self._proto.graph)}
        shapes.fix_outputs(self._proto, self._values)
        if self._original is not None and not self._has_errors():
            self._compare(self._original)

    def _compare(self, original: onnx.ModelProto) -> None:
        """Add a finding if the model computes something else since its opset was raised."""
        raised = f"raising opset {self._opset} to {shapes.QUANTIZABLE_OPSET}"
        spec = self._job.input
        pixels = np.random.default_rng(0).uniform(0, 255, spec.tensor_shape).astype(np.float32)
        image = (pixels - np.float32(np.mean(spec.mean))) / np.float32(np.mean(spec.std))
        try:
            difference = compare(original, self._proto, self._weights, image)
        except RefusedModelError as cause:
            what = f"{raised} could not be compared with the original: {cause.what}"
            self._findings.append(note("opset", what, "export it with opset 17, so that nothing needs raising"))
            return
        if difference:
            what = f"{raised} changes what it computes: {difference}"
            self._findings.append(error("opset", what, "export it with opset 17"))

    def _can_run(self) -> bool:
        """Tell whether a trial shows something new: not after errors that would show in it again."""
        errors = {finding.rule for finding in self._findings if finding.severity == "error"}
        return not errors or (errors.issubset(_OF_VALUES) and not self._needs_weights())

    def _has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self._findings)

    def _explain_size(self, report: CheckReport) -> None:
        """Replace findings that follow from a size that the layers cannot halve often enough by one that says so."""
        sides, size_wh = (report.declared or ())[1:], self._job.input.size_wh
        is_free = len(sides) == 3 and sum(isinstance(side, int) for side in sides) < 3
        is_odd = any(side % _STRIDE for side in size_wh)
        misfits = [finding.what for finding in self._findings if finding.rule == "shape"]
        has_fixed_weights = any(f"({name})" in what for name in ("Gemm", "MatMul") for what in misfits)
        if not (is_free and is_odd and misfits) or has_fixed_weights:  # such weights fit one size only
            return
        down = [max(1, side // _STRIDE) * _STRIDE for side in size_wh]
        up = [-(-side // _STRIDE) * _STRIDE for side in size_wh]
        what = f"its layers do not fit together at {size_wh[0]}x{size_wh[1]}, expected multiples of {_STRIDE}"
        self._findings = [finding for finding in self._findings if finding.rule not in _MISFITS]
        self._findings.append(error("shape", what, f"the nearest are size_wh = {down} and {up}"))

    def _finish(self, report: CheckReport, costs: Costs) -> Examined:
        self._explain_size(report)
        uses = operator_uses(self._proto, self._values)
        self._findings += check_counted(uses)
        passed = not self._has_errors()
        report = msgspec.structs.replace(
            shapes.with_tensors(report, self._proto, self._weights),
            passed=passed,
            used_opset=shapes.opsets_of(self._proto)[""],
            costs=costs,
            operators=uses,
            findings=in_order(self._findings),
        )
        if not (passed and self._job.wants_model):
            return Examined(report)
        return Examined(report, self._proto.SerializeToString())


if __name__ == "__main__":
    main()
