"""A device with several cameras for measuring: `edge-sdk run` with a configuration file, a broker and a subscriber."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.broker import Broker

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_END_S = 30.0

Keys = Mapping[str, object]
"""Of one table of a configuration file."""


class Result(msgspec.Struct, frozen=True, gc=False):
    """Of a message what is measured here."""

    seq: int
    age_ms: float
    infer_ms: float


class Held(msgspec.Struct, frozen=True):
    """What the process holds.

    Attributes:
        resident_mb: memory, in MiB.
        files, threads: open descriptors, threads.
    """

    resident_mb: float
    files: int
    threads: int


class Device:
    """The running program; a context, after which it is gone. Its results are only counted unless they are kept.

    Args:
        broker: where its results go.
        cameras: the keys of each, by name.
        defaults: keys of all of them.
        keeps: keep the results.
    """

    def __init__(self, broker: Broker, cameras: Mapping[str, Keys], defaults: Keys, *, keeps: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edge-sdk-bench-")
        self._broker, self._cameras, self._keeps = broker, cameras, keeps
        self._lock = threading.Lock()
        self._results: dict[str, list[Result]] = defaultdict(list)
        self._count = 0
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe("edge/v1/+/+/result/#")
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        self.configure(defaults)
        command = [sys.executable, "-m", "edge_sdk", "run", "--config", str(self._file)]
        environment = {**os.environ, "STATE_DIRECTORY": self._folder.name}
        with (Path(self._folder.name) / "errors.txt").open("wb") as errors:
            self.process = subprocess.Popen(command, env=environment, stderr=errors)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(_END_S)
        self._client.disconnect()
        self._client.loop_stop()
        self._folder.cleanup()

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / "config.toml"

    @property
    def count(self) -> int:
        """Results that came so far.

        Raises:
            SystemExit: the program has ended.
        """
        if self.process.poll() is not None:
            raise SystemExit(f"it ended: {self.said}")
        return self._count

    @property
    def said(self) -> str:
        """Standard error so far."""
        return (Path(self._folder.name) / "errors.txt").read_text(encoding="utf-8")

    def configure(self, defaults: Keys, beside: Mapping[str, Keys] | None = None) -> None:
        """Write the configuration file, with these keys for all cameras, and with further cameras."""
        tables = [
            "version = 1\n",
            _table("[device]", {"name": "bench"}),
            _table("[mqtt]", {"url": self._broker.url}),
            _table("[defaults]", defaults),
            *(
                _table("[[pipelines]]", {"name": name, **keys})
                for name, keys in {**self._cameras, **(beside or {})}.items()
            ),
        ]
        self._file.write_text("".join(tables), encoding="utf-8")

    def reload(self) -> None:
        """Have it read the file again."""
        self.process.send_signal(signal.SIGHUP)

    def take_results(self) -> dict[str, list[Result]]:
        """Those that came since the last call, by camera."""
        with self._lock:
            taken, self._results = self._results, defaultdict(list)
            return taken

    def held(self) -> Held:
        """What it holds now."""
        proc = Path(f"/proc/{self.process.pid}")
        pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
        files, threads = (sum(1 for _ in (proc / name).iterdir()) for name in ("fd", "task"))
        return Held(pages * _PAGE_MB, files, threads)

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            self._count += 1
            if self._keeps:
                camera = message.topic.rpartition("/")[2]
                self._results[camera].append(msgspec.json.decode(message.payload, type=Result))


def _table(title: str, keys: Keys) -> str:
    """A table of TOML; of what stands here JSON is spelt the same way."""
    return "".join(f"{line}\n" for line in (title, *(f"{key} = {json.dumps(value)}" for key, value in keys.items())))
