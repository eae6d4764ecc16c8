"""Results to whoever listens: over MQTT, or as lines of JSON."""

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.json_lines import JsonLinesSink, LinesStats
from edge_sdk.publishing.outbox import MemoryOutbox
from edge_sdk.publishing.payload import (
    ClassificationMessage,
    DetectionMessage,
    ModelRef,
    ResultMessage,
    Running,
    SegmentationMessage,
    StatusMessage,
    result_schema,
    status_schema,
)
from edge_sdk.publishing.publisher import MqttPublisher, load_client
from edge_sdk.publishing.settings import MqttSettings, Secret, read_password
from edge_sdk.publishing.stats import PublisherStats, State
from edge_sdk.publishing.topics import Topics, as_name, check_name, default_device

__all__ = [
    "Backoff",
    "ClassificationMessage",
    "DetectionMessage",
    "JsonLinesSink",
    "LinesStats",
    "MemoryOutbox",
    "ModelRef",
    "MqttPublisher",
    "MqttSettings",
    "PublisherStats",
    "ResultEncoder",
    "ResultMessage",
    "Running",
    "Secret",
    "SegmentationMessage",
    "State",
    "StatusMessage",
    "Topics",
    "as_name",
    "check_name",
    "default_device",
    "load_client",
    "read_password",
    "result_schema",
    "status_schema",
]
