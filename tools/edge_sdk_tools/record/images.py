"""The images on which INT8 lies furthest from FP32, drawn."""

from __future__ import annotations

from edge_sdk.core.files import read_regular
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.dataset.images import MAX_BYTES, decode
from edge_sdk_tools.distill_check import WorstImage as Worst
from edge_sdk_tools.evaluate import Subject, from_checked
from edge_sdk_tools.ledger import WorstImage, side_by_side
from edge_sdk_tools.promise import Steps
from edge_sdk_tools.search import Trial


def pictured(worst: tuple[Worst, ...], steps: Steps, int8: Trial) -> list[WorstImage]:
    """Both models asked again about each image, and what they say drawn side by side; without those that are gone."""
    if not worst:
        return []
    spec, labels = steps.spec, steps.checked.labels
    session = Session(int8.converted.model.read_bytes(), SessionSettings(), "the converted model")
    fp32 = from_checked("FP32", spec, steps.checked)
    models = [fp32.open(), Subject("INT8", spec, labels, session, "").open()]
    found = []
    for one in worst:
        try:
            pixels = decode(read_regular(one.file, MAX_BYTES))
        except OSError:
            pixels = None
        if pixels is None:
            continue  # it was there a minute ago
        fp32_result, int8_result = (model(pixels).result for model in models)
        background = bool(fp32.background)
        picture = side_by_side(pixels, fp32_result, int8_result, labels, background_class=background)
        found.append(
            WorstImage(image=one.file.name, truth=one.truth, fp32=one.teacher, int8=one.student, picture=picture)
        )
    return found
