"""Results to whoever listens: over MQTT, or as lines of JSON."""

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.json_lines import JsonLinesPublisher
from edge_sdk.publishing.mqtt_publisher import MqttPublisher, load_client
from edge_sdk.publishing.outbox import MemoryOutbox
from edge_sdk.publishing.payload import (
    CameraHealth,
    CameraState,
    ClassificationMessage,
    DetectionMessage,
    ModelRef,
    ResultMessage,
    Running,
    SegmentationMessage,
    SourceState,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
    result_schema,
    state_schema,
    status_schema,
    telemetry_schema,
)
from edge_sdk.publishing.publisher import Publisher, Stream
from edge_sdk.publishing.settings import MqttSettings, Secret, read_password
from edge_sdk.publishing.stats import LinesStats, PublisherStats, State, StreamStats
from edge_sdk.publishing.topics import Topics, as_name, check_name, default_device

__all__ = [
    "Backoff",
    "CameraHealth",
    "CameraState",
    "ClassificationMessage",
    "DetectionMessage",
    "Identity",
    "JsonLinesPublisher",
    "LinesStats",
    "MemoryOutbox",
    "ModelRef",
    "MqttPublisher",
    "MqttSettings",
    "Publisher",
    "PublisherStats",
    "ResultEncoder",
    "ResultMessage",
    "Running",
    "Secret",
    "SegmentationMessage",
    "SourceState",
    "State",
    "StateMessage",
    "StatusMessage",
    "Stream",
    "StreamStats",
    "TelemetryMessage",
    "Topics",
    "as_name",
    "check_name",
    "default_device",
    "load_client",
    "read_password",
    "result_schema",
    "state_schema",
    "status_schema",
    "telemetry_schema",
]
