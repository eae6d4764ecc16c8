"""Daemon: one bundle on one source, until told to stop."""

from edge_sdk.daemon.daemon import Daemon
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.daemon.summary import RunSummary

__all__ = ["Daemon", "RunSettings", "RunSummary", "Say"]
