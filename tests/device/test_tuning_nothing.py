"""Tuning on a camera that delivers far less than it says comes to an end that names the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import SessionError
from edge_sdk.tuning import Limits, Tuning
from edge_sdk.tuning.tune import golden_camera, tune
from tests.device.variant_bundles import write_variants


def test_where_nothing_could_be_measured_the_next_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle, limits, lines = Bundle.open(write_variants(tmp_path / "a.edge")), Limits(1000), list[str]()
    tuning = Tuning(bundle, limits, camera="c", variant="int8.8x8", say=lines.append)
    with pytest.raises(SessionError) as caught:
        tune(tuning, limits, golden_camera(bundle, 0.5, "c"), 1000, 0.1)
    assert caught.value.exit_code == 1
    assert str(caught.value).endswith("; mend what the lines above tell of, or give more --seconds")
    assert lines == ["tuning could measure nothing: what runs stays"]
    assert not (tmp_path / "state" / "tuning").exists()
