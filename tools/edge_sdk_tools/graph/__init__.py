"""Run and profile ONNX graphs on this machine."""
