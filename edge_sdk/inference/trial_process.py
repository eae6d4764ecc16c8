"""The process of a trial: a job on standard input, a verdict on standard output, and limits in between."""

from __future__ import annotations

import os
import sys
from typing import Literal

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import BundleError, EdgeError, MissingDependencyError, ModelError, is_want_of_memory
from edge_sdk.inference.stages import Stages
from edge_sdk.inference.trial import Job, Verdict

_KINDS: dict[type[EdgeError], Literal["damaged", "says", "package"]] = {
    BundleError: "damaged",
    ModelError: "says",
    MissingDependencyError: "package",
}


def main() -> None:
    """Load the model, replay its golden inputs, and answer."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    job.limits.take_up()
    verdict = _try(job)
    sys.stdout.buffer.write(msgspec.msgpack.encode(verdict))
    sys.stdout.buffer.flush()


def _try(job: Job) -> Verdict:
    try:
        bundle = Bundle.open(os.fsdecode(job.bundle))
        if bundle.digest != job.digest:
            raise BundleError(f"{bundle.path}: was changed while it was opened")
        bundle.signed = job.signed  # its digest is that of the one whose signature was verified
        Stages.open(bundle.with_primary(job.variant), job.settings)
    except MemoryError:
        return Verdict("memory")
    except EdgeError as error:
        if is_want_of_memory(error):
            return Verdict("memory")
        for family, kind in _KINDS.items():
            if isinstance(error, family):
                return Verdict(kind, str(error))
        return Verdict("run", str(error))
    return Verdict("sound")


if __name__ == "__main__":
    main()
