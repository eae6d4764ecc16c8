"""The same metric for every step."""

from edge_sdk_tools.evaluate.agreement import agreement_metrics, describe, pair_counts
from edge_sdk_tools.evaluate.evaluation import Evaluation, OnProgress, evaluate
from edge_sdk_tools.evaluate.figures import Figure, compare, figure_of
from edge_sdk_tools.evaluate.observe import Observed, Participant, observe
from edge_sdk_tools.evaluate.participants import choose_images, pair_up, without_calibration
from edge_sdk_tools.evaluate.quality import quality_metrics
from edge_sdk_tools.evaluate.resampling import Interval, Metric, resample
from edge_sdk_tools.evaluate.subject import DIGEST_LENGTH, Subject, from_checked, open_subject

__all__ = [
    "DIGEST_LENGTH",
    "Evaluation",
    "Figure",
    "Interval",
    "Metric",
    "Observed",
    "OnProgress",
    "Participant",
    "Subject",
    "agreement_metrics",
    "choose_images",
    "compare",
    "describe",
    "evaluate",
    "figure_of",
    "from_checked",
    "observe",
    "open_subject",
    "pair_counts",
    "pair_up",
    "quality_metrics",
    "resample",
    "without_calibration",
]
