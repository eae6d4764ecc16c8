"""A fleet as its messages show it: which devices there are, how they do and what they see.

Owns no connection and no terminal. What comes over the network is not to be trusted: nothing of it reaches a terminal
but through `text`.
"""

from edge_sdk.fleet.address import Address, filters
from edge_sdk.fleet.coco import CocoWriter
from edge_sdk.fleet.device import CameraView, DeviceView
from edge_sdk.fleet.fleet import Fleet
from edge_sdk.fleet.record import record_of

__all__ = ["Address", "CameraView", "CocoWriter", "DeviceView", "Fleet", "filters", "record_of"]
