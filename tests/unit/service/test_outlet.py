"""Where all that the streams of a process say goes: when it is opened, what it keeps, and what is told again."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from edge_sdk.core.errors import StoppedError, UsageError
from edge_sdk.messages.schema import TelemetryMessage
from edge_sdk.publishing.json_lines import JsonLinesPublisher
from edge_sdk.publishing.publisher import PublisherStats
from edge_sdk.service.output import Output
from edge_sdk.service.settings import PipelineSettings, RunSettings
from tests.support.connections import WAIT_S, FakeLink, until
from tests.support.results import make_detections, make_encoder, make_frame
from tests.support.service import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def _lines(*sources: str | Path) -> RunSettings:
    streams = [PipelineSettings(camera=str(s), source=str(s), bundle=Path("a.edge")) for s in sources]
    return RunSettings(device="pi", pipelines=tuple(streams))


def _telemetry(outlet: Output) -> TelemetryMessage:
    who = msgspec.structs.asdict(outlet.identity)
    return TelemetryMessage(**who, at=datetime.now(timezone.utc), throttled=[], cameras={})


def test_nothing_is_opened_before_the_first_stream(site: Site) -> None:
    outlet = site.outlet
    outlet.prepare()
    outlet.warn("hot", "81 degrees")
    outlet.telemetry(_telemetry(outlet))
    outlet.leave("gate")
    assert (outlet.stats(), site.said) == (None, [])
    assert "edge-mqtt" not in {thread.name for thread in threading.enumerate()}
    site.stream()
    until(lambda: site.state().get("warnings") == {"hot": "81 degrees"})
    assert isinstance(outlet.stats(), PublisherStats)
    assert site.said == ["broker broker:1883: online"]


def test_after_the_end_nothing_is_opened_for_a_stream_that_comes_late(site: Site) -> None:
    site.outlet.close(WAIT_S)
    with pytest.raises(StoppedError):
        site.stream()
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


def test_a_publisher_that_cannot_be_made_leaves_the_file_of_events_to_the_next(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    file = site.run_settings("gate").outbox.path_of("default", "pi")
    file.parent.mkdir(parents=True)
    file.touch()  # the outbox opens a file that is there at once

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr("edge_sdk.publishing.session.Wakeup", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            site.stream()
    site.stream()
    until(lambda: (stats := site.outlet.stats()) is not None and stats.events.is_durable)
    assert not any("another program" in line for line in site.said)


def test_a_camera_that_leaves_is_gone_whichever_stream_had_it(site: Site) -> None:
    for _ in range(2):
        site.stream("gate")
    yard = site.stream("yard")
    site.outlet.warn_of("gate", "no bundle")
    site.outlet.leave("gate")
    site.outlet.leave("gate")
    until(lambda: list(site.state().get("cameras", ())) == ["yard"])
    assert "warnings" not in site.state()
    yard.put(make_detections(1, make_frame(3, "yard")))
    until(lambda: [d["seq"] for d in site.link.documents("result")] == [3])


def test_people_hear_of_the_broker_what_they_can_do_something_about(site: Site) -> None:
    for state, detail in (
        ("connecting", ""),
        ("connecting", "Connection refused"),
        ("connecting", "connection lost"),
        ("refused", "not authorised"),
        ("refused", "the broker's certificate is not trusted"),
        ("online", ""),
        ("online", "the broker did not take a message: quota"),
        ("closed", ""),
    ):
        site.outlet._log_broker("b:1883", state, detail)
    assert [line.removeprefix("broker b:1883: ") for line in site.said] == [
        "not reachable (Connection refused), trying again",
        "connection lost, trying again",
        "refused us (not authorised), trying again",
        "not connected: the broker's certificate is not trusted, trying again",
        "online",
        "online, the broker did not take a message: quota",
    ]


def test_without_standard_output_a_stream_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = Output(_lines("pattern"), lambda: False)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError, match="standard output is closed"):
        outlet.stream("0", make_encoder(outlet.identity))


def test_lines_are_kept_for_a_slow_reader_only_where_no_stream_has_a_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, kept = tmp_path / "a.png", list[bool]()
    picture.touch()

    def publish(_stdout: object, *, keeps_all: bool, **_others: object) -> JsonLinesPublisher:
        kept.append(keeps_all)
        raise StoppedError

    monkeypatch.setattr("edge_sdk.service.output.JsonLinesPublisher", publish)
    for sources in ((picture, picture), (picture, "pattern")):
        outlet = Output(_lines(*sources), lambda: False)
        with pytest.raises(StoppedError):
            outlet.stream("0", make_encoder(outlet.identity))
    assert kept == [True, False]
