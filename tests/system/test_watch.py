"""`edge-sdk watch` on a real broker, and the listener below it: lines, JSON, COCO, a terminal, outages and refusals."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from pycocotools.coco import COCO

from edge_sdk.publishing.client import WINDOW
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.subscriber import Subscriber
from tests.support.broker import WAIT_S, Broker, DeafBroker, free_port, wait_until
from tests.support.connections import put
from tests.support.device import ear
from tests.support.program import edge_sdk
from tests.support.subscribers import publishing_to, until, wait_online

pytestmark = pytest.mark.system


class _Watching:
    def __init__(self, broker: Broker | DeafBroker, *arguments: object, in_terminal: bool = False) -> None:
        command = [sys.executable, "-m", "edge_sdk", "watch", "--mqtt", broker.url, *map(str, arguments)]
        environment = {**os.environ, "TERM": "xterm"}
        if in_terminal:
            master, slave = pty.openpty()
            self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
            os.close(slave)
            files = [os.fdopen(master, "rb")]
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment)
            files = [self.process.stdout, self.process.stderr]
        self._lines: tuple[list[str], list[str]] = ([], [])
        self._ears = [ear(*each) for each in zip(files, self._lines, strict=False)]

    def __enter__(self) -> _Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()

    @property
    def shown(self) -> str:
        return "\n".join(self._lines[0])

    def says(self, text: str, times: int = 1) -> None:
        self._hears(self._lines[0], text, times)

    def warns(self, text: str, times: int = 1) -> None:
        self._hears(self._lines[1], text, times)

    def _hears(self, said: list[str], text: str, times: int) -> None:
        wait_until(lambda: "\n".join(said).count(text) >= times, lambda: f"{text!r} in {self._lines}")

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        code = self.process.wait(WAIT_S)
        for each in self._ears:
            each.join(WAIT_S)
        return code


def test_a_fleet_comes_works_and_goes_through_a_restart_of_the_broker(broker: Broker) -> None:
    with _Watching(broker) as watch:
        watch.warns("nothing yet, waiting for messages on edge/v1/+/+/#")
        with publishing_to(broker, qos=1) as (publisher, door):
            wait_online(publisher)
            watch.says("default/pi: online, door: tiny 3; edge_sdk 0.0")
            put(door, 1)
            watch.says("default/pi/door: ")
            broker.restart()
            watch.warns("trying again")
            watch.warns(": online", times=2)
            publisher.warn("disk", "is full")
            watch.says("default/pi: warning: disk: is full")
        watch.says("default/pi: offline (shutdown)")
        assert watch.end() == 0


def test_the_live_view_leaves_the_terminal_as_it_was(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        wait_online(publisher)
        with _Watching(broker, in_terminal=True) as watch:
            watch.says("default/pi")
            put(door, 1)
            watch.says("door")
            assert watch.end() == 0
            before, _, after = watch.shown.partition("\x1b[?25h\x1b[?1049l")
    assert (before[:14], before.count("\x1b[?1049h")) == ("\x1b[?1049h\x1b[?25l", 1)
    assert ("default/pi" in after, "\x1b[?1049h" in after) == (True, False)  # what it showed last stays readable


@pytest.mark.smoke
def test_json_lines_hold_every_message(broker: Broker) -> None:
    with publishing_to(broker, qos=1) as (publisher, door):
        put(door, *range(5))
        until(publisher, lambda s: s.acknowledged == 5, "the answers")
        with _Watching(broker, "--json", "--site", "default", "--device", "pi") as watch:
            watch.says('"kind":"status"')
            put(door, *range(5, 25))
            watch.says('"kind":"result"', times=20)
            assert watch.end(signal.SIGTERM) == 0
            lines = [msgspec.json.decode(line) for line in watch.shown.splitlines()]
    assert [line["message"]["seq"] for line in lines if line["kind"] == "result"] == list(range(5, 25))
    assert {line["retain"] for line in lines if line["kind"] == "result"} == {False}
    assert next(line["device"] for line in lines if line["kind"] == "status") == "pi"


def test_coco_results_of_a_run(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    with publishing_to(broker, qos=1) as (publisher, door), _Watching(broker, "--coco", path) as watch:
        wait_online(publisher)
        watch.says("default/pi: online")
        put(door, 1, 2, 3, count=4)
        watch.says("default/pi/door: ")
        until(publisher, lambda s: s.acknowledged == 3, "the answers")
        publisher.warn("done", "yes")
        watch.says("warning: done")
        assert watch.end() == 0
        watch.warns(f"wrote {path}: 12 detections on 3 images")
    with contextlib.redirect_stdout(io.StringIO()):
        images = COCO(str(tmp_path / "seen.images.json"))
        results = images.loadRes(str(path))
    assert (len(images.getImgIds()), len(results.getAnnIds())) == (3, 12)


def test_a_duration_ends_it(broker: Broker) -> None:
    timed = edge_sdk("watch", "--mqtt", broker.url, "--site", "nowhere", "--duration", 8)
    assert (timed.returncode, timed.stdout) == (0, "")


def test_a_broker_that_never_was_there(tmp_path: Path) -> None:
    url, coco = f"mqtt://127.0.0.1:{free_port()}", ("--coco", tmp_path / "seen.json")
    ran = edge_sdk("watch", "--mqtt", url, "--duration", 8, "-q", *coco)
    assert ran.returncode == 1
    assert list(tmp_path.iterdir()) == []
    [line] = ran.stderr.splitlines()
    assert "Connection refused, trying again" in line


def test_who_may_not_read_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    (tmp_path / "pw").chmod(0o600)
    with Broker(tmp_path, users={"eye": "right"}) as broker:
        url = broker.url.replace("//", "//eye@")
        ran = edge_sdk("watch", "--mqtt", url, "--mqtt-password-file", tmp_path / "pw")
        assert (ran.returncode, ran.stdout, "hunter2" in ran.stderr) == (1, "", False)
        [line] = ran.stderr.splitlines()  # and it is not tried again
        place = tmp_path / "pw"
        assert f"refused us (Not authorized (reason code 135), as 'eye' with the password in {place}: give the" in line
        (tmp_path / "pw").write_text("right\n")
        with publishing_to(broker, user="eye", password="right") as (publisher, _):
            wait_online(publisher)
        ran = edge_sdk("watch", "--mqtt", url, "--mqtt-password-file", tmp_path / "pw", "--count", 1)
        assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 1)


def test_a_first_answer_that_passes_by_itself_is_waited_out() -> None:
    with DeafBroker(connects=[0x88], subscribes=[0x97]) as broker, _Watching(broker) as watch:
        watch.warns("Server unavailable (reason code 136), trying again")
        watch.warns("Quota exceeded, trying again")
        watch.warns(": online")
        assert watch.end() == 0


def test_a_reader_that_leaves(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        wait_online(publisher)
        command = f"{sys.executable} -m edge_sdk watch --mqtt {broker.url} --json | head -n 1"
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_until(lambda: (put(door, 1), process.poll() is not None)[1], "the end")
            out, err = process.communicate(timeout=WAIT_S)
    assert len(out.splitlines()) == 1
    assert b"Traceback" not in err


def test_a_broker_waits_for_a_reader_that_pauses() -> None:
    """The listener below `watch` keeps its connection, and nothing that the broker has is lost."""
    count, states, heard = 5000, [], []
    with DeafBroker(subscribes=[], sends=count) as broker:
        settings = MqttSettings(host="127.0.0.1", port=broker.port, device="pi", keepalive_s=3)
        with closing(Subscriber(settings, ["edge/v1/#"], lambda state, _detail: states.append(state))) as listener:
            wait_until(lambda: broker.sent >= 2000, "a listener that is half full")
            known = broker.pings
            wait_until(lambda: broker.pings >= known + 2, "a long pause")
            assert broker.sent < 2000 + WINDOW  # what makes it half full is not acknowledged

            def are_all_known() -> bool:
                heard.extend(int(each.payload) for each in listener.take(0.1))
                return len(heard) >= count

            wait_until(are_all_known, "the rest")
            assert heard == list(range(1, count + 1))
            assert (states, listener.lost, broker.connections) == (["online"], 0, 1)
