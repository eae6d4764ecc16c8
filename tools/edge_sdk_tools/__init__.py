"""edge-sdk on the workstation: check, quantize, convert, prove and write a bundle."""
