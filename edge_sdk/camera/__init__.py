"""Where frames come from: cameras, streams, video files and images, behind one `Source`.

Owns opening, reopening, pacing and the freshest-frame slot. Knows nothing of models, results or MQTT.
"""

from edge_sdk.camera.opening import check_location, open_source
from edge_sdk.camera.stats import OpenedSource, SourceStats, SourceStatus
from edge_sdk.location import Kind, kind_of, redact
from edge_sdk.source_options import SourceOptions

__all__ = [
    "Kind",
    "OpenedSource",
    "SourceOptions",
    "SourceStats",
    "SourceStatus",
    "check_location",
    "kind_of",
    "open_source",
    "redact",
]
