"""NameLock: shows that no other program on this machine publishes under a device's name at the same broker.

Two such programs would end each other's connection for ever. The lock is one of the kernel's on a file in the state
folder, which it releases when the process ends, however that happens. Programs of other machines, or with another state
folder, are not seen: the broker alone knows of those.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os

from edge_sdk.errors import OutputError, PublishError
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.state_folder import state_folder


class NameLock:
    """Held from its making until `close`. Where no file can be locked, nothing is shown and nothing is refused.

    Args:
        settings: the broker, and the name there.

    Raises:
        PublishError: another program holds it.
    """

    @staticmethod
    def key_of(settings: MqttSettings) -> str:
        """The broker and the name there, as one text: equal ones are one lock."""
        return f"{settings.client_id} at {settings.host.lower()}:{settings.port}"

    def __init__(self, settings: MqttSettings) -> None:
        self._file: int | None = None
        is_taken = False
        with contextlib.suppress(OSError, OutputError):  # a folder that cannot be written, a disk without locks
            self._file = _open(self.key_of(settings))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_taken = True
            else:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
        if is_taken and self._file is not None:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            self.close()
            raise PublishError(
                f"another program (process {holder or 'unknown'}) publishes as device {settings.device!r} of site "
                f"{settings.site!r} to {settings.address} already; end it, or give each its own name (--device, or "
                "[device] in a file)"
            )

    def close(self) -> None:
        """Let go of it; may be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(key: str) -> int:
    """The file of a key, which stays: whoever removed it would take it from under another program's lock."""
    folder = state_folder() / "names"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.lock"  # a name may be longer than a file's
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
