"""Streams whose pipelines are doubles, on a clock that is moved by hand."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Gate
from edge_sdk.daemon.streams import Streams


class Double:
    """A pipeline that does what a test says."""

    def __init__(self, settings: PipelineSettings, gate: Gate | None, before: Double | None) -> None:
        self.settings, self.gate, self.before = settings, gate, before
        self.began, self.is_over = threading.Event(), False
        self.failure: BaseException | None = None
        self.forgone: Double | None = None
        self.digest: str | None = "0" * 64
        self.has_other_files = False
        self.events, self.joined, self.warned = list[str](), list[float](), list[str]()

    def start(self) -> None:
        self.events.append("start")

    def ask(self, reason: str) -> None:
        self.events.append(f"ask {reason}")

    @property
    def has_place(self) -> bool:
        return self.began.is_set() and self.failure is None

    def withdraw(self) -> bool:
        if not self.has_place:
            self.events.append("withdraw")
            self.before, self.forgone = None, self.before
        return not self.has_place

    def leave_source(self) -> None:
        self.events.append("leave source")

    def leave_outlet(self) -> None:
        self.events.append("leave outlet")

    def join(self, timeout_s: float) -> bool:
        self.joined.append(timeout_s)
        return self.is_over

    def warn(self, name: str, line: str) -> None:
        self.warned.append(f"{name}: {line}")

    def run(self) -> Double:
        self.began.set()
        return self

    def end(self, failure: BaseException | None = None) -> None:
        self.failure, self.is_over = failure, True
        self.began.set()


class Scene:
    """Streams of doubles."""

    def __init__(self, *cameras: str, is_service: bool = True, uniform: float = 1.0) -> None:
        self.now_s, self.uniform = 1000.0, uniform
        self.said, self.made = list[str](), list[Double]()
        self.streams = Streams(
            self._make,  # type: ignore[arg-type]
            self.said.append,
            is_service=is_service,
            uniform=lambda: self.uniform,
            clock_s=lambda: self.now_s,
        )
        self.streams.start(map(settings, cameras))

    def _make(self, chosen: PipelineSettings, gate: Gate | None, before: Double | None) -> Double:
        self.made.append(Double(chosen, gate, before))
        return self.made[-1]

    def __getitem__(self, camera: str) -> Any:
        return self.streams.running[camera]

    def change(self, *wanted: PipelineSettings) -> str:
        return self.streams.change_to(wanted)


def settings(camera: str, source: str = "pattern") -> PipelineSettings:
    return PipelineSettings(camera=camera, source=source, bundle=Path("a.edge"))
