"""SeenMessage: what a camera sees at present, in a few words."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.frame import Detections, Result, Segmentation
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.payload import SCHEMA_VERSION


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="seen"):
    """What a camera sees at present; retained, published when it changes, once a second at most.

    Attributes:
        device, camera, boot_id, run_id: as in results.
        total: objects, of a detector.
        labels: of them by label, those that are there.
        label: the likeliest class, or the one that covers most of the picture, of other tasks.
    """

    schema: Literal[1] = SCHEMA_VERSION
    device: str
    camera: str
    boot_id: str
    run_id: str
    total: Annotated[int, Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, Annotated[int, Meta(ge=1)]] | msgspec.UnsetType = msgspec.UNSET
    label: str | msgspec.UnsetType = msgspec.UNSET


_Gist: TypeAlias = "tuple[int, ...] | int | None"


class Seen:
    """What one camera's results come to, looked at after each of them.

    Args:
        camera: whose.
        encoder: of its results.
    """

    def __init__(self, camera: str, encoder: ResultEncoder) -> None:
        self._camera, self._encoder = camera, encoder
        self._gist: _Gist = ()
        self._is_first = True

    def news(self, result: Result) -> bytes | None:
        """The message, JSON; None where nothing changed, or the outputs were no numbers: then nothing is known."""
        if not result.is_finite:
            return None
        gist = _gist_of(result)
        if gist == self._gist and not self._is_first:
            return None
        self._gist, self._is_first = gist, False
        return msgspec.json.encode(self._message(gist))

    def _message(self, gist: _Gist) -> SeenMessage:
        label, identity = self._encoder.label, self._encoder.identity
        header = {"camera": self._camera, **msgspec.structs.asdict(identity)}
        if isinstance(gist, tuple):
            counts = Counter(map(label, gist))
            return SeenMessage(**header, total=len(gist), labels=dict(sorted(counts.items())))
        return SeenMessage(**header, label=msgspec.UNSET if gist is None else label(gist))


def _gist_of(result: Result) -> _Gist:
    """Class ids of detections, sorted; of other tasks the first class; None where there is none."""
    if isinstance(result, Detections):
        return tuple(sorted(result.class_ids.tolist()))
    if isinstance(result, Segmentation):
        return int(result.shares.argmax()) if len(result.shares) else None
    return int(result.class_ids[0]) if len(result.class_ids) else None
