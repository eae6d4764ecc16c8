"""What a configuration says of events, of pictures and of how they travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.config import read_config
from edge_sdk.daemon.configured import run_settings_of
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.errors import ConfigError
from edge_sdk.event_rule import EventRule
from edge_sdk.publishing import EVENTS, SNAPSHOTS, Channel
from edge_sdk.snapshot_settings import SnapshotSettings
from tests.device.configs import STREAM, write_config

_MQTT = '[mqtt]\nurl = "mqtt://broker"\nqos = 1\n'
_YARD = STREAM.replace("gate", "yard")
_CAT = '[[events]]\nlabels = ["cat"]\n'


def _settings(folder: Path, text: str) -> RunSettings:
    return run_settings_of(read_config(write_config(folder, text)))


def test_rules_are_of_the_cameras_that_they_name(tmp_path: Path) -> None:
    text = (
        STREAM + _YARD + _CAT + '[[events]]\nlabels = ["dog"]\ncameras = ["yard"]\nconfidence = 0.7\ncooldown_s = 5\n'
    )
    gate, yard = _settings(tmp_path, text).pipelines
    cat, dog = EventRule(labels=("cat",)), EventRule(labels=("dog",), confidence=0.7, cooldown_s=5.0)
    assert (gate.events, yard.events) == ((cat,), (cat, dog))
    assert gate.snapshots is None


def test_without_a_word_channels_are_as_documented(tmp_path: Path) -> None:
    mqtt = _settings(tmp_path, _MQTT + STREAM).mqtt
    assert mqtt is not None
    assert mqtt.channels == {"result": Channel(qos=1), "event": EVENTS, "snapshot": SNAPSHOTS}


def test_each_kind_travels_as_its_table_says(tmp_path: Path) -> None:
    text = """
        [publish.results]
        qos = 0
        expiry_s = 5
        max_per_s = 2
        [publish.events]
        qos = 1
        expiry_s = 7
        max_per_s = 3
        [publish.snapshots]
        on = "interval"
        interval_s = 60
        width = 320
        quality = 50
        qos = 1
        expiry_s = 9
        """
    settings = _settings(tmp_path, _MQTT + text + STREAM)
    assert settings.mqtt is not None
    assert settings.mqtt.channels == {
        "result": Channel(qos=0, expiry_s=5, max_per_s=2.0),
        "event": Channel(qos=1, expiry_s=7, max_per_s=3.0),
        "snapshot": Channel(qos=1, expiry_s=9),
    }
    pictures = SnapshotSettings(on="interval", interval_s=60.0, width=320, quality=50)
    assert settings.pipelines[0].snapshots == pictures


def test_a_table_that_says_one_thing_leaves_the_others(tmp_path: Path) -> None:
    mqtt = _settings(tmp_path, _MQTT + "[publish.events]\nmax_per_s = 3\n" + STREAM).mqtt
    assert mqtt is not None
    assert mqtt.channels == {
        "result": Channel(qos=1),
        "event": Channel(qos=1, expiry_s=EVENTS.expiry_s, max_per_s=3.0),
        "snapshot": SNAPSHOTS,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STREAM + "[[events]]\n", "events[0].labels is missing"),
        (STREAM + "[[events]]\nlabels = []\n", "events[0].labels has 0 entries, expected 1 or more"),
        (STREAM + '[[events]]\nlabels = "cat"\n', "events[0].labels: got a string, expected a list of strings"),
        (STREAM + '[[events]]\nlabels = [""]\n', "labels[0] has 0 characters, expected 1 or more"),
        (
            STREAM + f'[[events]]\nlabels = ["{"x" * 101}"]\n',
            "can be no event's, expected 1 to 100 printable characters",
        ),
        (STREAM + '[[events]]\nlabels = ["a\\tb"]\n', "events[0].labels: 'a\\tb' can be no event's"),
        (STREAM + '[[events]]\nlabels = ["cat", "cat"]\n', "events[0].labels: one is there twice"),
        (STREAM + _CAT + "confidence = 60\n", "confidence is 60, expected 1 or less"),
        (STREAM + _CAT + "appear_frames = 0\n", "appear_frames is 0, expected 1 or more"),
        (STREAM + _CAT + "disappear_s = -1\n", "disappear_s is -1, expected 0 seconds or more"),
        (STREAM + _CAT + "cooldown = 1\n", "unknown key events[0].cooldown; did you mean cooldown_s?"),
        (STREAM + _CAT + 'cameras = ["gat"]\n', "'gat' is no pipeline's name; did you mean 'gate'?"),
        (STREAM + _CAT + 'cameras = ["lane"]\n', "events[0].cameras: 'lane' is no pipeline's name; there are 'gate'"),
        (STREAM + _CAT + _CAT, "events[0] and events[1] are both about 'cat' on 'gate'"),
        (STREAM + _CAT + _CAT + 'cameras = ["gate"]\n', "events[0] and events[1] are both about 'cat' on 'gate'"),
        ("[publish.results]\nqos = 1\n" + STREAM, "publish is of what goes to a broker, and none is named"),
        (_MQTT + "[publish.results]\nqos = 2\n" + STREAM, "publish.results.qos: 2, expected 0 or 1"),
        (
            _MQTT + "[publish.events]\nqos = 0\n" + STREAM,
            "publish.events.qos: 0, expected 1; nobody acknowledges at 0, and no event may be lost",
        ),
        (
            _MQTT + "[publish.events]\nqos = 2\n" + STREAM,
            "publish.events.qos: 2, expected 1; 1 does, doubles bear one seq",
        ),
        (_MQTT + "[publish.results]\nmax_per_s = 0\n" + STREAM, "publish.results.max_per_s is 0, expected 0.001"),
        (
            _MQTT + "[publish.events]\nexpiry_s = 0\n" + STREAM,
            "publish.events.expiry_s is 0, expected 1 second or more",
        ),
        (_MQTT + "[publish.snapshots]\n" + STREAM, "publish.snapshots.on is missing"),
        (_MQTT + '[publish.snapshots]\non = "event"\n' + STREAM, "there are no [[events]]; expected some"),
        (_MQTT + '[publish.snapshots]\non = "interval"\n' + STREAM, "publish.snapshots.interval_s is missing"),
        (
            _MQTT + '[publish.snapshots]\non = "event"\ninterval_s = 2\n' + STREAM + _CAT,
            'publish.snapshots.interval_s is for on = "interval"',
        ),
        (
            _MQTT + '[publish.snapshots]\non = "interval"\ninterval_s = 2\nmax_per_s = 1\n' + STREAM,
            'publish.snapshots.max_per_s is for on = "event"',
        ),
        (_MQTT + '[publish.snapshots]\non = "events"\n' + STREAM, "did you mean event?"),
        (
            _MQTT + '[publish.snapshots]\non = "event"\nwidth = 9\n' + STREAM + _CAT,
            "width is 9, expected 16 pixels or more",
        ),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(write_config(tmp_path, text))
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_rules_of_other_cameras_are_not_in_each_others_way(tmp_path: Path) -> None:
    text = STREAM + _YARD + _CAT + 'cameras = ["gate"]\n' + _CAT + 'cameras = ["yard"]\n'
    assert [len(pipeline.events) for pipeline in _settings(tmp_path, text).pipelines] == [1, 1]
