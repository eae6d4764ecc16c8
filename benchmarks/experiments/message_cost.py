"""`python -m benchmarks.experiments.message_cost`: what messages and events of a frame cost, in microseconds.

Each part in turn, many times; the least of the rounds is what it takes on a machine that does nothing else, the median
what it took here. Beside ours are the bare encoders on the same twenty objects, made ready beforehand.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import click
import msgspec
import numpy as np

from edge_sdk.core.frame import Detections, Frame
from edge_sdk.core.protocols import Event
from edge_sdk.events.rules import EventRule, EventWatch
from edge_sdk.messages.encoder import EventEncoder, ResultEncoder
from edge_sdk.messages.schema import Identity
from edge_sdk.tasks.detection import DetectionItem
from edge_sdk.tasks.entry import ModelRef

_CALLS = 200
_OBJECTS, _CLASSES = 20, 80


class _Nowhere:
    def put(self, event: Event, /) -> None:
        pass


def detections(objects: int, seq: int = 0) -> Detections:
    """Objects of all classes, the most confident first."""
    rng = np.random.default_rng(objects)
    frame = Frame(np.zeros((720, 1280, 3), np.uint8), time.monotonic_ns(), time.time(), seq, "gate")
    return Detections(
        frame,
        12_345_678,
        np.sort(rng.uniform(0, 720, (objects, 2, 2)), axis=1).reshape(objects, 4).astype(np.float32),
        np.sort(rng.uniform(0.5, 1, objects))[::-1].astype(np.float32),
        rng.integers(0, _CLASSES, objects),
    )


def parts() -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    identity, model = Identity("gate-pi"), ModelRef("yolov8n", 3, "0" * 64)
    labels = [f"class {number}" for number in range(_CLASSES)]
    encoder, events = ResultEncoder(identity, dict(enumerate(labels)), model), EventEncoder(identity, "gate", model)
    some, none = detections(_OBJECTS), detections(0)
    items = msgspec.json.decode(encoder.encode(some))["detections"]
    ready = msgspec.convert(items, list[DetectionItem])
    event = Event(kind="appeared", label="person", class_id=0, confidence=0.9, box_xyxy=(1.0, 2.0, 3.0, 4.0))
    numbers = count()
    all_labels, one_label = EventRule(labels=tuple(labels)), EventRule(labels=(labels[0],))
    watches = {
        "all classes": EventWatch([all_labels], dict(enumerate(labels)), _Nowhere()),
        "one class": EventWatch([one_label], dict(enumerate(labels)), _Nowhere()),
    }
    encode = msgspec.json.Encoder().encode
    return {
        f"encode a result, {_OBJECTS} objects": lambda: encoder.encode(some),
        "encode a result, nothing found": lambda: encoder.encode(none),
        f"msgspec alone, {_OBJECTS} objects": lambda: encode(ready),
        f"json alone, {_OBJECTS} objects": lambda: json.dumps(items),
        "encode an event": lambda: events.encode(event, next(numbers)),
        **{f"look for events, {_OBJECTS} objects, {name}": partial(watch.put, some) for name, watch in watches.items()},
        "look for events, nothing found": lambda: watches["one class"].put(none),
    }


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """The least and the median of each part, microseconds."""
    found: dict[str, list[float]] = {name: [] for name in parts()}
    for _ in range(rounds):
        for name, part in parts().items():
            part()
            start = time.perf_counter_ns()
            for _ in range(_CALLS):
                part()
            found[name].append((time.perf_counter_ns() - start) / _CALLS / 1000)
    return {name: (min(times), statistics.median(times)) for name, times in found.items()}


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True)
def main(rounds: int) -> None:
    """Print the table."""
    for name, (least, median) in measure(rounds).items():
        print(f"{name:44} least {least:6.2f} us   median {median:6.2f} us")


if __name__ == "__main__":
    main()
