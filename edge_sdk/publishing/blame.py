"""Blame: whether a broker does not take this device, or this device does not take the broker, in words."""

from __future__ import annotations

UNUSABLE = "a file of this device cannot be used"
NO_TLS = "what answers there speaks no TLS"
OLD_TLS = "the broker speaks no TLS of 1.2 or newer"

_OURS = ("the broker's certificate", UNUSABLE, NO_TLS, OLD_TLS)


def refusal(detail: str) -> str:
    """Why there is no connection before somebody mends something, for people.

    Args:
        detail: of a link that was refused.
    """
    return f"not connected: {detail}" if detail.startswith(_OURS) else f"refused us ({detail})"
