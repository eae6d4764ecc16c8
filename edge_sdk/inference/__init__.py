"""Inference: prepare a frame, run a model on ONNX Runtime, and monitor and test the session."""
