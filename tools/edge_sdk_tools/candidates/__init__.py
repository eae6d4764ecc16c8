"""Independent, slow, pure jobs: one after another, in local processes or on a Dask cluster, and remembered."""

from edge_sdk_tools.candidates.key import key_of
from edge_sdk_tools.candidates.store import Store
from edge_sdk_tools.candidates.workshop import Finished, Workshop

__all__ = ["Finished", "Store", "Workshop", "key_of"]
