"""`edge-sdk watch` on a real broker: lines, JSON, COCO, a terminal, outages and refusals."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from pycocotools.coco import COCO

from tests.support.broker import WAIT_S, Broker, DeafBroker, TlsBroker, free_port, wait_until
from tests.support.certificates import Authority
from tests.support.program import edge_sdk
from tests.support.subscribers import publishing_to, put, until

pytestmark = pytest.mark.system


class _Output:
    """What a program writes, read while it runs."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._data = descriptor, bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return bytes(self._data).decode("utf-8", "replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # a terminal whose other side is closed
            while data := os.read(self._descriptor, 65536):
                self._data += data

    def wait(self) -> None:
        self._thread.join(WAIT_S)


class _Watching:
    """A running `edge-sdk watch`."""

    def __init__(self, process: subprocess.Popen[bytes], out: _Output, err: _Output | None) -> None:
        self.process, self.out, self.err = process, out, err

    def says(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.out.text.count(text) >= times, f"{text!r} in {self.out.text!r} {self.errors!r}")

    def warns(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.errors.count(text) >= times, f"{text!r} in {self.errors!r}")

    @property
    def errors(self) -> str:
        return self.err.text if self.err is not None else ""

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        code = self.process.wait(WAIT_S)
        if self.err is not None:
            self.out.wait()
        return code


@contextmanager
def _watching(broker: Broker | DeafBroker, *arguments: object, in_terminal: bool = False) -> Iterator[_Watching]:
    command = [sys.executable, "-m", "edge_sdk", "watch", "--mqtt", broker.url, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm"}
    if in_terminal:
        master, slave = pty.openpty()
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        watching = _Watching(process, _Output(master), None)
    else:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        assert process.stderr is not None
        watching = _Watching(process, _Output(process.stdout.fileno()), _Output(process.stderr.fileno()))
    try:
        yield watching
    finally:
        process.kill()
        process.wait(WAIT_S)
        watching.out.wait()
        if in_terminal:
            os.close(master)
        elif process.stdout is not None and process.stderr is not None:
            process.stdout.close()
            process.stderr.close()


def test_a_fleet_comes_works_and_goes_through_a_restart_of_the_broker(broker: Broker) -> None:
    with _watching(broker) as watch:
        watch.warns("nothing yet, waiting for messages on edge/v1/+/+/#")
        with publishing_to(broker, qos=1) as (publisher, door):
            until(publisher, lambda s: s.state == "online", "the connection")
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
    assert "Traceback" not in watch.errors


def test_the_live_view_leaves_the_terminal_as_it_was(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        until(publisher, lambda s: s.state == "online", "the connection")
        with _watching(broker, in_terminal=True) as watch:
            watch.says("default/pi")
            put(door, 1)
            watch.says("door")
            assert watch.out.text.count("\x1b[?1049h") == 1
            assert watch.end() == 0
            text = watch.out.text
    before, _, after = text.partition("\x1b[?25h\x1b[?1049l")
    assert before.startswith("\x1b[?1049h\x1b[?25l")
    assert "default/pi" in after  # what it showed last stays readable
    assert "\x1b[?1049h" not in after


def test_what_is_waited_for_is_shown(broker: Broker) -> None:
    with _watching(broker, "--site", "nowhere", in_terminal=True) as watch:
        watch.says("Does a device publish there")
        broker.kill()
        watch.says("nothing yet, waiting for the broker")
        before = watch.out.text.count("Does a device publish there")
        broker.start()
        watch.says("Does a device publish there", times=before + 1)


@pytest.mark.smoke
def test_json_lines_hold_every_message(broker: Broker) -> None:
    with publishing_to(broker, qos=1) as (publisher, door):
        put(door, *range(5))
        until(publisher, lambda s: s.acknowledged == 5, "the answers")
        with _watching(broker, "--json", "--site", "default", "--device", "pi") as watch:
            watch.says('"kind":"status"')
            put(door, *range(5, 25))
            watch.says('"kind":"result"', times=20)
            assert watch.end(signal.SIGTERM) == 0
            lines = [msgspec.json.decode(line) for line in watch.out.text.splitlines()]
    assert [line["message"]["seq"] for line in lines if line["kind"] == "result"] == list(range(5, 25))
    assert {line["retain"] for line in lines if line["kind"] == "result"} == {False}
    assert next(line["device"] for line in lines if line["kind"] == "status") == "pi"


def test_coco_results_of_a_run(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    with publishing_to(broker, qos=1) as (publisher, door), _watching(broker, "--coco", path) as watch:
        until(publisher, lambda s: s.state == "online", "the connection")
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


def test_count_and_duration_end_it(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, _):
        until(publisher, lambda s: s.state == "online", "the connection")
        counted = edge_sdk("watch", "--mqtt", broker.url, "--json", "--count", 2)
        assert (counted.returncode, len(counted.stdout.splitlines())) == (0, 2)
    timed = edge_sdk("watch", "--mqtt", broker.url, "--site", "nowhere", "--duration", 1)
    assert (timed.returncode, timed.stdout) == (0, "")


def test_a_broker_that_never_was_there(tmp_path: Path) -> None:
    url, coco = f"mqtt://127.0.0.1:{free_port()}", ("--coco", tmp_path / "seen.json")
    ran = edge_sdk("watch", "--mqtt", url, "--duration", 1, "-q", *coco)
    assert ran.returncode == 1
    assert list(tmp_path.iterdir()) == []
    [line] = ran.stderr.splitlines()
    assert "Connection refused, trying again" in line


def test_who_may_not_read_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    with Broker(tmp_path, users={"eye": "right"}) as broker:
        url = broker.url.replace("//", "//eye@")
        ran = edge_sdk("watch", "--mqtt", url, "--mqtt-password-file", tmp_path / "pw")
        assert ran.returncode == 1
        [line] = ran.stderr.splitlines()  # and it is not tried again
        place = tmp_path / "pw"
        assert f"refused us (Not authorized (reason code 135), as 'eye' with the password in {place}: give the" in line
        assert not line.endswith("trying again")
        assert "hunter2" not in ran.stdout + ran.stderr
        (tmp_path / "pw").write_text("right\n")
        ran = edge_sdk("watch", "--mqtt", url, "--mqtt-password-file", tmp_path / "pw", "--duration", 1)
        assert ran.returncode == 0


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"connects": [0x88]}, "Server unavailable (reason code 136), trying again"),
        ({"connects": [0x89]}, "Server busy (reason code 137), trying again"),
        ({"connects": [0x97]}, "Quota exceeded (reason code 151), trying again"),
        ({"subscribes": [0x97]}, "Quota exceeded, trying again"),
    ],
)
def test_a_first_answer_that_passes_by_itself_is_waited_out(answers: dict[str, list[int]], words: str) -> None:
    with DeafBroker(**{"subscribes": [], **answers}) as broker, _watching(broker) as watch:
        watch.warns(words)
        watch.warns(": online")
        assert watch.end() == 0


def test_an_encrypted_broker_and_one_that_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    other = Authority(tmp_path, "other")
    with TlsBroker(tmp_path / "broker", more=["protocol websockets"]) as broker:
        url = f"wss://localhost:{broker.tls_port}"
        good = edge_sdk("watch", "--mqtt", url, "--mqtt-ca-file", broker.authority.file, "--duration", 1)
        assert good.returncode == 0, good.stderr
        bad = edge_sdk("watch", "--mqtt", url, "--mqtt-ca-file", other.file)
    assert bad.returncode == 1
    assert "the broker's certificate is not trusted" in bad.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--mqtt", "http://h"], "--mqtt: the URL cannot be read"),
        (["--mqtt", "mqtt://u:hunter2@h"], "--mqtt: the URL holds a password"),
        (["--mqtt", "mqtt://h", "--site", "a/b"], "site name 'a/b' cannot be part of a topic"),
        (["--mqtt", "mqtt://h", "--prefix", "a/#"], "topic prefix name '#' cannot be part of a topic"),
        (["--mqtt", "mqtts://h", "--mqtt-ca-file", "none.pem"], ": the authorities' certificates cannot be read"),
        (["--mqtt", "mqtts://h", "--mqtt-cert-file", "no.pem"], "no.pem: this device's certificate cannot be read"),
        ([], "Missing option '--mqtt'"),
    ],
)
def test_what_cannot_be_watched_is_one_line(arguments: list[str], expected: str) -> None:
    ran = edge_sdk("watch", *arguments)
    assert ran.returncode == 2
    [line] = ran.stderr.splitlines()
    assert expected in line
    assert "hunter2" not in line


def test_a_reader_that_leaves(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        until(publisher, lambda s: s.state == "online", "the connection")
        command = f"{sys.executable} -m edge_sdk watch --mqtt {broker.url} --json | head -n 1"
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_until(lambda: (put(door, 1), process.poll() is not None)[1], "the end")
            out, err = process.communicate(timeout=WAIT_S)
    assert len(out.splitlines()) == 1
    assert b"Traceback" not in err
