"""Session: one model in ONNX Runtime. The only package of the device that imports onnxruntime."""

from edge_sdk.session.cache import SessionCache
from edge_sdk.session.custom_operators import EXTENSIONS_DOMAIN, EXTENSIONS_PACKAGE, extension_libraries
from edge_sdk.session.opening import available_providers, onnxruntime_version
from edge_sdk.session.profile import Event, NodeTime, OperatorTime, Profile, profile_of
from edge_sdk.session.providers import Providers
from edge_sdk.session.session import Session
from edge_sdk.session.settings import GraphLevel, SessionSettings
from edge_sdk.session.shortfalls import Shortfalls

__all__ = [
    "EXTENSIONS_DOMAIN",
    "EXTENSIONS_PACKAGE",
    "Event",
    "GraphLevel",
    "NodeTime",
    "OperatorTime",
    "Profile",
    "Providers",
    "Session",
    "SessionCache",
    "SessionSettings",
    "Shortfalls",
    "available_providers",
    "extension_libraries",
    "onnxruntime_version",
    "profile_of",
]
