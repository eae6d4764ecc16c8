"""Results to whoever listens: over MQTT, or as lines of JSON."""

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.blame import refusal
from edge_sdk.publishing.channels import EVENTS, LONGEST_EXPIRY_S, SNAPSHOTS, Channel
from edge_sdk.publishing.credentials import ExpiredError, check_credentials, own_expiry, valid_until
from edge_sdk.publishing.durable import (
    EVENTS_LOST,
    LEAST_MB,
    EventOutbox,
    OutboxSettings,
    lost_in_words,
    want_of_folder,
)
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.event_encoder import EventEncoder
from edge_sdk.publishing.identity import Identity, new_run_id
from edge_sdk.publishing.incoming import Incoming, Receiver
from edge_sdk.publishing.json_lines import JsonLinesPublisher
from edge_sdk.publishing.link import Kind, Link
from edge_sdk.publishing.listener import Listener
from edge_sdk.publishing.mqtt_publisher import LAST_COMMIT_S, MqttPublisher, load_client
from edge_sdk.publishing.name_lock import NameLock
from edge_sdk.publishing.outbox import CameraKind, MemoryOutbox, Message
from edge_sdk.publishing.payload import (
    CameraHealth,
    CameraState,
    ClassificationMessage,
    ControlState,
    DetectionMessage,
    EventLosses,
    EventMessage,
    EventsHealth,
    ModelRef,
    ResultMessage,
    Running,
    SegmentationMessage,
    SourceState,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)
from edge_sdk.publishing.publisher import Publisher, Stream
from edge_sdk.publishing.schemas import message_schema
from edge_sdk.publishing.seats import Seats
from edge_sdk.publishing.secret import Secret, read_password
from edge_sdk.publishing.seen import SeenMessage
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.stats import LinesStats, PublisherStats, State, StreamStats
from edge_sdk.publishing.topics import Topics, as_name, check_name, default_device

__all__ = [
    "EVENTS",
    "EVENTS_LOST",
    "LAST_COMMIT_S",
    "LEAST_MB",
    "LONGEST_EXPIRY_S",
    "SNAPSHOTS",
    "Backoff",
    "CameraHealth",
    "CameraKind",
    "CameraState",
    "Channel",
    "ClassificationMessage",
    "ControlState",
    "DetectionMessage",
    "EventEncoder",
    "EventLosses",
    "EventMessage",
    "EventOutbox",
    "EventsHealth",
    "ExpiredError",
    "Identity",
    "Incoming",
    "JsonLinesPublisher",
    "Kind",
    "LinesStats",
    "Link",
    "Listener",
    "MemoryOutbox",
    "Message",
    "ModelRef",
    "MqttPublisher",
    "MqttSettings",
    "NameLock",
    "OutboxSettings",
    "Publisher",
    "PublisherStats",
    "Receiver",
    "ResultEncoder",
    "ResultMessage",
    "Running",
    "Seats",
    "Secret",
    "SeenMessage",
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
    "check_credentials",
    "check_name",
    "default_device",
    "load_client",
    "lost_in_words",
    "message_schema",
    "new_run_id",
    "own_expiry",
    "read_password",
    "refusal",
    "valid_until",
    "want_of_folder",
]
