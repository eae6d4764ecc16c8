"""Import models of PyTorch, TensorFlow and Darknet as ONNX, and prove that they compute the same."""
