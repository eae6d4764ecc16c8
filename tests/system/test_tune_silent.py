"""`edge-sdk tune` on a camera that falls silent comes to an end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.camera import open_source
from edge_sdk.errors import CameraError
from edge_sdk.tuning import Limits, Tuning
from edge_sdk.tuning.tune import tune
from tests.support.bundles import write_variants
from tests.support.streams import http_server

pytestmark = pytest.mark.system


def test_a_camera_that_delivers_nothing_ends_it_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    limits = Limits(1000)
    tuning = Tuning(
        Bundle.open(write_variants(tmp_path / "a.edge")), limits, camera="c", variant=None, say=lambda _line: None
    )
    with http_server() as server, closing(open_source(server.url())) as source:
        server.pause()
        with pytest.raises(CameraError) as caught:
            tune(tuning, limits, source, source.fps, 2000, silence_s=1)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith("the source delivered no frame for 1 s, so there is nothing to measure; ")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "state" / "tuning").exists()
