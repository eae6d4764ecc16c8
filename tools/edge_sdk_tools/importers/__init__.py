"""Import models of PyTorch, TensorFlow and Darknet as ONNX, and check that they compute the same."""
