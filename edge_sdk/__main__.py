"""Run the `edge-sdk` command as `python -m edge_sdk`."""

from edge_sdk.cli.root import main

main()
