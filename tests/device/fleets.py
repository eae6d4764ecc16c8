"""Messages of devices that are not there, as a subscriber hears them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec

from edge_sdk.fleet import Address, Fleet
from edge_sdk.fleet.reading import read

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
_WHO = {"schema": 1, "device": "pi", "boot_id": "b", "run_id": "r"}
MODEL = {"name": "yolo", "version": 3, "sha256": "00"}


def status(word: str = "online", **more: Any) -> bytes:
    return msgspec.json.encode({"stream": "status", **_WHO, "status": word, **more})


def state(cameras: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"stream": "state", **_WHO, "cameras": cameras, **more})


def detections(*found: tuple[str, float], seq: int = 0, **more: Any) -> bytes:
    items = [
        {"label": label, "class_id": len(label), "confidence": sure, "box_xyxy": [1.0, 2.0, 11.0, 22.0]}
        for label, sure in found
    ]
    head = {"task": "detection", "stream": "result", **_WHO, "camera": "gate", "seq": seq, "captured_at": NOON}
    rest = {"age_ms": 17.4, "infer_ms": 3.0, "model": MODEL, "frame": {"width": 640, "height": 480}}
    return msgspec.json.encode({**head, **rest, "detections": items, **more})


def hear(fleet: Fleet, topic: str, payload: bytes, now: datetime = NOON, *, is_retained: bool = False) -> list[str]:
    """What a fleet finds new in one message on a topic below `edge/v1`."""
    address = Address.of(f"edge/v1/{topic}", "edge/v1")
    assert address is not None
    return fleet.take(address, read(address.kind, payload), now, is_retained=is_retained)
