"""An evaluation without models: figures as a test wants them."""

from __future__ import annotations

from edge_sdk_tools.evaluate import Evaluation, Figure


def evaluation_of(quality: tuple[Figure, ...], agreement: tuple[Figure, ...], images: int = 650) -> Evaluation:
    return Evaluation(
        model="student",
        reference="teacher",
        task="classification",
        data="data",
        format="images",
        images=images,
        quality=quality,
        agreement=agreement,
        outputs=(),
        skipped=(),
        calibrated=0,
        duplicates=0,
        resamples=1000,
        images_per_second=1.0,
        warnings=(),
    )
