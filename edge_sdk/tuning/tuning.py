"""Tuning of one bundle on one camera: a remembered result is used at once, others are found while the bundle runs.

`Tuning` opens the stages to begin with and makes the `LiveTuner` that measures others while a loop runs; `tune` runs
such a loop only to tune, and publishes nothing. `Records` keeps results in the state folder, for the same bundle,
machine, camera and limits. `tuning.candidates` decides what is measured in which order.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import CameraError, EdgeError, SessionError, StoppedError
from edge_sdk.core.files import forget_oldest, read_regular, state_folder, write_record
from edge_sdk.core.machine import Cores, Cpu
from edge_sdk.core.protocols import Source
from edge_sdk.inference.runtime import available_providers, onnxruntime_version
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.tuning.candidates import Candidate, Limits, Plan, Tuned, figures
from edge_sdk.tuning.degradation import check_free_memory
from edge_sdk.tuning.live import LiveTuner

_log = logging.getLogger(__name__)
_SAME_RATE = 0.1  # a camera that promises 25 FPS and a file of 23.976 are not worth measuring twice


class TunedMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine and the ONNX Runtime that a measurement was taken on.

    Attributes:
        logical, physical, allowed: numbers of cores; see `Cores`.
        memory_gib: GiB of memory, rounded up to a power of two, because kernels and graphics reserve varying parts.
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


def _memory_class_gib() -> int:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return 1 << (math.ceil(gib) - 1).bit_length()


RECORD_VERSION = 2
_KEPT = 32  # records that are kept: over the years a device has many bundles


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The question that a tuning answers.

    Attributes:
        digest: digest of the bundle.
        camera: name of the stream; results depend on its frame size and on the load that comes with it.
        variant: the only variant that may run; None for any.
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
    """The result of a tuning `at` a time (RFC 3339, UTC), with the request and the machine that it was measured for."""

    schema_version: int = RECORD_VERSION
    request: Request
    machine: TunedMachine
    at: str
    tuned: Tuned


class Records:
    """The records of tuning of one device, one file each in `folder`; records that cannot be used are ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, request: Request, machine: TunedMachine) -> Record | str | None:
        """Return the record of a request on a machine, or why it cannot be used; None where there is none."""
        record = self._read(self._folder / request.file_name, machine)
        if isinstance(record, Record) and record.request != request:
            return "the record is of another request"
        return record

    def known(self, bundle: Bundle, machine: TunedMachine) -> list[Record]:
        """Return all records of a bundle that are valid on a machine, for whatever request."""
        paths = sorted(self._folder.glob(f"{bundle.digest[:16]}-*.json"))
        return [record for path in paths if isinstance(record := self._read(path, machine), Record)]

    def _read(self, path: Path, machine: TunedMachine) -> Record | str | None:
        try:
            loose = msgspec.json.decode(read_regular(path))
            if isinstance(loose, dict) and loose.get("schema_version") != RECORD_VERSION:
                return f"{path} was written by another version of edge-sdk"
            record = msgspec.convert(loose, Record)
        except FileNotFoundError:
            return None
        except OSError as cause:
            return f"{path} cannot be read: {cause.strerror}"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return f"{path} is damaged"
        if record.machine != machine:
            return "the record was measured on another CPU, other cores, other memory or another ONNX Runtime"
        return record

    def remember(self, request: Request, machine: TunedMachine, tuned: Tuned) -> None:
        """Write a record, and delete the oldest ones beyond 32; an OutputError says that it cannot be written."""
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = Record(request=request, machine=machine, at=at, tuned=tuned)
        write_record(self._folder / request.file_name, msgspec.json.encode(record))
        forget_oldest(self._folder, _KEPT)


OpenCandidate = Callable[[Bundle, Candidate], Stages]
"""Loads a candidate of a bundle and proves it."""


class Tuning:
    """Tuning of one bundle on one camera, or of its `variant` alone; raises `UsageError` if there is no such variant.

    Attributes:
        tuned: the remembered result, or the one that was found last; None if there is none.
    """

    def __init__(
        self,
        bundle: Bundle,
        limits: Limits,
        *,
        camera: str,
        variant: str | None,
        open_stages: OpenCandidate,
        cores: Cores | None = None,
    ) -> None:
        self._bundle = bundle if variant is None else bundle.with_primary(variant)
        self._variant = None if variant is None else self._bundle.manifest.variants[0].name
        self._limits, self._open = limits, open_stages
        self._cores, self._machine = cores or Cores.read(), TunedMachine.here()
        self._request = Request(digest=bundle.digest, camera=camera, variant=self._variant, limits=limits)
        self._records: Records | None = None
        self.tuned: Tuned | None = None
        try:
            self._records = Records(state_folder() / "tuning")
        except EdgeError as cause:
            _log.info(f"the result of tuning cannot be remembered: {cause}")

    def open(self) -> Stages:
        """Load and prove the remembered candidate, or else the one that the bundle promises."""
        record = self._records.recall(self._request, self._machine) if self._records is not None else None
        if not isinstance(record, Record):
            if record is not None:
                _log.info(f"tuning anew: {record}")
            return self.open_promised()
        chosen = record.tuned.chosen
        wanted = self._with_missing(record.tuned)
        try:
            stages = self._open(self._bundle, wanted)
        except EdgeError as cause:
            _log.info(f"the settings that were tuned at {record.at} cannot be loaded any more: {cause}")
            return self.open_promised()
        change = _change(record.tuned, wanted, stages.session.providers.got)
        if change:
            del stages  # before another one is loaded
            _log.info(f"tuning anew: {change} since {record.at}, the time of the measurement")
            return self.open_promised()
        self.tuned = record.tuned
        _log.info(f"tuned at {record.at}: {chosen.candidate} ({figures(chosen)}); {record.tuned.reason}")
        return stages

    def open_promised(self) -> Stages:
        """Load and prove the candidate that the bundle promises, with one core left for the camera and the broker."""
        return self._open(self._bundle, self._promise)

    def holds_for(self, fps: float) -> bool:
        """Return whether the known result was measured at about `fps` frames a second, and not under foreign load."""
        tuned = self.tuned
        return tuned is not None and not tuned.provisional and abs(tuned.fps - fps) <= _SAME_RATE * fps

    def make_tuner(
        self,
        home: Stages,
        fps: float,
        *,
        seconds: float | None = None,
        on_tuned: Callable[[Tuned, str], None],
        on_trying: Callable[[Candidate], None] = lambda _candidate: None,
        on_variant: Callable[[str], None] = lambda _variant: None,
        load_s: float = math.inf,
    ) -> LiveTuner:
        """Make the `LiveTuner` that tunes while the loop runs, even if a result is known; `seconds` as in `Plan.of`."""
        # Only providers that started are tried: those of the running session, and those that started when the known
        # result was measured, because its choice may use fewer.
        got, promised = home.session.providers.got, self._bundle.manifest.providers
        started = {*got, *(self.tuned.providers if self.tuned else ())}
        plan = Plan.of(
            self._bundle,
            self._limits,
            only_first=self._variant is not None,
            providers=[p for p in promised if p in started] or promised,
            fps=fps,
            seconds=seconds,
            cores=self._cores,
        )
        return LiveTuner(
            plan,
            (_running(home), home),
            self.open_beside,
            remember=self._remember,
            on_tuned=on_tuned,
            on_trying=on_trying,
            on_variant=on_variant,
            load_s=load_s,
        )

    def _with_missing(self, tuned: Tuned) -> Candidate:
        """Return the chosen candidate with the promised providers that did not start then, as they may start now."""
        chosen, started = tuned.chosen.candidate, tuned.providers
        wanted = [p for p in self._bundle.manifest.providers if p in chosen.providers or p not in started]
        return msgspec.structs.replace(chosen, providers=tuple(wanted))

    def candidate_of(self, variant: str) -> Candidate:
        """Return the best known settings of one of the bundle's models here; without any, the promised ones."""
        if self.tuned is not None:
            return self.tuned.for_variant(variant)
        return msgspec.structs.replace(self._promise, variant=variant)

    @property
    def _promise(self) -> Candidate:
        return Candidate.promised(self._bundle.manifest).within(self._cores)

    def open_beside(self, candidate: Candidate) -> Stages:
        """Load a candidate while another one runs; raise a SessionError if one of its providers does not start."""
        check_free_memory(self._bundle, candidate.variant)
        stages = self._open(self._bundle, candidate)
        why_not = stages.session.providers.why_not
        if why_not:  # other settings would be measured than those of the candidate
            raise SessionError("; ".join(f"{name} does not start: {reason}" for name, reason in why_not.items()))
        return stages

    def _remember(self, tuned: Tuned) -> None:
        self.tuned = tuned
        if self._records is not None:
            self._records.remember(self._request, self._machine, tuned)


def _running(stages: Stages) -> Candidate:
    """Return the settings with which stages run, which may differ from those that were asked for."""
    session = stages.session
    options = session.inference.get_session_options()
    return Candidate(
        variant=stages.variant,
        providers=session.providers.got,
        intra_op_num_threads=options.intra_op_num_threads,
        inter_op_num_threads=options.inter_op_num_threads,
        allow_spinning=options.get_session_config_entry("session.intra_op.allow_spinning") == "1",
        arena=options.enable_cpu_mem_arena,
    )


def _change(tuned: Tuned, wanted: Candidate, got: Sequence[str]) -> str:
    """Return a text about a provider that can be used only since the measurement, or no longer; empty without one."""
    came = [p for p in wanted.providers if p in got and p not in tuned.providers]
    gone = [p for p in tuned.chosen.candidate.providers if p not in got]
    if came:
        return f"{came[0]} can be used"
    return f"{gone[0]} cannot be used any more" if gone else ""


_SIZE_WH = (1280, 720)
_STEP_S = 0.2
_SILENCE_S = 30.0  # a camera that is switched on again, or a stream that is opened anew, is back sooner


def golden_camera(bundle: Bundle, fps: float, camera: str) -> Source:
    """Return a camera that shows the bundle's first golden image, enlarged to 1280x720, at `fps` frames a second."""
    # Imported here because they import OpenCV, which a run that tunes loads only after its first model.
    from edge_sdk.core.opencv import cv2
    from edge_sdk.sources.files import StillPicture
    from edge_sdk.sources.live import LiveSource

    image = cv2.resize(bundle.golden()[0][0], _SIZE_WH)
    still = partial(StillPicture, image.astype("uint8", copy=False), fps)
    return LiveSource(camera, still(), still)


def tune(
    tuning: Tuning,
    limits: Limits,
    source: Source,
    fps: float,
    seconds: float | None,
    on_trying: Callable[[Candidate], None] = lambda _candidate: None,
    *,
    silence_s: float = _SILENCE_S,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tuned, str]:
    """Tune on a source with a pace of its own, which the caller closes, also where a result is known.

    Returns:
        The result, and why it cannot be remembered; the latter is empty if it is remembered.

    Raises:
        CameraError: the source ended first, or delivered nothing for `silence_s` seconds.
        SessionError: nothing could be measured, or the chosen candidate cannot be loaded again.
        StoppedError: `is_stopped`, which is called at every step, returned True.
    """
    outcome: list[tuple[Tuned, str]] = []
    home = tuning.open_promised()
    tuner = tuning.make_tuner(
        home,
        fps,
        seconds=seconds,
        on_tuned=lambda tuned, remark: outcome.append((tuned, remark)),
        on_trying=on_trying,
    )
    loop = Loop(source, home, None, Budget(limits.budget_ms))
    del home  # the loop holds the only reference, so that the model is released when another one runs
    with contextlib.closing(tuner):
        heard_s = time.monotonic()
        while not tuner.done:
            if is_stopped():
                raise StoppedError
            tick = loop.step(_STEP_S)
            tuner.after(loop, tick)
            if tick is not Tick.IDLE:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silence_s:
                raise CameraError(
                    f"the source delivered no frame for {silence_s:g} s, so there is nothing to measure; see that it "
                    "is on and shows a picture, or tune without --source"
                )
            if source.ended:
                raise CameraError("the source ended before tuning did; give a longer one, or fewer --seconds")
    if not outcome:
        raise SessionError(
            "nothing could be measured, so nothing is chosen; mend what the lines above report, or give more --seconds"
        )
    return outcome[0]
