"""Tasks: from a model's output tensors to results in the frame's own pixels; one file a family of outputs."""
