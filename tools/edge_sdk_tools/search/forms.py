"""All forms of a model that a build has, when it has made its choice."""

from __future__ import annotations

from pathlib import Path

from edge_sdk_tools.chain import Forms, StepKind
from edge_sdk_tools.distill_check import Distilled
from edge_sdk_tools.evaluate import Subject
from edge_sdk_tools.quantize import Simplified
from edge_sdk_tools.search.choice import Choice
from edge_sdk_tools.search.search import Search


def forms_of(
    fp32: Subject, distilled: Distilled | None, simplified: Simplified, search: Search, choice: Choice
) -> Forms:
    """The files of all steps, and the float model, loaded.

    Args:
        fp32: the checked model, loaded.
        distilled: names its teacher; None without one.
        simplified: what was quantized.
        search: whose best INT8 model is shown where none was chosen.
        choice: what ships.
    """
    files: dict[StepKind, Path] = {"teacher": distilled.teacher_file} if distilled else {}
    int8 = (search.chosen or search.best).quantized.path
    files |= {"fp32": simplified.given, "simplified": simplified.path, "int8": int8, "ort": choice.converted.model}
    return Forms(fp32.session, files, choice.precision == "int8", choice.tensor)
