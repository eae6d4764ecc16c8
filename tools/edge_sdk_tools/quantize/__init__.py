"""Float ONNX -> INT8 ONNX, by a recipe."""
