"""The same metric for every step."""

from edge_sdk_tools.evaluate.agreement import Model, box_iou, describe, match_detections, measure_agreement

__all__ = ["Model", "box_iou", "describe", "match_detections", "measure_agreement"]
