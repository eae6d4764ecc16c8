"""A device's configuration file: what may stand in it, reading it, and what is wrong with it in words.

Starts nothing: `edge_sdk.daemon.configured` makes of it what a daemon runs.
"""

from edge_sdk.config.broker import device_name, given, mqtt_settings_of, outbox_settings_of
from edge_sdk.config.config import (
    BrokerConfig,
    CommandsConfig,
    Config,
    Defaults,
    DeviceConfig,
    HomeAssistantConfig,
    MqttConfig,
    OutboxConfig,
    PipelineConfig,
    TrustConfig,
)
from edge_sdk.config.password import PASSWORD_KEYS, read_secret
from edge_sdk.config.publish import EventConfig, EventsConfig, PublishConfig, ResultsConfig, SnapshotsConfig
from edge_sdk.config.reading import DEFAULT_PATH, broker_config_of, read_config
from edge_sdk.config.rules import broken_by_flag
from edge_sdk.config.schema import config_schema

__all__ = [
    "DEFAULT_PATH",
    "PASSWORD_KEYS",
    "BrokerConfig",
    "CommandsConfig",
    "Config",
    "Defaults",
    "DeviceConfig",
    "EventConfig",
    "EventsConfig",
    "HomeAssistantConfig",
    "MqttConfig",
    "OutboxConfig",
    "PipelineConfig",
    "PublishConfig",
    "ResultsConfig",
    "SnapshotsConfig",
    "TrustConfig",
    "broken_by_flag",
    "broker_config_of",
    "config_schema",
    "device_name",
    "given",
    "mqtt_settings_of",
    "outbox_settings_of",
    "read_config",
    "read_secret",
]
