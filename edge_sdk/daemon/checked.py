"""Checked: what came of looking at a run before it runs.

Owns which problem is the worst. Nothing secret is in it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from edge_sdk.errors import EdgeError
from edge_sdk.source_options import SourceOptions

_WORST_FIRST = (7, 6, 8, 4, 2, 1)
"""Exit codes: a bundle that is not to be trusted before one that does not run here, before what can be mended here."""


class Problem(msgspec.Struct, frozen=True):
    """What would keep a run from running.

    Attributes:
        exit_code: that of its family of errors.
        text: one line.
    """

    exit_code: int
    text: str

    @classmethod
    def of(cls, error: EdgeError) -> Problem:
        """An error, as it would be said."""
        return cls(error.exit_code, str(error))


class CheckedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A verified bundle; the attributes are the manifest's, but for those below.

    Attributes:
        signature: verified by a trusted key, or not looked at.
        variants: its models, the one that runs by choice first.
        labels: how many.
    """

    name: str
    version: int
    target: str
    task: str
    signature: Literal["verified", "not checked"]
    variants: tuple[str, ...]
    labels: int
    latency_budget_ms: float


class CheckedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One stream.

    Attributes:
        name: of the camera.
        source: without secrets.
        kind: of the source; None where it is none.
        options: what the source is asked for.
        path: of the bundle.
        bundle: what it is; None where it cannot be used.
        budget_ms: capture to outbox; None where nobody says one.
        cpu_share: cores that tuning may use; None without a limit.
        runs: the model and settings that run first; None without a bundle.
        reason: why those; None without a bundle.
        result_topic, status_topic: None without a broker.
        problems: what keeps it from running.
    """

    name: str
    source: str
    kind: Literal["device", "stream", "picamera2", "gstreamer", "pattern", "video", "images"] | None
    options: SourceOptions
    path: str
    bundle: CheckedBundle | None
    budget_ms: float | None
    cpu_share: float | None
    runs: str | None
    reason: str | None
    result_topic: str | None
    status_topic: str | None
    problems: tuple[Problem, ...]


class CheckedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The broker; see `MqttSettings`.

    Attributes:
        has_password: whether there is one.
    """

    address: str
    tls: bool
    username: str | None
    has_password: bool
    ca_file: str | None
    qos: int
    protocol: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        device: its name; None where the configuration cannot be read.
        broker: None where results go to standard output.
        trusted_keys: files.
        pipelines: the streams.
        problems: those of no stream.
        warnings: what keeps nothing from running.
    """

    device: str | None = None
    broker: CheckedBroker | None = None
    trusted_keys: tuple[str, ...] = ()
    pipelines: tuple[CheckedPipeline, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of the worst problem; 0 without any."""
        codes = {p.exit_code for p in self.all_problems()}
        known = [code for code in _WORST_FIRST if code in codes]
        return known[0] if known else max(codes, default=0)

    def all_problems(self) -> list[Problem]:
        """Those of the streams too."""
        return [*self.problems, *(problem for pipeline in self.pipelines for problem in pipeline.problems)]
