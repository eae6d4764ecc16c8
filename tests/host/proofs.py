"""Proofs without models: nothing is wrong with them but what a test wants to be."""

from __future__ import annotations

import msgspec

from edge_sdk.manifest import Agreement
from edge_sdk_tools.dataset import ImageSet
from edge_sdk_tools.prove import Proof
from tests.host.evaluations import evaluation_of

_FLAWLESS = Proof(
    evaluation=evaluation_of((), ()),
    agreement=Agreement("top1_agreement", 1, 1, 1, 1, 1),
    integer_mac_share=1.0,
    fp32_latency_ms=1.0,
    latency_ms=1.0,
    model_mb=1.0,
    samples=(),
    worst=(),
    images=ImageSet(()),
)


def flawless_proof(images: ImageSet) -> Proof:
    """Of a model that differs from FP32 in nothing, by these images."""
    return msgspec.structs.replace(_FLAWLESS, images=images)
