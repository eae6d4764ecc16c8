"""The record of a build: what its steps gave, as the ledger has it."""

from edge_sdk_tools.record.record import record_of

__all__ = ["record_of"]
