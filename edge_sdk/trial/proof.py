"""Proof: that one model of one bundle was tried on this device, remembered in the state folder.

Owns what makes two trials the same. A record that is damaged, or that nobody can read, is none.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

import edge_sdk
from edge_sdk.bundle import Bundle
from edge_sdk.cpu import Cpu
from edge_sdk.errors import OutputError
from edge_sdk.regular_file import read_regular
from edge_sdk.session import SessionSettings, onnxruntime_version
from edge_sdk.state_folder import state_folder, write_record

_MOST = 64  # records that are kept; each has less than a kilobyte


class Proof(msgspec.Struct, frozen=True):
    """What was tried, and where; another one of anything here has to be tried again.

    Attributes:
        bundle: digest.
        variant: name of the model.
        settings: with which it was run.
        edge_sdk, onnxruntime: versions.
        cpu: digest of its kinds of cores.
    """

    bundle: str
    variant: str
    settings: SessionSettings
    edge_sdk: str
    onnxruntime: str
    cpu: str

    @classmethod
    def of(cls, bundle: Bundle, settings: SessionSettings | None) -> Proof:
        """That of the bundle's first variant, here; without settings with those that the bundle promises."""
        variant = bundle.manifest.variants[0].name
        settings = settings or SessionSettings.of(bundle.manifest)
        return cls(bundle.digest, variant, settings, edge_sdk.__version__, onnxruntime_version(), Cpu.read().digest)

    def is_known(self) -> bool:
        """Whether there is a whole record of it."""
        try:
            return read_regular(self._path()) == msgspec.json.encode(self)
        except (OSError, OutputError):  # there may be no folder for it at all
            return False

    def remember(self) -> None:
        """Write the record; of many the oldest go.

        Raises:
            OutputError: it cannot be written.
        """
        path = self._path()
        write_record(path, msgspec.json.encode(self))
        with contextlib.suppress(OSError):  # another process tidies up too
            records = sorted(path.parent.glob("*.json"), key=lambda record: record.stat().st_mtime, reverse=True)
            for old in records[_MOST:]:
                old.unlink()

    def _path(self) -> Path:
        name = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]
        return state_folder() / "proved" / f"{name}.json"
