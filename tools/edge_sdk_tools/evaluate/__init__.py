"""The same metric for every step."""

from edge_sdk_tools.evaluate.agreement import describe, pair_counts
from edge_sdk_tools.evaluate.doubts import ENOUGH_IMAGES
from edge_sdk_tools.evaluate.evaluation import Evaluation, OnProgress, evaluate, summarise
from edge_sdk_tools.evaluate.figures import Figure
from edge_sdk_tools.evaluate.memory import OutputMemory
from edge_sdk_tools.evaluate.observe import Observed, Participant, observe
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up, without_calibration
from edge_sdk_tools.evaluate.resampling import Interval
from edge_sdk_tools.evaluate.subject import DIGEST_LENGTH, Subject, from_checked, open_subject, open_subjects

__all__ = [
    "DIGEST_LENGTH",
    "ENOUGH_IMAGES",
    "Evaluation",
    "Figure",
    "Interval",
    "Observed",
    "OnProgress",
    "OutputMemory",
    "Participant",
    "Subject",
    "check_there",
    "choose_images",
    "describe",
    "evaluate",
    "from_checked",
    "observe",
    "open_subject",
    "open_subjects",
    "pair_counts",
    "pair_up",
    "summarise",
    "without_calibration",
]
