"""What is said of a configuration that is another than before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edge_sdk.daemon.differences import other_words, outlet_words
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.home_assistant import HomeAssistantSettings
from edge_sdk.publishing import MqttSettings, OutboxSettings

_MQTT = MqttSettings(host="broker", port=1883, device="pi")
_BEFORE = RunSettings(device="pi", mqtt=_MQTT, commands=("pause",), pipelines=())


@pytest.mark.parametrize(
    ("changes", "outlet", "others"),
    [
        ({}, [], []),
        ({"commands": ("pause", "reload")}, [], ["commands: pause, reload"]),
        ({"commands": ()}, ["other topics that are listened to"], ["commands: none"]),
        ({"device": "other"}, ["other device's name"], []),
        ({"mqtt": msgspec.structs.replace(_MQTT, port=1884)}, ["other broker, or how it is used"], []),
        ({"outbox": OutboxSettings(max_mb=32.0)}, ["other outbox"], []),
        (
            {"home_assistant": HomeAssistantSettings()},
            ["other topics that are listened to"],
            ["Home Assistant: told anew"],
        ),
        ({"home_assistant": HomeAssistantSettings(is_enabled=False)}, [], ["Home Assistant: not told of this device"]),
    ],
)
def test_what_is_another_is_named(changes: dict[str, Any], outlet: list[str], others: list[str]) -> None:
    after = msgspec.structs.replace(_BEFORE, **changes)
    assert outlet_words(_BEFORE, after) == outlet
    assert list(other_words(_BEFORE, after)) == others
