"""edge-sdk on the workstation: check, quantize, convert, prove and write a bundle."""

import edge_sdk  # noqa: F401 - turns ONNX Runtime's telemetry off, which must happen before it is imported
