"""All that is wrong with a configuration file is said at once: of types, in lists, and what keys get wrong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.config import read_config
from edge_sdk.errors import ConfigError
from tests.device.configs import write_config


def test_all_that_is_wrong_is_said_at_once_in_lists_and_by_rules_too(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        """
[mqtt]
url = "mqtt://h/x"
qos = 3
[commands]
allow = ["pauze", "pause", "all"]
[[pipelines]]
name = "gate"
source = "0"
bundle = "a.edge"
[[events]]
labels = ["cat"]
cameras = ["gat"]
confidence = 60
[publish.snapshots]
on = "interval"
interval_s = "x"
""",
    )
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    said = [line.removeprefix(f"{path}: ").split(";")[0] for line in str(caught.value).splitlines()]
    allowed = "expected pause, set_threshold, set_rate, snapshot, report_state or reload"
    assert said == [
        "mqtt.qos: 3, expected 0 or 1",
        f"commands.allow[0]: 'pauze', {allowed}",
        f"commands.allow[2]: 'all', {allowed}",
        "events[0].confidence is 60, expected 1 or less",
        "publish.snapshots.interval_s: got a string, expected a number of seconds",  # and it is not missing
        "mqtt.url: the URL goes on after the host, a topic is no part of it",
        "events[0].cameras: 'gat' is no pipeline's name",
    ]


@pytest.mark.parametrize(
    "wrong", ["name = 5", 'name = "g"\nnme = 5\nlatency_ms = "x"', 'name = "g"\n[[pipelines.x]]\ny = 1', 'name = ["g"]']
)
def test_where_too_little_is_sound_no_rule_is_looked_at(tmp_path: Path, wrong: str) -> None:
    path = write_config(tmp_path, f'[mqtt]\nurl = 7\n[[pipelines]]\nsource = "0"\nbundle = "a.edge"\n{wrong}\n')
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert "mqtt.url: got a whole number" in str(caught.value)
    assert "there is no broker" not in str(caught.value)
