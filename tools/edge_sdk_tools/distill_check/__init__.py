"""Student against teacher, before anything is built from the student."""

from edge_sdk_tools.distill_check.gate import DistillReport, check_student, distill_check
from edge_sdk_tools.distill_check.step import Distilled, check_distillation
from edge_sdk_tools.distill_check.verdict import Verdict
from edge_sdk_tools.distill_check.worst import WorstImage, worst_images

__all__ = [
    "DistillReport",
    "Distilled",
    "Verdict",
    "WorstImage",
    "check_distillation",
    "check_student",
    "distill_check",
    "worst_images",
]
