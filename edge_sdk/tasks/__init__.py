"""Tasks: from a model's output tensors to results in the frame's own pixels; one file a family of outputs."""

from edge_sdk.tasks.task import Task, TaskSpec, make_task

__all__ = ["Task", "TaskSpec", "make_task"]
