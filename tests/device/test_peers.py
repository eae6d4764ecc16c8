"""Streams that share a machine: who steps down, who steps up, and how fair that is in the long run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from edge_sdk.governor import Governor
from edge_sdk.ladder import Rung, with_steps
from edge_sdk.peers import Peers

S, MS = 1_000_000_000, 1_000_000
FPS, CORES = 30.0, 2
LADDER = with_steps([Rung("int8", 1, 20.0)])


class Shares(NamedTuple):
    """Of each stream: results in each twenty seconds, and how many steps it made."""

    results: list[list[int]]
    steps: list[int]

    def jain(self, first: int = 1) -> list[float]:
        """Of each twenty seconds, from the `first` on: the start is left out."""
        return [sum(n) ** 2 / (len(n) * sum(x * x for x in n)) for n in list(zip(*self.results, strict=True))[first:-1]]


def _share(
    runs_ms: list[float],
    *,
    limit_ms: float,
    seconds: float = 600.0,
    seed: int = 1,
    peers: Callable[[], Peers] | None = None,
) -> Shares:
    """Streams on two cores: a run takes longer by as much as more is wanted than there is, and by chance.

    Args:
        runs_ms: of each stream, on a machine that does nothing else.
        limit_ms: the budget of each.
        seconds: simulated.
        seed: of chance.
        peers: gives those whose places the streams have; by default all share one.
    """
    chance, shared = random.Random(seed), Peers()
    streams = range(len(runs_ms))
    governors = [
        Governor(LADDER, int(limit_ms * MS), int(S / FPS), 0, place=(peers() if peers else shared).join())
        for _ in streams
    ]
    next_s = [chance.random() / FPS for _ in streams]
    due, seen, steps = [0.0 for _ in streams], [0 for _ in streams], [0 for _ in streams]
    results = [[0] * (int(seconds / 20) + 1) for _ in streams]
    slow, slow_until_s = 1.0, 0.0
    while (now_s := min(next_s)) < seconds:
        one = next_s.index(now_s)
        governor = governors[one]
        next_s[one] += 1 / FPS
        seen[one] += 1
        if now_s > slow_until_s:  # other programs: one and a half seconds a time
            slow, slow_until_s = chance.lognormvariate(0, 0.15), now_s + chance.expovariate(1 / 1.5)
        if seen[one] < due[one]:
            continue
        due[one] = max(due[one], seen[one] - 1) + governor.rung.every
        wanted = sum(run * FPS / 1000 / g.rung.every for run, g in zip(runs_ms, governors, strict=True))
        run_ns = int(runs_ms[one] * max(1.0, wanted / CORES) * slow * chance.lognormvariate(0, 0.35) * MS)
        governor.note_result(is_late=run_ns > limit_ms * MS, age_ns=run_ns, run_ns=run_ns)
        results[one][int(now_s / 20)] += 1
        now_ns = int(now_s * S) + run_ns
        if governor.decide(now_ns):
            governor.arrive(now_ns)
            steps[one] += 1
    return Shares(results, steps)


@pytest.mark.parametrize(("run_ms", "limit_ms"), [(25.0, 60.0), (30.0, 70.0)])
def test_streams_that_cannot_all_run_share_what_there_is(run_ms: float, limit_ms: float) -> None:
    together = _share([run_ms] * 4, limit_ms=limit_ms)
    assert any(together.steps), "there was enough for all"
    jain = together.jain()
    assert sum(value >= 0.95 for value in jain) >= 0.9 * len(jain), jain
    apart = _share([run_ms] * 4, limit_ms=limit_ms, peers=Peers)
    assert sum(map(sum, together.results)) > 0.9 * sum(map(sum, apart.results)), "fairness costs too much"
    assert sum(value >= 0.95 for value in apart.jain()) < 0.7 * len(jain), "streams that know nothing do it as well"


def test_one_that_is_too_heavy_goes_down_alone() -> None:
    shares = _share([20.0, 20.0, 20.0, 90.0], limit_ms=80.0)
    *light, heavy = [sum(of_stream[1:]) for of_stream in shares.results]
    assert min(light) > 0.98 * FPS * 580
    assert heavy < 0.2 * FPS * 580


def test_the_one_that_stands_higher_is_asked_as_long_as_it_has_trouble_too() -> None:
    peers = Peers()
    high, low = peers.join(), peers.join()
    low.stand(3)
    high.note(misses=True, rises=False, until_ns=10)
    for now_ns in range(10):
        assert low.gives_way(now_ns)
    assert high.take_asked()
    assert not high.take_asked()
    assert not low.gives_way(10)
    assert not high.gives_way(0), "there is none above it"


def test_one_that_runs_less_waits_one_window_for_those_that_have_no_trouble() -> None:
    peers = Peers()
    high, low = peers.join(), peers.join()
    low.stand(1)
    low.note(misses=True, rises=False, until_ns=10)
    assert low.gives_way(0)
    assert high.take_asked()
    low.note(misses=True, rises=False, until_ns=10)
    assert not low.gives_way(1)
    low.note(misses=False, rises=False, until_ns=10)
    assert low.gives_way(2)


def test_the_lowest_rises_first_and_one_at_a_time() -> None:
    peers = Peers()
    high, low = peers.join(), peers.join()
    high.stand(1)
    low.stand(2)
    low.note(misses=False, rises=True, until_ns=S)
    assert not high.may_rise(0)
    assert low.may_rise(0)
    low.stand(1)
    assert not high.may_rise(3 * S)
    assert high.may_rise(4 * S)


def test_one_that_is_gone_or_silent_holds_up_nobody() -> None:
    peers = Peers()
    high, low, gone = peers.join(), peers.join(), peers.join()
    for place in (low, gone):
        place.stand(2)
        place.note(misses=False, rises=True, until_ns=S)
    high.stand(1)
    gone.leave()
    gone.leave()
    assert not high.may_rise(30 * S)
    assert high.may_rise(31 * S)
    low.note(misses=True, rises=False, until_ns=50 * S)
    low.leave()
    gone.stand(3)
    assert high.may_rise(40 * S)
