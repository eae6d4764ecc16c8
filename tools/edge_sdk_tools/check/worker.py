"""The program of the limited process: `python -m edge_sdk_tools.check.worker`.

It reads a job, examines the model and writes the result. All imports happen before the limits apply.
"""

from __future__ import annotations

import os
import sys

import msgspec

try:
    from edge_sdk_tools.check.examination import examine_model
except ImportError as missing:
    sys.stderr.write(
        f"checking a model needs {missing.name or 'a package'}; in the checkout: "
        "pip install -c constraints.txt '.[host]'\n"
    )
    sys.exit(8)
from edge_sdk_tools.check.report import CheckReport, Finding
from edge_sdk_tools.check.sandbox import Examined, Job, read_request, write_answer


def main() -> None:
    """Read one job, examine it, write what came out."""
    job = msgspec.msgpack.decode(read_request(), type=Job)
    own = os.dup(sys.stdout.fileno())
    # Libraries print: what they say must not be in the answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    examined = examine(job)
    os.dup2(own, sys.stdout.fileno())
    write_answer(msgspec.msgpack.encode(examined))


def examine(job: Job) -> Examined:
    """Examine one model; what brings a library of Python to its end becomes a finding."""
    try:
        return examine_model(job)
    except MemoryError:
        return _refused(job, "memory", "examining it took more memory than a model of its size needs")
    except UnicodeDecodeError:
        # Of a name that no check has reached; protobuf finds it when the name is first read.
        return _refused(job, "file", "not an ONNX model, or damaged: a name in it is not UTF-8")


def _refused(job: Job, rule: str, what: str) -> Examined:
    finding = Finding(severity="error", rule=rule, what=what, next_step="export it again")
    version = job.runtime.version or ""
    return Examined(
        CheckReport(name=job.name, model="", target=job.runtime.target, onnxruntime=version, findings=(finding,))
    )


if __name__ == "__main__":
    main()
