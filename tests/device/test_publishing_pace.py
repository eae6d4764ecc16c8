"""At most so many a second, the newest of what is more."""

from __future__ import annotations

import math
import random

import pytest

from edge_sdk.errors import UsageError
from edge_sdk.publishing import Channel, MqttSettings
from edge_sdk.publishing.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _pace(max_per_s: float | None, clock: Clock) -> tuple[Pace[object, int], list[object]]:
    """One, and what went."""
    gone: list[object] = []

    def go(item: object) -> int:
        gone.append(item)
        return len(gone)

    return Pace(max_per_s, go, clock), gone


def test_the_newest_is_held_until_its_time_and_the_others_are_counted() -> None:
    clock = Clock()
    pace, gone = _pace(2.0, clock)
    assert pace.wait_s() == math.inf
    assert pace.put("door", "a") == 1
    assert [pace.put("door", item) for item in "bcd"] == [None] * 3
    assert pace.wait_s() == pytest.approx(0.5)
    clock.now_s += 0.4
    pace.release()
    assert gone == ["a"]
    clock.now_s += 0.2
    assert pace.wait_s() == 0.0
    pace.release()
    pace.release()
    assert (gone, pace.wait_s(), pace.limited("door"), pace.limited()) == (["a", "d"], math.inf, 2, 2)


def test_each_camera_has_a_pace_of_its_own() -> None:
    pace, gone = _pace(1.0, Clock())
    for number, camera in enumerate(("door", "yard", "door")):
        pace.put(camera, (camera, number))
    assert gone == [("door", 0), ("yard", 1)]
    pace.release(all_of_them=True)
    assert gone[2:] == [("door", 2)]
    assert (pace.limited("yard"), pace.limited("door")) == (0, 0)


def test_what_is_held_goes_before_what_comes_after_its_time_and_takes_no_place_but_its_own() -> None:
    clock = Clock()
    pace, gone = _pace(1.0, clock)
    pace.put("door", 1)
    pace.put("door", 2)
    clock.now_s += 1.5
    assert pace.put("door", 3) is None
    assert gone == [1, 2]
    clock.now_s += 5
    assert pace.put("door", 4) == 4
    assert (gone, pace.limited("door")) == ([1, 2, 3, 4], 0)


def test_without_a_limit_everything_goes() -> None:
    pace, gone = _pace(None, Clock())
    assert [pace.put("door", item) for item in range(1000)] == list(range(1, 1001))
    assert gone == list(range(1000))


@pytest.mark.parametrize("seed", range(10))
def test_of_any_arrivals_no_more_than_allowed_go_and_the_last_one_does(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    pace, gone = _pace(10.0, clock)
    begun_s = clock.now_s
    for item in range(500):
        clock.now_s += chance.expovariate(30.0)
        pace.release()
        pace.put("door", item)
    span_s = clock.now_s - begun_s
    clock.now_s += 1
    pace.release()
    assert gone == sorted(set(gone))  # type: ignore[type-var]
    assert gone[-1] == 499
    assert len(gone) + pace.limited("door") == 500
    assert span_s * 10 * 0.7 <= len(gone) <= span_s * 10 + 2


@pytest.mark.parametrize("seed", range(10))
def test_nobody_who_releases_late_has_others_left_out(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    (timely, in_time), (late, in_the_end) = _pace(10.0, clock), _pace(10.0, clock)
    for item in range(300):
        pause_s = chance.expovariate(12.0)
        while timely.wait_s() < pause_s:
            pause_s -= (step_s := timely.wait_s() + 1e-9)
            clock.now_s += step_s
            timely.release()
        clock.now_s += pause_s
        timely.put("door", item)
        late.put("door", item)
    timely.release(all_of_them=True)
    late.release(all_of_them=True)
    assert in_time == in_the_end
    assert timely.limited() == late.limited() > 0


@pytest.mark.parametrize(
    "wrong",
    [{"qos": 2}, {"expiry_s": 0}, {"expiry_s": 2**32}, {"max_per_s": 0.0}, {"max_per_s": 1001.0}],
)
def test_channels_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Channel(**wrong)  # type: ignore[arg-type]


def test_results_travel_as_the_settings_say() -> None:
    channels = MqttSettings(host="h", port=1, qos=1, expiry_s=5, max_per_s=2.0).channels
    assert channels["result"] == Channel(qos=1, expiry_s=5, max_per_s=2.0)
    assert channels["event"].qos == 1
    with pytest.raises(UsageError, match="max_per_s"):
        MqttSettings(host="h", port=1, max_per_s=0.0)
