"""Events that survive: kept on disk from the moment they are acknowledged until the broker has them."""

from edge_sdk.publishing.durable.complaints import EVENTS_LOST, lost_in_words
from edge_sdk.publishing.durable.event_outbox import EventOutbox
from edge_sdk.publishing.durable.held import Encode, Held
from edge_sdk.publishing.durable.losses import Losses
from edge_sdk.publishing.durable.settings import LEAST_MB, OutboxSettings, want_of_folder
from edge_sdk.publishing.durable.stats import EventStats

__all__ = [
    "EVENTS_LOST",
    "LEAST_MB",
    "Encode",
    "EventOutbox",
    "EventStats",
    "Held",
    "Losses",
    "OutboxSettings",
    "lost_in_words",
    "want_of_folder",
]
