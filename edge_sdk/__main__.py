"""`python -m edge_sdk` is `edge-sdk`."""

from edge_sdk.cli import main

main()
