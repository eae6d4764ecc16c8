"""A session with ONNX Runtime's own profile: which kernels ran, when, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.session import Session, SessionSettings
from edge_sdk_tools.disk import raise_if_full


class Event(msgspec.Struct):
    """One line of the profile.

    Attributes:
        name: `model_run`, or `NODE_kernel_time` with the kernel's operator as args.op_name.
        ts, dur: start and duration, in microseconds.
        args: what else is said.
    """

    name: str
    ts: int = 0
    dur: int = 0
    args: dict[str, Any] = {}

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel ran."""
        return self.name.endswith("_kernel_time") and "op_name" in self.args


class ProfiledSession(Session):
    """Runs as any session does, and notes it.

    Args:
        model: the file.
        folder: for the profile, until `stop`.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        # ONNX Runtime adds only the millisecond to the name, and two may be opened within one.
        settings = SessionSettings(profile_prefix=str(folder / f"profile_{id(self):x}"))
        super().__init__(model.read_bytes(), settings, model.name)

    def stop(self) -> list[Event]:
        """All that happened so far, as it was noted; nothing is noted any more.

        Raises:
            OSError: the disk is full; ONNX Runtime writes what fits and says nothing.
        """
        profile = Path(self.inference.end_profiling())
        try:
            return msgspec.json.decode(profile.read_bytes(), type=list[Event])
        except msgspec.DecodeError:
            raise_if_full(profile.parent)
            raise
        finally:
            profile.unlink()
