"""What a message of each kind bears in MQTT 5."""

from __future__ import annotations

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge_sdk.publishing import MqttSettings
from edge_sdk.publishing.ways import answer_properties, ways_of

_SETTINGS = MqttSettings(host="127.0.0.1", port=1883, device="pi")
_LASTING = {"status", "state", "seen", "discovery"}


def _names(packed: bytes) -> set[str]:
    """What it says, as paho reads it."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.unpack(packed)
    return set(properties.json())


def test_a_message_bears_what_is_documented_and_no_topic_alias() -> None:
    """A broker that has restarted answers an alias that it does not know with an endless protocol error."""
    ways = ways_of(_SETTINGS, is_v5=True)
    for kind, way in ways.items():
        assert way.properties is not None
        names = _names(way.properties.of(7).pack())
        assert "TopicAlias" not in names
        assert "UserProperty" in names, kind
        assert ("MessageExpiryInterval" in names) == (kind not in _LASTING), kind
    assert ways["response"].properties is not None
    assert _names(answer_properties(b"1").pack()) == _names(ways["response"].properties.pack()) | {"CorrelationData"}


def test_a_message_of_the_older_protocol_bears_none() -> None:
    assert {way.properties for way in ways_of(_SETTINGS, is_v5=False).values()} == {None}
