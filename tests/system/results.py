"""Results of several cameras, as a subscriber got them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tests.system.broker import Subscriber, wait_until
from tests.system.device import Device


class Result(msgspec.Struct, frozen=True):
    """Of a message what is counted here."""

    camera: str
    run_id: str
    seq: int
    age_ms: float
    infer_ms: float


def count_results(subscriber: Subscriber, cameras: Iterable[str]) -> dict[str, int]:
    """How many came so far of each camera."""
    return {camera: len(subscriber.messages(f"/result/{camera}")) for camera in cameras}


def results_after(subscriber: Subscriber, counts: Mapping[str, int]) -> dict[str, list[Result]]:
    """What came of each camera after the first so many."""
    return {
        camera: [
            msgspec.json.decode(message.payload, type=Result)
            for message in subscriber.messages(f"/result/{camera}")[count:]
        ]
        for camera, count in counts.items()
    }


def wait_for_results(subscriber: Subscriber, device: Device, cameras: Iterable[str], more: int = 1) -> None:
    """Wait until each of the cameras has so many more; the device must run on."""
    before = count_results(subscriber, cameras)

    def are_there() -> bool:
        now = count_results(subscriber, before)
        return device.is_over or all(now[camera] >= count + more for camera, count in before.items())

    wait_until(are_there, f"{more} more results of each of {[*before]}")
    assert not device.is_over, device.said
