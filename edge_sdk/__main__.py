"""`python -m edge_sdk` is `edge-sdk`."""

from edge_sdk.cli.root import main

main()
