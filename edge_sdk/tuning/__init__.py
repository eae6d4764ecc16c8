"""Tuning: which model and which settings run best on this board, found out at the camera's pace."""

from edge_sdk.tuning.candidate import Candidate, Measurement
from edge_sdk.tuning.choice import Limits
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.machine import Machine
from edge_sdk.tuning.plan import SECONDS
from edge_sdk.tuning.record import Record, Records
from edge_sdk.tuning.tuned import Tuned, figures
from edge_sdk.tuning.tuning import Tuning

__all__ = [
    "SECONDS",
    "Candidate",
    "Limits",
    "LiveTuner",
    "Machine",
    "Measurement",
    "Record",
    "Records",
    "Tuned",
    "Tuning",
    "figures",
]
