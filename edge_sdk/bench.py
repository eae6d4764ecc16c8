"""Time each stage of the loop, compared with a bare run of the same model on the same tensors.

Everything is measured in turn in one process, some rounds of each, so that a noisy machine disturbs all of it alike and
each part runs with its own caches. Ratios are meaningful elsewhere; milliseconds are those of this machine.
"""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import Percentiles, percentiles_of
from edge_sdk.core.frame import Frame, Image
from edge_sdk.core.opencv import cv2
from edge_sdk.inference.runtime import SessionSettings, check_device, onnxruntime_version
from edge_sdk.inference.session import Session, Stages
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Identity, Message
from edge_sdk.publishing.queues import MemoryOutbox

STAGES = ("decode image", "prepare", "run", "decode outputs", "encode", "publish")
"""Names of the stages in the loop's order; `publish` is the time to put the message into the outbox."""

_BARE_THREADS = (1, 2)
_WARM_UP_ROUNDS = 5
_BLOCK = 10  # consecutive rounds of one part, so that it runs with its own caches
_JPEG_SIZE_WH = (1280, 720)


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that `edge-sdk bench` measured.

    Attributes:
        bundle: its name and version.
        threads, spinning: intra-op threads of the model in the loop, and whether they spun while they waited.
        stages: percentiles of each stage, in the loop's order.
        loop: percentiles from prepare to publish, the cost of a decoded frame.
        bare: percentiles of a bare `InferenceSession.run` without spinning, by number of threads.
        ratio: the loop's p50 over the best bare p50.
        cpu_percent: CPU time as percent of one core, while stages ran back to back.
    """

    bundle: str
    variant: str
    rounds: int
    threads: int
    spinning: bool
    stages: dict[str, Percentiles]
    loop: Percentiles
    bare: dict[int, Percentiles]
    ratio: float
    cpu_percent: float
    peak_rss_mb: float
    image_wh: tuple[int, int]
    machine: str
    onnxruntime: str


def bench(
    bundle: Bundle,
    image: Image | None = None,
    rounds: int = 200,
    *,
    settings: SessionSettings | None = None,
) -> BenchReport:
    """Measure one bundle.

    Args:
        bundle: a verified bundle.
        image: the frame to measure with, uint8 (H, W, 3) BGR; by default a golden image enlarged to 1280x720.
        rounds: number of runs of each part.
        settings: session settings of the loop's model; by default those of the bundle.
    """
    check_device(bundle)
    settings = settings or SessionSettings.of(bundle.manifest)
    cv2.setNumThreads(bundle.manifest.intra_op_num_threads)  # as in a run
    picture = cv2.resize(bundle.golden()[0][0], _JPEG_SIZE_WH).astype(np.uint8) if image is None else image
    pipeline = _Pipeline(bundle, picture, settings)
    bare_runs = {threads: _bare_run(bundle, threads, pipeline) for threads in _BARE_THREADS}
    stage_ns = np.zeros((rounds, len(STAGES)), np.int64)
    bare_ns = {threads: np.zeros(rounds, np.int64) for threads in bare_runs}
    busy_ns = wall_ns = 0
    for _ in range(_WARM_UP_ROUNDS):
        pipeline.step(stage_ns[0])
    for first in range(0, rounds, _BLOCK):
        block = range(first, min(first + _BLOCK, rounds))
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        for index in block:
            pipeline.step(stage_ns[index])
        busy_ns += time.process_time_ns() - cpu
        wall_ns += time.perf_counter_ns() - wall
        for threads, run in bare_runs.items():
            for index in block:
                start = time.perf_counter_ns()
                run()
                bare_ns[threads][index] = time.perf_counter_ns() - start
    loop = _required(stage_ns[:, 1:].sum(axis=1))
    bare = {threads: _required(durations) for threads, durations in bare_ns.items()}
    height, width = picture.shape[:2]
    # Linux counts in KiB, macOS in bytes.
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return BenchReport(
        bundle=f"{bundle.manifest.name} {bundle.manifest.version}",
        variant=bundle.manifest.variants[0].name,
        rounds=rounds,
        threads=pipeline.threads,
        spinning=pipeline.spinning,
        stages={name: _required(stage_ns[:, i]) for i, name in enumerate(STAGES)},
        loop=loop,
        bare=bare,
        ratio=round(loop.p50_ms / min(b.p50_ms for b in bare.values()), 3),
        cpu_percent=round(100 * busy_ns / wall_ns, 1),
        peak_rss_mb=round(peak_bytes / 2**20, 1),
        image_wh=(width, height),
        machine=f"{platform.machine()}, Python {platform.python_version()}",
        onnxruntime=onnxruntime_version(),
    )


class _Pipeline:
    """The loop's stages on one frame, with a clock between them."""

    def __init__(self, bundle: Bundle, image: Image, settings: SessionSettings) -> None:
        self.image = image
        stages = Stages.open(bundle, settings)
        options = stages.session.inference.get_session_options()
        self.threads = stages.threads
        self.spinning = options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
        self.prepare, self.session, self._task = stages.prepare, stages.session, stages.task
        self._encoder = ResultEncoder.for_bundle(bundle, Identity("bench"))
        self._outbox = MemoryOutbox()
        self._jpeg = cv2.imencode(".jpg", image)[1]

    def step(self, out_ns: NDArray[np.int64]) -> None:
        """Run all stages once, and write their durations in nanoseconds into `out_ns`, int64 (6,)."""
        clock = time.perf_counter_ns
        t0 = clock()
        # As in the loop: what is prepared is what has just been decoded.
        image = cast("Image", cv2.imdecode(self._jpeg, cv2.IMREAD_COLOR))
        t1 = clock()
        prepared = self.prepare(Frame(image, time.monotonic_ns(), time.time(), 0, "bench"))
        t2 = clock()
        inferred = self.session(prepared)
        t3 = clock()
        result = self._task(inferred)
        t4 = clock()
        data = self._encoder.encode(result)
        t5 = clock()
        self._outbox.put(Message("bench", data, "bench"))
        t6 = clock()
        self._outbox.take()
        out_ns[:] = (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5)


def _bare_run(bundle: Bundle, threads: int, pipeline: _Pipeline) -> Callable[[], object]:
    """Return a function that calls a plain `InferenceSession.run` on the tensor that the loop prepared."""
    session = Session.open(bundle, SessionSettings(intra_op_num_threads=threads))
    inference, inputs = session.inference, {session.input_name: pipeline.prepare.tensor}
    return lambda: inference.run(None, inputs)


def _required(durations_ns: NDArray[np.int64]) -> Percentiles:
    found = percentiles_of(durations_ns)
    if found is None:
        raise ValueError("expected one round or more")
    return found
