"""Inference: prepare a frame, run a model on ONNX Runtime, and watch and try what runs."""
