"""Record: one message as one line of JSON, whatever it is."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import msgspec

from edge_sdk.fleet.address import Address

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    at: datetime
    topic: str
    site: str | None = None
    device: str | None = None
    kind: str | None = None
    camera: str | None = None
    qos: int
    retain: bool
    message: Any = None
    base64: str | None = None


def record_of(topic: str, payload: bytes, qos: int, at: datetime, address: Address | None, *, retain: bool) -> bytes:
    """One line, without its end.

    Args:
        topic: where it came from.
        payload: its bytes; what is no JSON is written in base64.
        qos: with which it came.
        at: when, with a time zone.
        address: what the topic says; None where it says nothing.
        retain: whether it waited at the broker.
    """
    record = _Record(at=at, topic=topic, qos=qos, retain=retain)
    if address is not None:
        record.site, record.device, record.kind = address.site, address.device, address.kind
        record.camera = address.camera or None
    try:
        record.message = msgspec.json.decode(payload)  # and encoded again: it may go over several lines
        return _shown(msgspec.json.encode(record))
    except _UNREADABLE:
        record.message, record.base64 = None, base64.b64encode(payload).decode("ascii")
        return _shown(msgspec.json.encode(record))


def _shown(line: bytes) -> bytes:
    """The same JSON, with what a terminal may act on escaped: JSON itself only asks for that below U+0020."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()
