"""Job and Examined: what goes into the limited process, and what comes out of it.

Owns nothing but the values; they cross as MessagePack.
"""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk_tools.check.report import CheckReport
from edge_sdk_tools.check.weight import Weight


class Runtime(msgspec.Struct, frozen=True):
    """What must run the model.

    Attributes:
        version: of ONNX Runtime; None for the one that is installed here.
        target: name of the target; None for this machine.
        providers: execution providers in order of preference.
        max_opset: the highest opset that the target allows; None for whatever the runtime reads.
        memory_mb: of the device, in MiB; None for no limit.
    """

    version: str | None
    target: str | None
    providers: tuple[str, ...]
    max_opset: int | None
    memory_mb: int | None


class Job(msgspec.Struct, frozen=True):
    """One model to examine.

    Attributes:
        name: of the model.
        model: absolute path of the ONNX file, as the file system has it: it may be no text.
        input: what model.toml says of its image.
        runtime: what must run it.
        wants_model: the checked model is wanted too, not only the report.
    """

    name: str
    model: bytes
    input: InputSpec
    runtime: Runtime
    wants_model: bool


class Examined(msgspec.Struct, frozen=True):
    """What came out.

    Attributes:
        report: with the model's file name in place of its path, and without what labels and decoder add to it.
        skeleton: the serialised model without its large weights; empty when it was not wanted or did not pass.
        weights: what the skeleton lacks.
    """

    report: CheckReport
    skeleton: bytes = b""
    weights: tuple[Weight, ...] = ()
