"""A run that has events all the time: what its video shows comes and goes every half second."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np

from tests.device.configs import AT_EASE, Table, config_text, write_config
from tests.system.bundles import cell_picture

_FPS, _HALF = 20, 10
_RULES = '[[events]]\nlabels = ["red", "blue"]\ndisappear_s = 0\n'


def write_blinking_video(path: Path, seconds: int = 120) -> Path:
    """A red and a blue cell for ten frames, and nothing for ten frames."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), _FPS, (128, 128))
    shown, black = _pictures()
    for index in range(seconds * _FPS):
        writer.write(shown if index // _HALF % 2 else black)
    writer.release()
    return path


def _pictures() -> tuple[np.ndarray, np.ndarray]:
    """With cells, and without; noise makes some kilobytes of them."""
    noise = np.random.default_rng(7).integers(0, 24, (128, 128, 3), np.uint8)
    return np.maximum(cell_picture(1), noise), noise


def write_blinking_config(folder: Path, bundle: Path, source: object, **tables: Table) -> Path:
    """A configuration whose camera `gate` tells eight events in two seconds."""
    text = config_text({"gate": {"source": source}}, **tables, defaults={**AT_EASE, "bundle": bundle})
    return write_config(folder, f"{text}\n{_RULES}")


class BlinkingCamera:
    """The same as a camera of MJPEG over HTTP, whose pictures are taken when they come; as a context manager."""

    def __init__(self) -> None:
        shown, black = _pictures()
        encoded = [cv2.imencode(".jpg", picture)[1].tobytes() for picture in (black, shown)]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
                self.end_headers()
                with contextlib.suppress(OSError):  # who looked has gone
                    for index in itertools.count():
                        head = b"--next\r\nContent-Type: image/jpeg\r\n\r\n"
                        self.wfile.write(head + encoded[index // _HALF % 2] + b"\r\n")
                        time.sleep(1 / _FPS)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> BlinkingCamera:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
