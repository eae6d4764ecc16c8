"""The table of tasks: what is measured when models of each task are evaluated and compared.

Each task has a file of its own in this folder, with a class that derives from `TaskMetrics`.
"""

from __future__ import annotations

from edge_sdk.tasks.spec import Task
from edge_sdk_tools.evaluate.anomaly import AnomalyMetrics
from edge_sdk_tools.evaluate.classification import ClassificationMetrics
from edge_sdk_tools.evaluate.detection import DetectionMetrics
from edge_sdk_tools.evaluate.embedding import EmbeddingMetrics
from edge_sdk_tools.evaluate.metrics import TaskMetrics
from edge_sdk_tools.evaluate.segmentation import SegmentationMetrics
from edge_sdk_tools.evaluate.text import TextMetrics

TASKS: dict[Task, TaskMetrics] = {
    "classification": ClassificationMetrics(),
    "detection": DetectionMetrics(),
    "segmentation": SegmentationMetrics(),
    "embedding": EmbeddingMetrics(),
    "text": TextMetrics(),
    "anomaly": AnomalyMetrics(),
}

AGREEMENTS = {entry.agreement_metric: entry for entry in TASKS.values()}
"""The metrics of each task, by the manifest's name for its agreement."""
