"""Keys: the name of a finished step, made of all that decides what it gives."""

from __future__ import annotations

import hashlib

from edge_sdk_tools.candidates.environment import package_versions, source_digest
from edge_sdk_tools.candidates.outcome import encoded


def key_of(step: str, *decides: object) -> str:
    """The key of one step; edge-sdk's own sources and the versions of the packages always decide too.

    Args:
        step: what is done, as the key begins.
        decides: everything else: bytes, or what `encoded` takes.
    """
    parts = (encoded([source_digest(), package_versions()]), *(_bytes(part) for part in decides))
    return f"{step}-{hashlib.sha256(b''.join(hashlib.sha256(part).digest() for part in parts)).hexdigest()}"


def _bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else encoded(part)
