"""Job: what the process of a trial is asked, and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from edge_sdk.session import SessionSettings
from edge_sdk.trial.limits import TrialLimits


class Job(msgspec.Struct, frozen=True):
    """What to try.

    Attributes:
        bundle: its folder, an absolute path, as the file system has it: a name may be no text.
        digest: what was verified; another bundle there is refused.
        signed: whether that was by a trusted key.
        variant: which of its models.
        settings: with which; None for those that it promises.
        limits: to take up before anything of it is read.
    """

    bundle: bytes
    digest: str
    signed: bool
    variant: str
    settings: SessionSettings | None
    limits: TrialLimits


class Verdict(msgspec.Struct, frozen=True):
    """How it went.

    Attributes:
        kind: `sound`, or what is wrong: the bundle wants more `memory` than it may take, is `damaged`, its model is not
            what its manifest `says`, a `package` is missing, or this device cannot `run` it.
        why: one line; empty for a sound one, and for memory.
    """

    kind: Literal["sound", "memory", "damaged", "says", "package", "run"]
    why: str = ""
