"""Pipeline: one stream from its source to the outbox, its source's handover to the next one, and the output of all."""

import errno
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.core.errors import CameraError, SessionError, StoppedError, UsageError
from edge_sdk.core.machine import no_collection
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.messages.schema import TelemetryMessage
from edge_sdk.publishing.json_lines import JsonLinesPublisher
from edge_sdk.publishing.publisher import PublisherStats
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import Secret
from edge_sdk.service import model_selector
from edge_sdk.service import pipeline as pipeline_module
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import begin_opening
from edge_sdk.service.process import Gate
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.slot import OpenedSource
from tests.support.connections import WAIT_S, FakeLink, until
from tests.support.logs import refusal
from tests.support.results import make_encoder
from tests.support.service import Site, open_cameras


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    until(lambda: not open_cameras())


def test_images_run_to_their_end_are_summed_up_and_are_read_by_a_successor(site: Site, cell_pictures: Path) -> None:
    pipeline = site.pipeline(site.settings(source=str(cell_pictures)))
    assert pipeline.join(WAIT_S)
    assert (pipeline.failure, pipeline.is_over, pipeline.health(), pipeline.threads) == (None, True, None, 1)
    summary = pipeline.summary(site.outlet.stats())
    assert (summary.results, summary.ended_by, summary.camera) == (4, pipeline.ended_by, "gate")
    assert (pipeline.ended_by, summary.publisher is None) == ("end of source", False)
    assert pipeline.model_ns <= pipeline.source_ns <= pipeline.first_result_ns
    after = site.pipeline(site.settings(source=str(cell_pictures)), before=pipeline)
    assert (after.join(WAIT_S), after.summary(None).results) == (True, 4)


def test_a_failure_is_kept_and_the_device_says_so_until_the_camera_runs_or_leaves(site: Site) -> None:
    failed = site.pipeline(site.settings(source=str(site.folder / "none.mp4")), waits=False)
    assert (failed.join(WAIT_S), type(failed.failure)) == (True, CameraError)
    assert (failed.title, failed.first_result_ns, failed.ended_by) == ("", 0, None)
    failed.warn("failed", "no such file")  # it never had a stream
    yard = site.running(site.settings("yard"))
    until(lambda: site.state().get("warnings") == {"camera/gate": "no such file"})
    yard.warn("failed", "by and by")
    until(lambda: site.link.cameras()[-1].get("yard", {}).get("warnings") == {"failed": "by and by"})
    site.running(site.settings())
    until(lambda: "warnings" not in site.state())
    assert sorted(site.state()["cameras"]) == ["gate", "yard"]
    site.outlet.warn_of("gate", "no bundle")
    for _ in range(2):
        failed.leave_output()
    until(lambda: list(site.state()["cameras"]) == ["yard"])
    assert "camera/gate" not in site.state().get("warnings", {})


def test_a_stop_before_its_turn_ends_it_without_a_model(site: Site) -> None:
    with site.shared.turn(lambda: False):
        pipeline = site.pipeline(site.settings())
        site.stop.ask()
        assert pipeline.join(WAIT_S)
    assert (pipeline.model_ns, pipeline.failure, pipeline.summary(None).ended_by) == (0, None, "signal")


def test_no_frame_runs_before_the_gate_opens_and_one_that_fails_does_not_keep_it_shut(site: Site) -> None:
    gate = Gate(3, patience_s=math.inf)
    first = site.pipeline(site.settings("gate"), gate=gate)
    until(lambda: bool(first.threads))
    failing = site.pipeline(site.settings("yard", bundle=site.folder / "none.edge"), gate=gate)
    assert failing.join(WAIT_S)
    assert (type(failing.failure), first.began.is_set()) == (UsageError, False)
    site.running(site.settings("hall"), gate=gate)
    until(lambda: first.first_result_ns > 0)


def _camera_thread() -> threading.Thread:
    [thread] = [t for t in threading.enumerate() if t.name == "camera gate"]
    return thread


def test_the_very_source_is_handed_over_and_the_pipeline_before_is_forgotten(site: Site) -> None:
    before: Any = site.running(site.settings())
    thread = _camera_thread()
    site._pipelines.remove(before)
    runner = before._runner
    after = site.running(site.settings(latency_ms=4000.0), before=before)
    assert before.is_over
    assert _camera_thread() is thread
    del before
    gone = weakref.ref(runner.loop)
    del runner
    with no_collection():  # its model is given back at once, and not once cycles are looked for
        until(lambda: gone() is None)
    assert not after.is_over
    seqs = [d["seq"] for d in site.link.documents("result")]
    assert seqs == sorted(set(seqs))


def test_another_source_is_opened_and_the_one_before_closed(site: Site) -> None:
    before: Any = site.running(site.settings())
    assert (before.health().results > 0, before.title) == (True, "tiny runs on pattern:64x48@50")
    thread = _camera_thread()
    site.running(site.settings(source="pattern:32x32@50"), before=before)
    assert before.is_over
    until(lambda: not thread.is_alive())
    assert open_cameras() == ["gate"]


def test_a_slow_source_holds_up_none(site: Site, cell_pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()

    def ahead(settings: PipelineSettings, *, waits: bool) -> BackgroundTask[OpenedSource]:
        def open_it() -> OpenedSource:
            assert settings.camera != "gate" or may_go_on.wait(WAIT_S)
            return begin_opening(settings, waits=waits).take()

        return BackgroundTask(open_it, "edge-source")

    monkeypatch.setattr(pipeline_module, "begin_opening", ahead)
    slow = site.pipeline(site.settings("gate", source=str(cell_pictures)))
    until(lambda: slow.model_ns > 0)
    site.running(site.settings("yard"))
    assert not slow.began.is_set()
    may_go_on.set()
    assert (slow.join(WAIT_S), slow.summary(None).results) == (True, 4)


def test_a_model_that_does_not_load_gives_its_turn_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_selector, "_FIRST_LOAD_S", 0.1)
    may_go_on = threading.Event()

    def load_slowly(settings: PipelineSettings, *given: Any) -> ModelSelector:
        assert settings.camera != "gate" or may_go_on.wait(WAIT_S)
        return ModelSelector(settings, *given)

    monkeypatch.setattr(model_selector, "ModelSelector", load_slowly)
    slow = site.pipeline(site.settings("gate"))
    assert slow.join(WAIT_S)
    assert str(slow.failure) == "the model did not load within 0 s"
    monkeypatch.setattr(model_selector, "_FIRST_LOAD_S", WAIT_S)
    site.running(site.settings("yard"))
    may_go_on.set()


def test_want_of_a_thread_is_the_failure_of_the_stream(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pipeline = site.pipeline(site.settings())
    monkeypatch.undo()
    assert (pipeline.is_over, pipeline.began.is_set(), pipeline.join(0)) == (True, True, True)
    assert isinstance(pipeline.failure, SessionError)


def test_a_successor_that_is_told_to_end_does_not_wait_for_a_pipeline_that_hangs(site: Site) -> None:
    hangs, may_go_on = threading.Event(), threading.Event()

    def hang(_frame: object) -> None:
        hangs.set()
        assert may_go_on.wait(WAIT_S)

    before: Any = site.running(site.settings())
    before._runner.loop.stages = hang
    assert hangs.wait(WAIT_S)
    after = site.pipeline(site.settings(), before=before)
    until(lambda: before.ended_by == "reload")  # it is waited for
    after.ask("reload")
    assert after.join(WAIT_S)
    assert (after.failure, before.is_over) == (None, False)
    may_go_on.set()
    assert before.join(WAIT_S)
    assert open_cameras() == []  # nobody wants it any more, so whoever used it closed it


# What follows from the settings of a pipeline.


def test_an_opened_source_serves_settings_that_read_it_the_same_way() -> None:
    for changes, is_same in (
        ({"bundle": Path("b.edge"), "latency_ms": 20.0, "tune": False, "frames": 3}, True),
        ({"source_password": Secret("new")}, False),
        ({"camera": "yard"}, False),  # every frame bears it
    ):
        gate = PipelineSettings(camera="gate", source="rtsp://bob@host/live", bundle=Path("a.edge"))
        other = msgspec.structs.replace(gate, **changes)
        assert gate.same_source(other) is other.same_source(gate) is is_same


# The output: where all that the streams of a process say goes, when it is opened, and what is told again.


def _lines(*sources: str | Path) -> Output:
    streams = [PipelineSettings(camera=str(s), source=str(s), bundle=Path("a.edge")) for s in sources]
    return Output(RunSettings(device="pi", pipelines=tuple(streams)), lambda: False)


def test_nothing_is_opened_before_the_first_stream(site: Site) -> None:
    outlet = site.outlet
    outlet.prepare()
    outlet.warn("hot", "81 degrees")
    who = msgspec.structs.asdict(outlet.identity)
    outlet.telemetry(TelemetryMessage(**who, at=datetime.now(timezone.utc), throttled=[], cameras={}))
    outlet.leave("gate")
    assert (outlet.stats(), site.said) == (None, [])
    assert "edge-mqtt" not in {thread.name for thread in threading.enumerate()}
    site.stream()
    until(lambda: site.state().get("warnings") == {"hot": "81 degrees"})
    assert isinstance(outlet.stats(), PublisherStats)
    assert site.said == ["broker broker:1883: online"]


def test_after_the_end_nothing_is_opened_for_a_stream_that_comes_late(site: Site) -> None:
    site.outlet.close(WAIT_S)
    refusal(StoppedError, site.stream)
    assert site.outlet.stats() is None
    assert "edge-mqtt" not in {thread.name for thread in threading.enumerate()}


def test_after_a_restart_warnings_are_told_again_and_messages_name_the_new_device(site: Site) -> None:
    output, run_id = site.outlet, site.outlet.identity.run_id
    site.stream()
    output.warn("hot", "81 degrees")
    output.warn("disk", "nearly full")
    until(lambda: "warnings" in site.state())
    first, second = site.link, FakeLink()
    site.link = second
    output.restart(site.run_settings("gate", device="other"), WAIT_S, WAIT_S)
    output.warn("disk", "")
    output.warn("memory", "low")
    assert (output.identity.device, output.stats()) == ("other", None)
    assert output.identity.run_id != run_id
    site.stream()
    until(lambda: site.state().get("warnings") == {"hot": "81 degrees", "memory": "low"})
    assert {document["device"] for document in second.documents("state")} == {"other"}
    assert {document["device"] for document in first.documents("state")} == {"pi"}


def test_a_publisher_that_fails_leaves_the_events(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    file = site.run_settings("gate").outbox.path_of("default", "pi")
    file.parent.mkdir(parents=True)
    file.touch()  # the outbox opens a file that is there at once

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr("edge_sdk.publishing.session.Wakeup", refuse)
        assert "Too many open files" in refusal(OSError, site.stream)
    site.stream()
    until(lambda: (stats := site.outlet.stats()) is not None and stats.events.is_durable)
    assert not any("another program" in line for line in site.said)


def test_people_hear_of_the_broker_what_they_can_do_something_about(site: Site) -> None:
    distrust = "the broker's certificate is not trusted"
    told: tuple[tuple[ConnectionState, str, list[str]], ...] = (
        ("connecting", "", []),
        ("connecting", "Connection refused", ["not reachable (Connection refused), trying again"]),
        ("refused", "not authorised", ["refused us (not authorised), trying again"]),
        ("refused", distrust, [f"not connected: {distrust}, trying again"]),
        ("online", "the broker did not take a message: quota", ["online, the broker did not take a message: quota"]),
        ("closed", "", []),
    )
    for state, detail, said in told:
        site.said.clear()
        site.outlet._log_broker("b:1883", state, detail)
        assert site.said == [f"broker b:1883: {line}" for line in said]


def test_without_standard_output_a_stream_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = _lines("pattern")
    monkeypatch.setattr(sys, "stdout", None)
    assert "standard output is closed" in refusal(UsageError, outlet.stream, "0", make_encoder(outlet.identity))


def test_lines_wait_for_a_reader_where_no_stream_has_a_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, kept = tmp_path / "a.png", list[bool]()
    picture.touch()

    def publish(_stdout: object, *, keeps_all: bool, **_others: object) -> JsonLinesPublisher:
        kept.append(keeps_all)
        raise StoppedError

    monkeypatch.setattr("edge_sdk.service.output.JsonLinesPublisher", publish)
    for outlet in (_lines(picture, picture), _lines(picture, "pattern")):
        refusal(StoppedError, outlet.stream, "0", make_encoder(outlet.identity))
    assert kept == [True, False]
