"""A session with ONNX Runtime's own profile: which kernels ran, when, and for how long."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.core.errors import OutputError
from edge_sdk.inference.profile import Event
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.disk import raise_if_full


class ProfiledSession(Session):
    """Runs as any session does, and notes it; `stop_profile` says what.

    Args:
        model: the file.
        folder: for the profile, until it is stopped.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        # ONNX Runtime adds only the millisecond to the name, and two may be opened within one.
        settings = SessionSettings(profile_prefix=str(folder / f"profile_{id(self):x}"))
        self._folder = folder
        super().__init__(model.read_bytes(), settings, model.name)

    def stop_profile(self) -> list[Event]:
        """All that was noted.

        Raises:
            OSError: the disk is full.
            OutputError: the profile is not whole for another reason.
        """
        try:
            return super().stop_profile()
        except OutputError as cause:
            raise_if_full(self._folder, cause)
            raise
