"""What a device may be told over MQTT: commands, what admits them, and how they are answered.

Carries nothing out: `edge_sdk.daemon.desk` does.
"""

from edge_sdk.commands.admission import Admission, Request, Turned
from edge_sdk.commands.command import (
    CLASSES,
    FASTEST_FPS,
    SLOWEST_FPS,
    Command,
    CommandClass,
    Pause,
    Reload,
    ReportState,
    Resume,
    SetRate,
    SetThreshold,
    Snapshot,
    class_of,
    command_schema,
)
from edge_sdk.commands.inbox import Inbox
from edge_sdk.commands.response import Code, Complaint, Picture, RefusedError, ResponseMessage, response_schema

__all__ = [
    "CLASSES",
    "FASTEST_FPS",
    "SLOWEST_FPS",
    "Admission",
    "Code",
    "Command",
    "CommandClass",
    "Complaint",
    "Inbox",
    "Pause",
    "Picture",
    "RefusedError",
    "Reload",
    "ReportState",
    "Request",
    "ResponseMessage",
    "Resume",
    "SetRate",
    "SetThreshold",
    "Snapshot",
    "Turned",
    "class_of",
    "command_schema",
    "response_schema",
]
