"""What runs when tuning begins is measured as what it is, whatever put it there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.loop import Loop, Tick
from edge_sdk.stages import Stages
from edge_sdk.state_folder import state_folder
from edge_sdk.tuning import Candidate, Limits, Machine, Tuned, Tuning
from edge_sdk.tuning.record import Records, Request
from edge_sdk.tuning.tuning import open_candidate
from tests.device.bundles import edit_manifest
from tests.device.measured import CPU, candidate, cores, measurement
from tests.device.test_loop import Camera, Clock, Collector
from tests.device.variant_bundles import write_variants

LIMITS = Limits(100)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Bundle.open(write_variants(tmp_path / "a.edge"))


def _remember(bundle: Bundle, others: float = 0.0) -> None:
    """At 15 frames a second FP32 fitted, with two threads; INT8 needed but one."""
    measured = [
        measurement(candidate("int8", threads=1), 10, quality=0.95),
        measurement(candidate("fp32", threads=2), 50, quality=1.0),
    ]
    tuned = Tuned.of(
        measured,
        candidate("int8"),
        LIMITS,
        metric="agreement with FP32",
        providers=CPU,
        fps=15,
        seconds=9,
        others=others,
    )
    request = Request(digest=bundle.digest, camera="camera", variant=None, limits=LIMITS)
    Records(state_folder() / "tuning").remember(request, Machine.here(), tuned)


@pytest.mark.parametrize(("usable", "promised", "expected"), [(1, 4, 4), (2, 2, 2), (3, 2, 2), (4, 4, 3), (8, 16, 7)])
@pytest.mark.parametrize("variant", [None, "fp32"])
def test_of_more_than_two_cores_one_is_left_from_the_first_start_on(
    bundle: Bundle, usable: int, promised: int, expected: int, variant: str | None
) -> None:
    edit_manifest(bundle.path, intra_op_num_threads=promised)
    opened = list[Candidate]()

    def note(whole: Bundle, what: Candidate) -> Stages:
        opened.append(what)
        return open_candidate(whole, what)

    here = Bundle.open(bundle.path)
    tuning = Tuning(
        here, LIMITS, camera="c", variant=variant, say=lambda _: None, open_stages=note, cores=cores(usable)
    )
    home = tuning.open()
    tuning.open_variant("int8.8x8")
    assert [what.intra_op_num_threads for what in opened] == [expected, expected]
    plan = tuning.supervisor(home, 30, on_tuned=lambda _tuned, _remark: None).plan
    assert plan.promise.intra_op_num_threads == expected
    assert plan.on(cores(4)).promise.intra_op_num_threads == min(promised, 3)


def test_what_was_tuned_on_a_busy_machine_runs_at_the_next_start_and_is_tuned_again(bundle: Bundle) -> None:
    for others, holds in ((0.9, False), (0.1, True)):
        _remember(bundle, others)
        tuning = Tuning(bundle, LIMITS, camera="camera", variant=None, say=lambda _line: None)
        assert tuning.open().variant == "fp32"
        assert tuning.holds_for(15) is holds
        assert not tuning.holds_for(30)


def test_what_runs_is_known_by_its_session_and_not_by_what_was_asked_for(bundle: Bundle) -> None:
    runs = candidate("fp32", threads=3, inter_op_num_threads=2, allow_spinning=True, arena=False)
    tuning = Tuning(bundle, LIMITS, camera="camera", variant=None, say=lambda _line: None)
    home = open_candidate(bundle, runs)  # by somebody else
    tuner = tuning.supervisor(home, 30, on_tuned=lambda _tuned, _remark: None)
    assert tuner.home == runs


def test_a_variant_that_the_start_switched_to_is_measured_with_the_settings_that_it_has(bundle: Bundle) -> None:
    _remember(bundle)
    opened, tried = list[Candidate](), list[Candidate]()

    def note(whole: Bundle, what: Candidate) -> Stages:
        opened.append(what)
        return open_candidate(whole, what)

    tuning = Tuning(bundle, LIMITS, camera="camera", variant=None, say=lambda _line: None, open_stages=note)
    assert tuning.open().variant == "fp32"
    home = tuning.open_variant("int8")  # the start found FP32 too slow
    assert opened == [candidate("fp32", threads=2), candidate("int8")]
    tuner = tuning.supervisor(home, 30, on_tuned=lambda _tuned, _remark: None, on_trying=tried.append)
    loop = Loop(Camera(Clock(), 33, 10), home, Collector(), Budget(100))
    tuner.after(loop, Tick.ON_TIME)
    tuner.close()
    assert tried == [candidate("int8")]
    assert opened[2:] == []  # it runs already
    assert not [thread for thread in threading.enumerate() if thread.name == "tuning"]
