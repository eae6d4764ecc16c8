"""What tuning found is remembered for the same bundle, machine and wish only, and used by the next start."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import OutputError, SessionError
from edge_sdk.core.files import state_folder
from edge_sdk.core.machine import Cpu
from edge_sdk.inference.runtime import available_providers
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.tuning.candidates import Candidate, Limits, Tuned
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.tuning import Record, Records, Request, TunedMachine, Tuning
from tests.support.bundles import edit_manifest, open_candidate, write_variants
from tests.support.logs import SAID
from tests.support.loops import Camera, Clock, Collector
from tests.support.results import CPU, candidate, cores, measurement, plan

AZURE, CUDA = "AzureExecutionProvider", "CUDAExecutionProvider"  # the first is in every wheel, the second in none here
HERE = TunedMachine(
    cpu=Cpu("Cortex", "0" * 64), logical=4, physical=4, allowed=4, memory_gib=8, onnxruntime="1.31.1", providers=CPU
)
LIMITS = Limits(100)

needs_azure = pytest.mark.skipif(AZURE not in available_providers(), reason="this ONNX Runtime has the CPU alone")


def _tuned(best: Candidate | None = None, providers: tuple[str, ...] = CPU, others: float = 0.0) -> Tuned:
    """At 15 frames a second `best` fitted, by default FP32 with two threads; INT8 needed but one."""
    fp32 = measurement(best or candidate("fp32", threads=2), 50, quality=1.0)
    measured = [measurement(candidate(), 10, quality=0.95), fp32]
    tuned = Tuned.of(plan(limits=LIMITS, fps=15), measured, seconds=9, others=others)
    return msgspec.structs.replace(tuned, providers=providers)


def _request(bundle: Bundle, **changes: object) -> Request:
    request = Request(digest=bundle.digest, camera="gate", variant=None, limits=LIMITS)
    return msgspec.structs.replace(request, **changes)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return Bundle.open(write_variants(tmp_path / "a.edge"))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state")


@pytest.mark.parametrize(
    "change", [{"cpu": Cpu("Cortex", "1" * 64)}, {"allowed": 1}, {"onnxruntime": "1.32.0"}, {"providers": (CUDA, *CPU)}]
)
def test_another_machine_is_told_apart(records: Records, bundle: Bundle, change: dict[str, Any]) -> None:
    records.remember(_request(bundle), HERE, _tuned())
    found = records.recall(_request(bundle), msgspec.structs.replace(HERE, **change))
    assert "was measured on another CPU, " in str(found)


def _edited(edit: Callable[[Any, Any], object]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        document = msgspec.json.decode(data)
        edit(document, document["tuned"]["chosen"]["candidate"])
        return msgspec.json.encode(document)

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data + b" " * (1 << 20) + b"x", "cannot be read: more than 1 MiB"),
        (_edited(lambda whole, _: whole.update(schema_version=1)), "was written by another version of edge-sdk"),
        (_edited(lambda whole, _: whole["request"].update(camera="yard")), "the record is of another request"),
        (_edited(lambda _, chosen: chosen.update(intra_op_num_threads=0)), "is damaged"),
    ],
)
def test_what_is_damaged_is_passed_over_in_one_line(
    tmp_path: Path, records: Records, bundle: Bundle, damage: Callable[[bytes], bytes], expected: str
) -> None:
    records.remember(_request(bundle), HERE, _tuned())
    path = tmp_path / "state" / _request(bundle).file_name
    path.write_bytes(damage(path.read_bytes()))
    found = records.recall(_request(bundle), HERE)
    assert isinstance(found, str)
    assert (expected in found, "\n" in found) == (True, False)


def test_records_of_bundles_that_are_gone_do_not_pile_up(tmp_path: Path, records: Records, bundle: Bundle) -> None:
    folder = tmp_path / "state"
    records.remember(_request(bundle, camera="first"), HERE, _tuned())
    leftover = folder / ".half"  # of a process that was killed while it wrote
    leftover.write_bytes(b"")
    for number, path in enumerate(folder.iterdir()):
        os.utime(path, ns=(number, number))
    for number in range(40):
        records.remember(_request(bundle, camera=f"c{number}"), HERE, _tuned())
    assert len(list(folder.iterdir())) == 32
    assert not leftover.exists()
    assert records.recall(_request(bundle, camera="first"), HERE) is None
    assert isinstance(records.recall(_request(bundle, camera="c39"), HERE), Record)


def test_a_folder_that_cannot_be_written_or_read_is_one_error(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        Records(tmp_path / "file").remember(_request(bundle), HERE, _tuned())
    assert "cannot be read" in str(Records(tmp_path / "file").recall(_request(bundle), HERE))


# What a start makes of it.


def _remember(bundle: Bundle, tuned: Tuned) -> None:
    Records(state_folder() / "tuning").remember(_request(bundle), TunedMachine.here(), tuned)


def _tuning(bundle: Bundle, **changes: Any) -> Tuning:
    return Tuning(bundle, LIMITS, **{"camera": "gate", "variant": None, "open_stages": open_candidate, **changes})


def _noting(opened: list[Candidate]) -> Callable[[Bundle, Candidate], Stages]:
    def note(whole: Bundle, what: Candidate) -> Stages:
        opened.append(what)
        return open_candidate(whole, what)

    return note


def _tuner(tuning: Tuning, home: Stages, fps: float = 30, **changes: Any) -> LiveTuner:
    return tuning.make_tuner(home, fps, on_tuned=lambda _tuned, _remark: None, **changes)


@pytest.mark.parametrize(("usable", "promised", "expected"), [(1, 4, 4), (2, 2, 2), (3, 2, 2), (4, 4, 3)])
def test_of_many_cores_one_is_left(bundle: Bundle, usable: int, promised: int, expected: int) -> None:
    edit_manifest(bundle.path, intra_op_num_threads=promised)
    for variant in (None, "fp32"):
        opened = list[Candidate]()
        here = Bundle.open(bundle.path)
        tuning = _tuning(here, variant=variant, open_stages=_noting(opened), cores=cores(usable))
        asked = [*opened, tuning.candidate_of("int8.8x8"), _tuner(tuning, tuning.open()).plan.promise, *opened]
        assert [what.intra_op_num_threads for what in asked] == [expected] * 3


def test_what_was_tuned_on_a_busy_machine_runs_at_the_next_start_and_is_tuned_again(bundle: Bundle) -> None:
    for others, holds in ((0.9, False), (0.1, True)):
        _remember(bundle, _tuned(others=others))
        tuning = _tuning(bundle)
        assert tuning.open().variant == "fp32"
        assert tuning.holds_for(15) is holds
        assert not tuning.holds_for(30)


def test_what_is_remembered_and_cannot_be_loaded_gives_way_to_what_is_promised(bundle: Bundle) -> None:
    _remember(bundle, _tuned(candidate("gone", threads=2)))
    assert _tuning(bundle).open().variant == "int8"
    assert "cannot be loaded any more: " in SAID[-1]


def test_what_runs_is_known_by_its_session_and_not_by_what_was_asked_for(bundle: Bundle) -> None:
    runs = candidate("fp32", threads=3, inter_op_num_threads=2, allow_spinning=True, arena=False)
    assert _tuner(_tuning(bundle), open_candidate(bundle, runs)).home == runs  # opened by somebody else


def test_a_variant_that_the_start_switched_to_is_measured_with_the_settings_that_it_has(bundle: Bundle) -> None:
    _remember(bundle, _tuned())
    opened, tried = list[Candidate](), list[Candidate]()
    tuning = _tuning(bundle, open_stages=_noting(opened))
    assert tuning.open().variant == "fp32"
    home = open_candidate(bundle, tuning.candidate_of("int8"))  # the start found FP32 too slow
    tuner = _tuner(tuning, home, on_trying=tried.append)
    tuner.after(Loop(Camera(Clock(), 33, 10), home, Collector(), Budget(100)), Tick.ON_TIME)
    tuner.close()
    assert tried == [candidate("int8")]
    assert opened == [candidate("fp32", threads=2)]  # it runs already
    assert not [thread for thread in threading.enumerate() if thread.name == "tuning"]


# Execution providers: what was missing when a board was tuned is not missing for ever.


def _promising(bundle: Bundle, provider: str) -> Bundle:
    edit_manifest(bundle.path, providers=[provider, *CPU])
    return Bundle.open(bundle.path)


@pytest.mark.parametrize(
    ("promised", "chosen", "started", "expected"),
    [
        pytest.param(AZURE, CPU, CPU, f"tuning anew: {AZURE} can be used since 20", marks=needs_azure),
        pytest.param(CUDA, (CUDA, *CPU), (CUDA, *CPU), f"tuning anew: {CUDA} cannot be used any more since 20"),
        pytest.param(AZURE, CPU, (AZURE, *CPU), "tuned at 20", marks=needs_azure),  # passed over by choice
        pytest.param(CUDA, CPU, CPU, "tuned at 20"),  # still missing
    ],
    ids=["installed since", "gone", "passed over", "missing"],
)
def test_a_provider_that_came_or_went_is_noticed(
    bundle: Bundle, promised: str, chosen: tuple[str, ...], started: tuple[str, ...], expected: str
) -> None:
    bundle = _promising(bundle, promised)
    _remember(bundle, _tuned(candidate("fp32", providers=chosen), started))
    assert _tuning(bundle).open().variant == ("fp32" if expected.startswith("tuned at") else "int8")
    [line] = SAID
    assert line.startswith(expected)


@needs_azure
def test_a_chain_that_was_cut_by_choice_is_tried_whole_at_another_rate(bundle: Bundle) -> None:
    bundle = _promising(bundle, AZURE)
    _remember(bundle, _tuned(candidate("fp32"), (AZURE, *CPU)))
    tuning = _tuning(bundle)
    assert _tuner(tuning, tuning.open(), 10).plan.promise.providers == (AZURE, *CPU)


def test_a_candidate_whose_provider_does_not_start_is_not_measured_as_if_it_had(bundle: Bundle) -> None:
    with pytest.raises(SessionError, match=f"{CUDA} does not start: not in this ONNX Runtime"):
        _tuning(_promising(bundle, CUDA)).open_beside(candidate("fp32", providers=(CUDA, *CPU)))
