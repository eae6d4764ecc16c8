"""Findings and figures of the check, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.core.errors import ModelError, one_line

Severity: TypeAlias = Literal["error", "warning", "note"]
"""`error` fails the check; `warning` costs speed, memory or accuracy; `note` is worth knowing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the gate found, about a node, tensor or file, or the model as a whole.

    `rule` is for scripts: `kernel`, `opset`, `nan-weight` ... `what` is the whole sentence, with what was expected and
    got, and `next_step` what to do; it begins with "nothing to do" where that is so.
    """

    severity: Severity
    rule: str
    where: str = ""
    what: str
    next_step: str

    def __post_init__(self) -> None:
        """Keep what a file, its path or a library says from ending a line, steering a terminal, or filling a screen."""
        for name in ("where", "what", "next_step"):
            msgspec.structs.force_setattr(self, name, one_line(getattr(self, name)))

    @property
    def line(self) -> str:
        """The sentence and the next step in one line."""
        return f"{self.what}; {self.next_step}"


def finding(severity: Severity, rule: str, what: str, next_step: str = "nothing to do", where: str = "") -> Finding:
    """Make a finding."""
    return Finding(severity=severity, rule=rule, where=where, what=what, next_step=next_step)


error, warning, note = partial(finding, "error"), partial(finding, "warning"), partial(finding, "note")


class TensorInfo(msgspec.Struct, frozen=True):
    """An input or output, with the type of its elements in ONNX Runtime's spelling.

    A side of the shape is a name or None where it is not fixed; the shape is None when the rank is unknown. `operator`
    is the type of the node that computes an output's values; empty where there is none.
    """

    name: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    operator: str = ""


class OperatorUse(msgspec.Struct, frozen=True):
    """How often one type of operator occurs in a model, in control flow too; ONNX's own domain is empty.

    `macs` are the multiply-accumulates of all these nodes; None where no shape is known to count them by.
    """

    domain: str
    name: str
    nodes: int
    macs: int | None


class Costs(msgspec.Struct, frozen=True):
    """What one run costs, by the shapes; docs/check.md says what is counted, and None stands for what is not known.

    Activations have their peak at `peak_node`, when each is kept until its last use. `unknown_nodes` are left out
    because a shape is not known.
    """

    parameters: int
    weight_bytes: int
    macs: int | None
    peak_activation_bytes: int | None
    peak_node: str
    unknown_nodes: int


class ProviderCoverage(msgspec.Struct, frozen=True):
    """The nodes of a model that one execution provider takes, and the `source` from which that is known.

    `unknown` are operators of which the source does not say; `not_taken` are left to the next provider.
    """

    provider: str
    source: str
    nodes: int
    taken: int
    unknown: tuple[str, ...]
    not_taken: tuple[str, ...]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the gate found.

    Attributes:
        target: name of the target; None for this machine.
        onnxruntime: the version that must run the model.
        kernel_table: version of the table that its operators were held against; empty without one.
        sha256: of the model and the files that it names, in hex; empty when it cannot be read.
        size_mb: of these files, MB of 1e6 bytes.
        files: other files that hold its weights, relative to its folder.
        opset, used_opset: opset of ai.onnx as in the file, and after raising.
        metadata: what the program that wrote it says about the model, by key.
        input: the image; None when there is not exactly one input.
        declared: shape of the image as the file declares it; None without.
        costs: None when the graph is not sound.
        operators: by type, the most multiply-accumulates first.
    """

    name: str
    model: str
    target: str | None
    onnxruntime: str
    kernel_table: str = ""
    passed: bool = False
    sha256: str = ""
    size_mb: float = 0.0
    files: tuple[str, ...] = ()
    opset: int | None = None
    used_opset: int | None = None
    ir_version: int | None = None
    producer: str = ""
    metadata: dict[str, str] = {}
    input: TensorInfo | None = None
    declared: tuple[int | str | None, ...] | None = None
    outputs: tuple[TensorInfo, ...] = ()
    costs: Costs | None = None
    operators: tuple[OperatorUse, ...] = ()
    providers: tuple[ProviderCoverage, ...] = ()
    findings: tuple[Finding, ...] = ()

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)


def show_shape(shape: tuple[int | str | None, ...] | None) -> str:
    """Return `1x3x224x224`, with names or ? for sides that are not fixed; `scalar` for none, `?` for no rank."""
    if shape is None:
        return "?"
    sides = ["?" if side is None else str(side) for side in shape[:_MOST_SIDES]]
    return "x".join([*sides, *(["…"] if len(shape) > _MOST_SIDES else [])]) or "scalar"


_MOST = 100
_MOST_SIDES = 12
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors, then warnings, then notes; each once, up to a limit."""
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: _ORDER.index(finding.severity))
    if len(ordered) > _MOST:
        what = f"{len(ordered) - _MOST} more findings are left out"
        ordered = [*ordered[:_MOST], note("more", what, "mend these, then check again")]
    return tuple(ordered)


class RefusedModelError(ModelError):
    """A model that cannot be used."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(f"{what}; {next_step}")
        self.what = what
        self.next_step = next_step

    def finding(self, rule: str) -> Finding:
        """Return this error as a finding of a report."""
        return error(rule, self.what, self.next_step)
