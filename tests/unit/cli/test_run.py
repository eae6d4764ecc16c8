"""`edge-sdk run`: what it prints at the end, and how it ends."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import cv2
import msgspec
import pytest

from edge_sdk.cli.run import _closing, _undelivered, _waiting
from edge_sdk.core.clock import Percentiles
from edge_sdk.core.logs import log_as_json
from edge_sdk.outbox.event import EventStats
from edge_sdk.publishing.publisher import PublisherStats, StreamStats
from edge_sdk.service.runner import RunSummary
from edge_sdk.sources.slot import SourceStats
from tests.support.broker import free_port
from tests.support.bundles import write_cell_pictures, write_graded
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.program import Cli


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def _config(folder: Path, *pipelines: str, mqtt: Table | None = None) -> Path:
    """Streams of four pictures each; one that ends in ! has no bundle."""
    write_cell_pictures(folder / "pictures")
    write_graded(folder / "graded.edge")
    pipelines = {
        name.rstrip("!"): {"source": "pictures", "bundle": "none.edge" if name.endswith("!") else "graded.edge"}
        for name in pipelines
    }
    return write_config(folder, config_text(pipelines, mqtt=mqtt, defaults=AT_EASE))


@pytest.mark.parametrize("cameras", [["gate", "yard"], ["gate"]])
def test_each_of_several_cameras_has_a_closing_line(tmp_path: Path, cli: Cli, cameras: list[str]) -> None:
    out, err = cli(0, "run", "--config", _config(tmp_path, *cameras))
    end = "stopped by end of source; 4 results"
    assert len(out.splitlines()) == 4 * len(cameras)
    assert [line.partition(end)[0] for line in err.splitlines() if end in line] == [
        f"edge-sdk: {camera}: " if len(cameras) > 1 else "edge-sdk: " for camera in cameras
    ]


def test_each_camera_has_a_document(tmp_path: Path, cli: Cli) -> None:
    config = _config(tmp_path, "gate", "yard", "hall!")
    out, err = cli(2, "run", "--config", config, "--json", "-q")  # of the last one
    documents = [msgspec.json.decode(line) for line in out.splitlines()]
    assert [d["stream"] for d in documents] == ["result"] * 8 + ["summary"] * 3
    assert [(d["camera"], d["results"]) for d in documents[8:]] == [("gate", 4), ("yard", 4), ("hall", 0)]
    assert [d["lines"] for d in documents[8:]] == [{"put": 8, "written": 8, "dropped": 0}] * 3
    [line] = err.splitlines()
    assert "no such bundle" in line


def test_that_nothing_was_delivered_is_seen(tmp_path: Path, cli: Cli) -> None:
    config = _config(tmp_path, "gate", "yard!", mqtt={"url": f"mqtt://127.0.0.1:{free_port()}"})
    assert "4 of 4 results did not reach the broker" in cli(1, "run", "--config", config, "-q").err


def test_lines_are_json_where_that_is_asked_for(tmp_path: Path, cli: Cli) -> None:
    said = cli(2, "run", "--config", _config(tmp_path, "gate", "yard!"), "--log-format", "json").err
    log_as_json(wanted=False)
    lines = [msgspec.json.decode(line) for line in said.splitlines()]
    assert {"info", "warning", "error"} == {line["level"] for line in lines}
    assert any(line["message"].startswith("source ") and line["camera"] == "gate" for line in lines)
    assert "no such bundle" in lines[-1]["message"]
    assert all(datetime.fromisoformat(line["at"].replace("Z", "+00:00")).tzinfo for line in lines)


# The last lines of a run.


def _summary(*, put: int, sent: int, limited: int) -> RunSummary:
    stream = StreamStats(
        put=put, queued=0, sent=sent, acknowledged=0, rejected=0, dropped=0, too_large=0, limited=limited
    )
    publisher = PublisherStats(**msgspec.structs.asdict(stream), connects=1, state="closed", last_error="gone")
    times = dict.fromkeys(("age", "serial", "inference"), Percentiles(1.0, 2.0, 3.0))
    return RunSummary(
        camera="gate", ended_by="signal", budget_ms=50.0, results=put, **times, delivery=stream, publisher=publisher
    )


def test_the_last_lines_say_what_was_not_decoded_not_published_and_not_delivered() -> None:
    summary = _summary(put=10, sent=2, limited=8)
    unread = msgspec.structs.replace(summary, source=SourceStats(unreadable=7))
    assert "decoded" not in _closing(summary)
    assert ", 7 could not be decoded, 8 not published, as max_per_s says" in _closing(unread)
    assert _undelivered(summary) is None
    assert _undelivered(_summary(put=10, sent=1, limited=8)) == "1 of 10 results did not reach the broker; gone"
    for is_durable, expected in ((True, "3 events wait on disk for the next start"), (False, None)):
        events = EventStats(waiting=3, is_durable=is_durable)
        assert summary.publisher is not None
        left = msgspec.structs.replace(summary.publisher, events=events)
        assert _waiting(msgspec.structs.replace(summary, publisher=left)) == expected


def test_a_password_file_that_others_can_read(tmp_path: Path, cli: Cli) -> None:
    secret = tmp_path / "pw"
    secret.write_text("hunter2\n")
    secret.chmod(0o604)
    source = ["--source", "rtsp://viewer@127.0.0.1/", "--source-password-file", secret]
    broker = ["--mqtt", "mqtt://pi@127.0.0.1", "--mqtt-password-file", secret]
    err = cli(2, "run", tmp_path / "none.edge", *source, *broker).err
    for what in ("the source's password", "the MQTT password"):
        assert f"{secret}: other users can read {what} (mode 0604); chmod 600 {secret}" in err
