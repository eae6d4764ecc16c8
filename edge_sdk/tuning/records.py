"""Records of tuning: the result of a tuning is stored for the same bundle, machine, camera and limits.

Each record is one file in the state folder. A record that is damaged, or was measured on another machine, is not used,
and one line says why.
"""

from __future__ import annotations

import hashlib
import math
import os
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.files import forget_oldest, read_regular, write_record
from edge_sdk.core.machine import Cores, Cpu
from edge_sdk.inference.runtime import available_providers, onnxruntime_version
from edge_sdk.tuning.candidates import Limits, Tuned

_GIB = 1 << 30
_NAMES = {
    "logical": "logical cores",
    "physical": "physical cores",
    "allowed": "allowed cores",
    "memory_gib": "GiB of memory",
    "onnxruntime": "ONNX Runtime",
    "providers": "execution providers",
}


class TunedMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine and the ONNX Runtime that a measurement was taken on.

    Attributes:
        cpu: the kinds of cores of the machine.
        logical, physical, allowed: numbers of cores; see `Cores`.
        memory_gib: GiB of memory, rounded up to a power of two, because kernels and graphics reserve varying parts.
        onnxruntime: version of ONNX Runtime.
        providers: execution providers that this ONNX Runtime was built with.
    """

    cpu: Cpu
    logical: int
    physical: int
    allowed: int
    memory_gib: int
    onnxruntime: str
    providers: tuple[str, ...]

    @classmethod
    def here(cls, root: Path = Path("/")) -> TunedMachine:
        """Return the description of this machine."""
        cores = Cores.read(root)
        return cls(
            Cpu.read(root),
            cores.logical,
            cores.physical,
            cores.allowed,
            _memory_class_gib(),
            onnxruntime_version(),
            available_providers(),
        )

    def difference(self, other: TunedMachine) -> str | None:
        """Return the first difference from the machine as it is now, such as `logical cores 4, now 2`; or None."""
        if self.cpu != other.cpu:
            is_namesake = self.cpu.name == other.cpu.name
            return f"CPU {self.cpu.name}, now {'one of that name with other cores' if is_namesake else other.cpu.name}"
        for field, name in _NAMES.items():
            then, now = getattr(self, field), getattr(other, field)
            if then != now:
                return f"{name} {_listed(then)}, now {_listed(now)}"
        return None


def _listed(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _memory_class_gib() -> int:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    return 1 << (math.ceil(gib) - 1).bit_length()


SCHEMA_VERSION = 2

_KEPT = 32  # records that are kept: over the years a device has many bundles


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The question that a tuning answers: bundle, camera, variant and limits.

    Attributes:
        digest: digest of the bundle.
        camera: name of the stream; results depend on its frame size and on the load that comes with it.
        variant: the only variant that may run; None for any.
        limits: the limits that the choice must keep.
    """

    digest: str
    camera: str
    variant: str | None
    limits: Limits

    @property
    def file_name(self) -> str:
        """Name of the file of the request's record."""
        return f"{self.digest[:16]}-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]}.json"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a tuning, with the request and the machine that it was measured for.

    Attributes:
        at: time of the tuning, RFC 3339, UTC.
    """

    schema_version: int = SCHEMA_VERSION
    request: Request
    machine: TunedMachine
    at: str
    tuned: Tuned


class Records:
    """The records of tuning of one device."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, request: Request, machine: TunedMachine) -> Record | str | None:
        """Return the record of a request on a machine, or why it cannot be used; None where there is none."""
        record = self._read(self._folder / request.file_name, machine)
        if isinstance(record, Record) and record.request != request:
            return "what is remembered is of something else"
        return record

    def known(self, bundle: Bundle, machine: TunedMachine) -> list[Record]:
        """Return all records of a bundle that are valid on a machine, for whatever request."""
        paths = sorted(self._folder.glob(f"{bundle.digest[:16]}-*.json"))
        return [record for path in paths if isinstance(record := self._read(path, machine), Record)]

    def _read(self, path: Path, machine: TunedMachine) -> Record | str | None:
        try:
            loose = msgspec.json.decode(read_regular(path))
            if isinstance(loose, dict) and loose.get("schema_version") != SCHEMA_VERSION:
                return f"{path} is of another version of edge-sdk"
            record = msgspec.convert(loose, Record)
        except FileNotFoundError:
            return None
        except OSError as cause:
            return f"{path} cannot be read: {cause.strerror}"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return f"{path} is damaged"
        difference = record.machine.difference(machine)
        return record if difference is None else f"what is remembered was measured on something else: {difference}"

    def remember(self, request: Request, machine: TunedMachine, tuned: Tuned) -> None:
        """Write a record, and delete the oldest ones beyond 32.

        Raises:
            OutputError: the record cannot be written.
        """
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = Record(request=request, machine=machine, at=at, tuned=tuned)
        write_record(self._folder / request.file_name, msgspec.json.encode(record))
        forget_oldest(self._folder, _KEPT)
