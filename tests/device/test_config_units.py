"""Numbers in another unit than a key has: what they are counted in is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.config import read_config
from edge_sdk.config import rules as config_rules
from edge_sdk.errors import ConfigError
from tests.device.configs import STREAM, write_config

_EVENT = '[[events]]\nlabels = ["cat"]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latency_ms = 0.2", "latency_ms is 0.2, expected 1 millisecond or more; was it seconds?"),
        ("latency_ms = 0", "latency_ms is 0, expected 1 millisecond or more"),
        ("open_timeout_s = 3000", "open_timeout_s is 3000, expected 60 seconds or less; was it milliseconds?"),
        ("read_timeout_s = 61", "read_timeout_s is 61, expected 60 seconds or less"),
        ("read_timeout_s = inf", "read_timeout_s is inf, expected 60 seconds or less"),
        (f"{_EVENT}appear_s = 90000", "appear_s is 90000, expected 86400 seconds or less; was it milliseconds?"),
        (f'{_EVENT}confidence = "60 %"', "confidence: got a string, expected a number: what is less confident is not"),
        ('cpu_share = "50%"', "got a string, expected a number of cores; 0.5 is 50% of one core"),
        ('fps = "50%"', "got a string, expected a number of frames a second; leave out the unit"),
        ("run_limit_s = 5000", "run_limit_s is 5000, expected 600 seconds or less; was it milliseconds?"),
        ("trial_s = 60000", "trial_s is 60000, expected 3600 seconds or less; was it milliseconds?"),
        ("cpu_share = 50", "cpu_share is 50, expected 4 cores or less, which this machine has; 0.5 is half a core"),
    ],
)
def test_what_it_is_counted_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    monkeypatch.setattr(config_rules, "configured", lambda: 4)
    with pytest.raises(ConfigError) as caught:
        read_config(write_config(tmp_path, f"{STREAM}{text}\n"))
    (line,) = str(caught.value).splitlines()
    assert expected in line
    assert ("was it" in line) == ("was it" in expected)
    assert ("0.6 is 60 %" in line) == ("60 %" in text)


@pytest.mark.parametrize(("cores", "share"), [(4, "4"), (None, "50"), (1, "0.5")])
def test_shares_that_a_machine_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, share: str
) -> None:
    monkeypatch.setattr(config_rules, "configured", lambda: cores)
    read_config(write_config(tmp_path, f"{STREAM}cpu_share = {share}\n"))
