"""What `edge-sdk watch` says of messages that came faster than they are read."""

from __future__ import annotations

from datetime import datetime, timezone

import click
import pytest

from edge_sdk.cli.watch import _Connection, _Watch
from edge_sdk.cli.watch_screen import view
from edge_sdk.fleet import DeviceView, Fleet


@pytest.mark.parametrize("as_json", [True, False])
def test_losses_are_said_now_and_then_and_at_the_end(as_json: bool) -> None:
    said: list[str] = []
    fleet = Fleet()
    watch = _Watch(
        fleet, "edge/v1", "edge/v1/#", _Connection("h:1", None), None, None, as_json=as_json, warn=said.append
    )
    for lost, now in [(0, 0.0), (12, 1.0), (20, 5.0), (31, 12.0), (40, 13.0), (40, float("inf"))]:
        watch._look_at_losses(lost, now)
    assert [line.partition(" are lost")[0] for line in said] == [
        "warning: 12 messages",
        "warning: 19 messages",
        "warning: 9 messages",
    ]
    fleet.devices["a", "pi"] = DeviceView("a", "pi")
    headline = click.unstyle(view(fleet, "h:1", "", datetime.now(timezone.utc), 80, 9)[0])
    assert "40 lost" in headline
