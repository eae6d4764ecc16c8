"""`edge-sdk run`: what it prints at the end, and how it ends."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.cli.root import run
from edge_sdk.cli.run import _closing, _undelivered, _waiting
from edge_sdk.core.clock import Percentiles
from edge_sdk.core.logs import log_as_json
from edge_sdk.outbox.event import EventStats
from edge_sdk.publishing.publisher import PublisherStats, StreamStats
from edge_sdk.service.runner import RunSummary
from edge_sdk.sources.slot import SourceStats
from tests.support.broker import free_port
from tests.support.bundles import write_graded
from tests.support.configs import AT_EASE, Table, config_text, write_config


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def _config(folder: Path, *streams: str, mqtt: Table | None = None) -> Path:
    """Streams of three pictures each; one that ends in ! has no bundle."""
    (folder / "pictures").mkdir(parents=True)
    write_graded(folder / "graded.edge")
    for index in range(3):
        cv2.imwrite(str(folder / f"pictures/{index}.png"), np.zeros((8, 8, 3), np.uint8))
    pipelines = {
        name.rstrip("!"): {"source": "pictures", "bundle": "none.edge" if name.endswith("!") else "graded.edge"}
        for name in streams
    }
    return write_config(folder, config_text(pipelines, mqtt=mqtt, defaults=AT_EASE))


def test_each_of_several_cameras_has_a_closing_line(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["run", "--config", str(_config(tmp_path, "gate", "yard"))]) == 0
    out, err = capsysbinary.readouterr()
    assert len(out.splitlines()) == 6
    closings = [line for line in err.decode().splitlines() if "stopped by" in line]
    assert [line.partition(": stopped by ")[0] for line in closings] == ["edge-sdk: gate", "edge-sdk: yard"]
    assert all("end of source; 3 results" in line for line in closings)
    assert run(["run", "--config", str(_config(tmp_path / "one", "gate"))]) == 0
    assert capsysbinary.readouterr().err.splitlines()[-1].startswith(b"edge-sdk: stopped by end of source; 3 results")


def test_each_camera_has_a_document(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    config = _config(tmp_path, "gate", "yard", "hall!")
    assert run(["run", "--config", str(config), "--json", "-q"]) == 2  # of the last one
    out, err = capsysbinary.readouterr()
    documents = [msgspec.json.decode(line) for line in out.splitlines()]
    assert [d["stream"] for d in documents] == ["result"] * 6 + ["summary"] * 3
    assert [(d["camera"], d["results"]) for d in documents[6:]] == [("gate", 3), ("yard", 3), ("hall", 0)]
    assert [d["lines"] for d in documents[6:]] == [{"put": 6, "written": 6, "dropped": 0}] * 3
    [line] = err.decode().splitlines()
    assert "no such bundle" in line


def test_that_nothing_was_delivered_is_seen(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    config = _config(tmp_path, "gate", "yard!", mqtt={"url": f"mqtt://127.0.0.1:{free_port()}"})
    assert run(["run", "--config", str(config), "-q"]) == 1
    assert b"3 of 3 results did not reach the broker" in capsysbinary.readouterr().err


def test_lines_are_json_where_that_is_asked_for(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    config = _config(tmp_path, "gate", "yard!")
    assert run(["run", "--config", str(config), "--log-format", "json"]) == 2
    lines = [msgspec.json.decode(line) for line in capsysbinary.readouterr().err.splitlines()]
    log_as_json(wanted=False)
    assert {"info", "warning", "error"} == {line["level"] for line in lines}
    assert any(line["message"].startswith("source ") and line["camera"] == "gate" for line in lines)
    assert "no such bundle" in lines[-1]["message"]
    assert all(datetime.fromisoformat(line["at"].replace("Z", "+00:00")).tzinfo for line in lines)


# The last lines of a run.

_TIMES = Percentiles(1.0, 2.0, 3.0)
_NOTHING = RunSummary(camera="gate", ended_by="signal", budget_ms=50.0)


def _summary(*, put: int, sent: int, limited: int) -> RunSummary:
    stream = StreamStats(
        put=put, queued=0, sent=sent, acknowledged=0, rejected=0, dropped=0, too_large=0, limited=limited
    )
    publisher = PublisherStats(**msgspec.structs.asdict(stream), connects=1, state="closed", last_error="gone")
    times = {"age": _TIMES, "serial": _TIMES, "inference": _TIMES}
    return msgspec.structs.replace(_NOTHING, results=put, **times, delivery=stream, publisher=publisher)


def test_the_last_lines_say_what_was_not_decoded_not_published_and_not_delivered() -> None:
    summary = _summary(put=10, sent=2, limited=8)
    unread = msgspec.structs.replace(summary, source=SourceStats(unreadable=7))
    assert "decoded" not in _closing(summary)
    assert ", 7 could not be decoded, 8 not published, as max_per_s says" in _closing(unread)
    assert _undelivered(summary) is None
    assert _undelivered(_summary(put=10, sent=1, limited=8)) == "1 of 10 results did not reach the broker; gone"
    assert summary.publisher is not None
    for events, expected in (
        (EventStats(waiting=3, is_durable=True), "3 events wait on disk for the next start"),
        (EventStats(waiting=3), None),
    ):
        left = msgspec.structs.replace(summary.publisher, events=events)
        assert _waiting(msgspec.structs.replace(summary, publisher=left)) == expected


def test_a_password_file_that_others_can_read(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    secret = tmp_path / "pw"
    secret.write_text("hunter2\n")
    secret.chmod(0o604)
    source = ["--source", "rtsp://viewer@127.0.0.1/", "--source-password-file", str(secret)]
    broker = ["--mqtt", "mqtt://pi@127.0.0.1", "--mqtt-password-file", str(secret)]
    assert run(["run", str(tmp_path / "none.edge"), *source, *broker]) == 2
    err = capsysbinary.readouterr().err.decode()
    for what in ("the source's password", "the MQTT password"):
        assert f"{secret}: other users can read {what} (mode 0604); chmod 600 {secret}" in err
