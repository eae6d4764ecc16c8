"""The start of `edge-sdk run`, whose parts go on side by side: its end and its words are as if they did not."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.trial import prove_here
from tests.support.broker import free_port
from tests.support.bundles import write_bundle
from tests.support.program import edge_sdk, start_edge_sdk

pytestmark = pytest.mark.system


@pytest.fixture
def silent_camera() -> socket.socket:
    """Somebody answers the call and never says a word."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_signal_while_the_camera_is_silent_ends_the_run(cell_bundle: Path, silent_camera: socket.socket) -> None:
    with silent_camera:
        source = f"rtsp://127.0.0.1:{silent_camera.getsockname()[1]}/live"
        process = start_edge_sdk("run", cell_bundle, "--source", source, "--json")
        caller, _ = silent_camera.accept()
        with caller:
            process.send_signal(signal.SIGTERM)
            output, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    assert '"ended_by":"signal"' in output
    assert '"results":0' in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.08, 0.2])
def test_a_signal_at_any_moment_of_the_start_ends_the_run(
    number: signal.Signals, delay_s: float, cell_bundle: Path, video: Path
) -> None:
    process = start_edge_sdk(
        "run", cell_bundle, "--source", video, "--mqtt", f"mqtt://127.0.0.1:{free_port()}", "--json"
    )
    assert process.stderr is not None
    assert "warning" in process.stderr.readline()  # that no key is trusted: the model is next
    time.sleep(delay_s)
    process.send_signal(number)
    output, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    assert '"ended_by":"signal"' in output
    assert "Traceback" not in complaint


def test_what_is_wrong_with_the_model_is_said_before_what_is_wrong_with_the_source(
    cell_bundle: Path, tmp_path: Path
) -> None:
    nobody = f"rtsp://127.0.0.1:{free_port()}/live"
    broken = write_bundle(tmp_path / "broken.edge")
    both = edge_sdk("run", broken, "--source", nobody, "--trial-seconds", 0)
    assert both.returncode == 6
    assert both.stderr.splitlines()[-1].startswith(f"edge-sdk: {broken}")
    assert "cannot load it" in both.stderr
    assert prove_here(Bundle.open(cell_bundle))
    source = edge_sdk("run", cell_bundle, "--source", nobody)
    assert source.returncode == 1
    assert "connection refused" in source.stderr.splitlines()[-1]
