"""edge-sdk on the device: run a verified bundle on the freshest camera frame and publish what it sees.

What `__all__` names here, and the errors of `edge_sdk.core.errors`, is the library: it keeps working within a major
version (docs/adr/0003). Everything else may change with any version. A name is loaded when it is first used.
"""

import os

# ONNX Runtime 1.29 and newer collects a device id and reports it as soon as it is imported, unless this is set before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# OpenCV reads it when it is loaded: otherwise its threads burn a core for 0.3 ms after every frame, waiting for more.
os.environ.setdefault("OPENCV_THREAD_POOL_ACTIVE_WAIT_WORKER", "0")
# A JPEG of a megabyte may claim a gigapixel, and its decoder takes the memory for it; cameras have 64 million at most.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 26))

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # type checkers take it for True by its name; to import typing would take far longer than all of this
)
if TYPE_CHECKING:
    from edge_sdk.bundle.bundle import Bundle
    from edge_sdk.core.errors import EdgeError
    from edge_sdk.core.frame import NO_CLASS, Classification, Detections, Frame, Image, Result, Segmentation
    from edge_sdk.core.protocols import Event, EventSink, Sink, Source
    from edge_sdk.events.rules import EventRule, EventWatch
    from edge_sdk.inference.runtime import SessionSettings
    from edge_sdk.inference.session import Session
    from edge_sdk.loop import Budget, Loop, Tick
    from edge_sdk.model import Model
    from edge_sdk.publisher import Publisher
    from edge_sdk.sources.location import SourceOptions
    from edge_sdk.sources.opening import open_source
    from edge_sdk.tasks.anomaly import Anomaly
    from edge_sdk.tasks.embedding import Embedding
    from edge_sdk.tasks.text import Text

__all__ = [
    "NO_CLASS",
    "Anomaly",
    "Budget",
    "Bundle",
    "Classification",
    "Detections",
    "EdgeError",
    "Embedding",
    "Event",
    "EventRule",
    "EventSink",
    "EventWatch",
    "Frame",
    "Image",
    "Loop",
    "Model",
    "Publisher",
    "Result",
    "Segmentation",
    "Session",
    "SessionSettings",
    "Sink",
    "Source",
    "SourceOptions",
    "Text",
    "Tick",
    "__version__",
    "open_source",
]

_NAMES = {
    "bundle.bundle": ("Bundle",),
    "core.errors": ("EdgeError",),
    "core.frame": ("NO_CLASS", "Classification", "Detections", "Frame", "Image", "Result", "Segmentation"),
    "core.protocols": ("Event", "EventSink", "Sink", "Source"),
    "events.rules": ("EventRule", "EventWatch"),
    "inference.runtime": ("SessionSettings",),
    "inference.session": ("Session",),
    "loop": ("Budget", "Loop", "Tick"),
    "model": ("Model",),
    "publisher": ("Publisher",),
    "sources.location": ("SourceOptions",),
    "sources.opening": ("open_source",),
    "tasks.anomaly": ("Anomaly",),
    "tasks.embedding": ("Embedding",),
    "tasks.text": ("Text",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # else any name would count as one that is there

    def __getattr__(name: str) -> object:
        """Load a public name from the module that has it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
