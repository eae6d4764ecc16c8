"""Text recognition: the likeliest characters, repeated ones once, with the dictionary's own spaces."""

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Detections, Geometry, Inferred, Prepared
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.detection import draw
from edge_sdk.tasks.entry import Labels
from tests.support.results import make_encoder, make_frame

SPEC = ModelSpec(
    model="m.onnx", name="m", task="text", decoder="ctc", labels="dict.txt", input=InputSpec(size_wh=(320, 48))
)
PADDLE = Labels.of("a\nb\nä\n".encode())  # and a space of which it says nothing
WITH_SPACE = Labels.of("a\nb\nä\n \n".encode())


def _scores(path: str, classes: int, *, sure: float = 0.9, logits: bool = False) -> np.ndarray:
    """Float32 (1, T, C), whose likeliest classes are these digits."""
    rows = np.full((1, len(path), classes), (1 - sure) / (classes - 1), np.float32)
    rows[0, np.arange(len(path)), [int(digit) for digit in path]] = sure
    return np.log(rows) + 7 if logits else rows


@pytest.mark.parametrize(
    ("labels", "classes", "path", "text"),
    [
        (PADDLE, 4, "0110220", "ab"),
        (PADDLE, 4, "11011", "aa"),
        (PADDLE, 5, "1423", "a bä"),
        (WITH_SPACE, 6, "14523", "a  bä"),
        (WITH_SPACE, 5, "34", "ä "),
        (PADDLE, 4, "000", ""),
    ],
)
def test_repeated_characters_count_once_and_blanks_not(labels: Labels, classes: int, path: str, text: str) -> None:
    for output in (_scores(path, classes), _scores(path, classes, logits=True).reshape(-1, 1, classes)):
        inferred = Inferred((output,), 5, Prepared(output, Geometry(1, 1, 0, 0), make_frame()))
        result = make_stage(SPEC, labels, [output.shape])(inferred)
        message = msgspec.json.decode(make_encoder().encode(result))
        assert message["task"] == "text"
        assert message["texts"] == ([{"label": text, "confidence": 0.9}] if text else [])
        picture = np.zeros((480, 640, 3), np.uint8)
        draw(picture, result)
        assert picture[:240, :320].any() == bool(text)


def test_a_text_that_is_not_sure_is_none_and_a_dictionary_of_another_model_is_refused() -> None:
    output = _scores("12", 4, sure=0.3)
    unsure = msgspec.structs.replace(SPEC, thresholds=msgspec.structs.replace(SPEC.thresholds, confidence=0.4))
    inferred = Inferred((output,), 5, Prepared(output, Geometry(1, 1, 0, 0), make_frame()))
    assert make_stage(unsure, PADDLE, [output.shape])(inferred).labels == []
    with pytest.raises(ModelError, match="labels has 3 lines, the model has 36 classes"):
        make_stage(SPEC, PADDLE, [(1, 40, 37)])


def test_a_bundle_keeps_the_dictionary_with_its_spaces() -> None:
    assert PADDLE.file == "a\nb\nä\n".encode()
    assert WITH_SPACE == PADDLE
    assert WITH_SPACE.file == "a\nb\nä\n \n".encode()


def test_a_map_of_probabilities_becomes_boxes_around_lines() -> None:
    cells = np.zeros((1, 1, 96, 160), np.float32)
    cells[0, 0, 20:30, 40:100] = 0.8
    cells[0, 0, 50:90, 20:60] = np.eye(40) * 0.5  # a line that rises, too thin to be one
    cv2.line(cells[0, 0], (90, 80), (140, 55), 0.6, 8)
    spec = msgspec.structs.replace(SPEC, task="detection", decoder="db", input=InputSpec(size_wh=(320, 192)))
    inferred = Inferred((cells,), 5, Prepared(cells, Geometry(0.5, 0.5, 0, 0), make_frame()))
    result = make_stage(spec, ("text",), [cells.shape])(inferred)
    assert isinstance(result, Detections)
    assert result.labels == ["text", "text"]
    assert result.confidence == pytest.approx([0.8, 0.55], abs=0.05)  # the turned box has corners that are no text
    # The region reaches from the middle of its first cell to that of its last, 59 by 9 cells, and its box is larger by
    # 1.5 of its area over half its perimeter. A cell has two pixels of the input, and four of the frame.
    grown = 1.5 * 59 * 9 / (59 + 9) / 2
    box = np.array([40 - grown, 20 - grown, 99 + grown, 29 + grown]) * 4
    assert result.xyxy[0] == pytest.approx(box, abs=0.1)
    assert result.corners[0] == pytest.approx(box[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 2), abs=0.1)
    left, right = result.corners[1][[0, 1]]
    assert np.degrees(np.arctan2(*(right - left)[::-1])) == pytest.approx(-26.6, abs=2)
    with pytest.raises(ModelError, match="decoder db: finds lines of text, expected one label, got 2"):
        make_stage(spec, 2, [cells.shape])
