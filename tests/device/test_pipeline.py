"""One stream from its source to the outbox, and the hand-over of a source to the one that takes its place."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.ahead import Ahead
from edge_sdk.camera import OpenedSource
from edge_sdk.daemon import readiness
from edge_sdk.daemon.loading import Loading
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Gate
from edge_sdk.daemon.source_ahead import source_ahead
from edge_sdk.daemon.steering import Steering
from edge_sdk.errors import CameraError, SessionError, UsageError
from tests.device.delivery import WAIT_S, until
from tests.device.site import Site, open_cameras


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    until(lambda: not open_cameras())


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index in range(3):
        cv2.imwrite(str(folder / f"{index}.png"), np.full((8, 8, 3), index, np.uint8))
    return folder


def test_images_run_to_their_end_and_are_summed_up(site: Site, pictures: Path) -> None:
    pipeline = site.pipeline(site.settings(source=str(pictures)))
    assert pipeline.join(WAIT_S)
    assert pipeline.is_over
    assert (pipeline.failure, pipeline.ended_by, pipeline.health()) == (None, "end of source", None)
    summary = pipeline.summary(site.outlet.stats())
    assert (summary.results, summary.ended_by, summary.camera) == (3, "end of source", "gate")
    assert summary.publisher is not None
    assert pipeline.model_ns <= pipeline.source_ns <= pipeline.first_result_ns
    assert site.threads == [1]


def test_while_it_runs_it_says_how_it_does_and_a_request_ends_it(site: Site) -> None:
    pipeline = site.running(site.settings())
    health = pipeline.health()
    assert health is not None
    assert health.results > 0
    assert pipeline.title == "tiny runs on pattern:64x48@50"
    pipeline.ask("reload")
    assert pipeline.join(WAIT_S)
    assert (pipeline.ended_by, open_cameras()) == ("reload", [])


def test_a_failure_is_kept_for_whoever_looks_and_is_said_of_the_device(site: Site) -> None:
    pipeline = site.pipeline(site.settings(source=str(site.folder / "none.mp4")), waits=False)
    assert pipeline.join(WAIT_S)
    assert isinstance(pipeline.failure, CameraError)
    assert (pipeline.title, pipeline.first_result_ns, pipeline.ended_by) == ("", 0, None)
    pipeline.warn("failed", "no such file")
    other = site.running(site.settings("yard"))
    until(lambda: any(d.get("warnings") == {"camera/gate": "no such file"} for d in site.link.documents("state")))
    other.warn("failed", "by and by")
    until(lambda: site.link.cameras()[-1].get("yard", {}).get("warnings") == {"failed": "by and by"})


def test_a_camera_that_leaves_takes_what_was_said_of_it_along(site: Site) -> None:
    gate, yard = site.running(site.settings("gate")), site.running(site.settings("yard"))
    failed = site.pipeline(site.settings("gate", bundle=site.folder / "none.edge"))
    assert failed.join(WAIT_S)
    failed.warn("failed", "no bundle")  # it never had a stream: the device says so
    until(lambda: "warnings" in site.state())
    gate.ask("reload")
    assert gate.join(WAIT_S)
    failed.leave_outlet()
    until(lambda: list(site.state().get("cameras", ())) == ["yard"])
    until(lambda: "warnings" not in site.state())
    assert not yard.is_over


def test_a_stop_before_its_turn_ends_it_without_a_model(site: Site) -> None:
    may_go_on, is_held = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert may_go_on.wait(WAIT_S)

    holder = threading.Thread(target=lambda: site.shared.start(hold, lambda: False))
    holder.start()
    assert is_held.wait(WAIT_S)
    pipeline = site.pipeline(site.settings())
    site.stop.ask()
    assert pipeline.join(WAIT_S)
    may_go_on.set()
    holder.join()
    assert (site.begun, pipeline.failure, pipeline.summary(None).ended_by) == ([], None, "signal")


def test_no_frame_runs_before_the_gate_opens_and_one_that_fails_does_not_keep_it_shut(site: Site) -> None:
    gate = Gate(3, patience_s=WAIT_S)
    first = site.pipeline(site.settings("gate"), gate=gate)
    until(lambda: bool(site.threads))
    failing = site.pipeline(site.settings("yard", bundle=site.folder / "none.edge"), gate=gate)
    assert failing.join(WAIT_S)
    assert isinstance(failing.failure, UsageError)
    assert not first.began.is_set()
    site.running(site.settings("hall"), gate=gate)
    until(lambda: first.first_result_ns > 0)


def test_the_very_source_is_handed_over_and_what_was_before_is_forgotten(site: Site) -> None:
    before = site.running(site.settings())
    [thread] = [t for t in threading.enumerate() if t.name == "camera gate"]
    site._pipelines.remove(before)
    after = site.running(site.settings(latency_ms=4000.0), before=before)
    assert before.is_over
    assert [t for t in threading.enumerate() if t.name == "camera gate"] == [thread]
    gone = weakref.ref(before)
    del before
    gc.collect()
    assert gone() is None  # and its model with it
    assert not after.is_over
    seqs = [d["seq"] for d in site.link.documents("result")]
    assert seqs == sorted(set(seqs))


def test_another_source_is_opened_and_the_one_before_closed(site: Site) -> None:
    before = site.running(site.settings())
    [thread] = [t for t in threading.enumerate() if t.name == "camera gate"]
    site.running(site.settings(source="pattern:32x32@50"), before=before)
    assert before.is_over
    until(lambda: not thread.is_alive())
    assert open_cameras() == ["gate"]


def test_an_heir_that_fails_before_its_time_leaves_what_runs(site: Site) -> None:
    before = site.running(site.settings())
    failing = site.pipeline(site.settings(bundle=site.folder / "none.edge"), before=before)
    assert failing.join(WAIT_S)
    assert isinstance(failing.failure, UsageError)
    assert not before.is_over
    before.ask("reload")
    assert before.join(WAIT_S)
    assert open_cameras() == []


def test_an_heir_whose_source_can_never_be_opened_leaves_what_runs(site: Site) -> None:
    before = site.running(site.settings())
    failing = site.pipeline(site.settings(source="pattern:0x0"), before=before)
    assert failing.join(WAIT_S)
    assert isinstance(failing.failure, CameraError)
    assert not failing.has_place
    assert not before.is_over
    before.ask("reload")
    assert before.join(WAIT_S)


def test_a_source_that_takes_long_to_open_holds_up_no_other_stream(
    site: Site, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()

    def ahead(settings: PipelineSettings, *, waits: bool) -> Ahead[OpenedSource]:
        def open_it() -> OpenedSource:
            assert settings.camera != "gate" or may_go_on.wait(WAIT_S)
            return source_ahead(settings, waits=waits).take()

        return Ahead(open_it, "edge-source")

    monkeypatch.setattr(readiness, "source_ahead", ahead)
    slow = site.pipeline(site.settings("gate", source=str(pictures)))
    until(lambda: slow.model_ns > 0)
    site.running(site.settings("yard"))
    assert not slow.began.is_set()
    may_go_on.set()
    assert slow.join(WAIT_S)
    assert slow.summary(None).results == 3


def test_a_model_that_does_not_load_is_given_up_and_its_turn_given_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_LONGEST_LOAD_S", 0.1)
    may_go_on, begin = threading.Event(), Site.begin

    def begin_slowly(self: Site, settings: PipelineSettings, *given: Any) -> Loading | None:
        loading = begin(self, settings, *given)
        assert loading is not None
        if settings.camera == "gate":
            model = loading.steering

            def take_slowly() -> Steering:
                assert may_go_on.wait(WAIT_S)
                return model.take()

            loading.steering = Ahead(take_slowly, "edge-model")
        return loading

    monkeypatch.setattr(Site, "begin", begin_slowly)
    slow = site.pipeline(site.settings("gate"))
    assert slow.join(WAIT_S)
    assert str(slow.failure) == "the model did not load within 0 s"
    monkeypatch.setattr(readiness, "_LONGEST_LOAD_S", WAIT_S)
    site.running(site.settings("yard"))
    may_go_on.set()


def test_no_thread_to_be_had_is_the_stream_s_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pipeline = site.pipeline(site.settings())
    monkeypatch.undo()
    assert (pipeline.is_over, pipeline.began.is_set()) == (True, True)
    assert isinstance(pipeline.failure, SessionError)
    assert pipeline.join(0)


def test_an_heir_that_fails_closes_what_was_left_for_it(site: Site) -> None:
    before = site.running(site.settings())
    before.leave_source()
    assert before.join(WAIT_S)
    assert open_cameras() == ["gate"]
    failing = site.pipeline(site.settings(bundle=site.folder / "none.edge"), before=before)
    assert failing.join(WAIT_S)
    assert open_cameras() == []


def test_what_ended_is_not_handed_over_but_opened_again(site: Site, pictures: Path) -> None:
    before = site.pipeline(site.settings(source=str(pictures)))
    assert before.join(WAIT_S)
    after = site.pipeline(site.settings(source=str(pictures)), before=before)
    assert after.join(WAIT_S)
    assert after.summary(None).results == 3


def test_an_heir_that_is_told_to_end_does_not_wait_for_one_that_hangs(site: Site) -> None:
    hangs, may_go_on = threading.Event(), threading.Event()

    def hang(_line: str) -> None:
        hangs.set()
        assert may_go_on.wait(WAIT_S)

    before = site.pipeline(site.settings(), say=hang)
    assert hangs.wait(WAIT_S)
    after = site.pipeline(site.settings(), before=before)
    until(lambda: before.ended_by == "reload")  # it is waited for
    after.ask("reload")
    assert after.join(WAIT_S)
    assert (after.failure, before.is_over) == (None, False)
    may_go_on.set()
    assert before.join(WAIT_S)
    assert open_cameras() == []  # nobody wants it any more, so whoever used it closed it
