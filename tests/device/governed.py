"""A loop under a governor: real models are loaded beside it, and its clock is moved by hand."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.daemon.governing import Governing
from edge_sdk.frame import Frame, Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.publishing import Running
from edge_sdk.stages import Stages
from tests.device.graded import LARGE, SMALL, open_variant
from tests.device.measured import cores
from tests.device.simulated import MS, Camera, Clock

WAIT_S = 20.0


class Scene:
    """A loop under a governor. Delivering a result takes what `costs_ms` says of the variant that made it."""

    def __init__(
        self,
        folder: Path,
        *,
        fixed: bool = False,
        start: str = LARGE,
        open_stages: Callable[[str], Stages] | None = None,
        prepare: Callable[[str], None] = lambda _variant: None,
        load_limit_s: float = 60.0,
        threads: int = 1,
        throttled: Callable[[], str] | None = None,
    ) -> None:
        self.folder, self.clock = folder, Clock()
        self.costs_ms = {LARGE: 150.0, SMALL: 5.0}
        self.heat = ""
        self.cores = cores(4)
        self.threads = threads  # of whatever is loaded next
        self.said: list[str] = []
        self.announced: list[Running] = []
        self.opened: list[weakref.ref[Stages]] = []
        self.most_alive = 0
        self.is_held = False
        self.camera, self.camera_delay_ms = Camera(self.clock, 100, 10**9), 0.0
        self.loop = Loop(self, self.open(start), self, Budget(100), clock_ns=self.clock)
        self.governing = Governing(
            Bundle.open(folder).manifest,
            open_stages or self.open,
            limit_ns=100 * MS,
            fps=10,
            fixed=fixed,
            say=self.said.append,
            announce=self.announced.append,
            throttled=throttled or (lambda: self.heat),
            is_held=lambda: self.is_held,
            cores=lambda: self.cores,
            threads_of=lambda _variant: self.threads,
            prepare=prepare,
            load_limit_s=load_limit_s,
            clock_ns=self.clock,
        )
        self.governing.begin(self.loop, "start")

    def open(self, variant: str) -> Stages:
        stages = open_variant(self.folder, variant, self.threads)
        self.opened.append(weakref.ref(stages))
        self.most_alive = max(self.most_alive, self.alive)
        return stages

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.opened)

    @property
    def variant(self) -> str:
        assert isinstance(self.loop.stages, Stages)
        return self.loop.stages.variant

    ended = False

    def latest(self, timeout_s: float) -> Frame | None:
        frame = self.camera.latest(timeout_s)
        if frame is None or not self.camera_delay_ms:
            return frame
        captured_ns = frame.captured_ns - int(self.camera_delay_ms * MS)
        return Frame(frame.image, captured_ns, frame.captured_at, frame.seq, frame.camera)

    def close(self) -> None:
        pass

    def put(self, result: Result) -> None:
        self.clock.advance(self.costs_ms[self.variant])

    def step(self) -> Tick:
        tick = self.loop.step()
        self.governing.after(self.loop, tick)
        return tick

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.step()

    def run(self, seconds: float) -> None:
        end_ns = self.clock.now_ns + int(seconds * 1e9)
        while self.clock.now_ns < end_ns:
            self.step()
