"""`edge-sdk runtime`: an ONNX Runtime with nothing but what given bundles need, as a Python wheel for a device."""
