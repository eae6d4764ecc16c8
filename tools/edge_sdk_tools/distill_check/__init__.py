"""Student against teacher, before anything is built from the student."""

from edge_sdk_tools.distill_check.gate import DistillReport, check_student, distill_check
from edge_sdk_tools.distill_check.step import check_distillation
from edge_sdk_tools.distill_check.verdict import Verdict

__all__ = ["DistillReport", "Verdict", "check_distillation", "check_student", "distill_check"]
