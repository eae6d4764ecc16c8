"""evaluate: what it says is what a plain loop would say, with intervals, on images that did not calibrate."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edge_sdk.cli.root import run
from edge_sdk.errors import DataError, EdgeError, ModelError, UsageError
from edge_sdk_tools.build import build
from edge_sdk_tools.dataset import Dataset, find_images
from edge_sdk_tools.evaluate import Evaluation, evaluate, observe, open_subject, pair_up
from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.host_latency import interleaved_latency_ms
from tests.device import tiny
from tests.host.images import write_pictures
from tests.host.labelled import hand_written_scores, write_labelled
from tests.host.projects import CLASSIFIER, write_detector, write_project


def changed(seed: int) -> onnx.ModelProto:
    """The tiny classifier with other weights."""
    proto = tiny.classifier()
    random = np.random.default_rng(seed)
    for weight in proto.graph.initializer:
        values = numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(values + random.normal(0, 0.3, values.shape).astype("f"), weight.name))
    return proto


@pytest.mark.parametrize("wrong", [0, 5, 30])
def test_top_1_is_what_a_plain_loop_counts(tmp_path: Path, wrong: int) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 30, wrong=wrong)
    found = evaluate(model, data)
    [top_1] = found.quality  # of three classes any answer has five
    assert (top_1.name, top_1.value.value) == ("top-1", pytest.approx((30 - wrong) / 30))
    assert top_1.value.low <= top_1.value.value <= top_1.value.high
    assert (found.images, found.format, found.agreement) == (30, "labels.csv", ())


@pytest.mark.parametrize("jobs", [1, 3])
def test_any_number_of_threads_gives_the_same(tmp_path: Path, jobs: int) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    reference = write_project(tmp_path / "reference", model=changed(1), pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 40, wrong=7)
    found = evaluate(model, data, reference=reference, jobs=jobs)
    again = evaluate(model, data, reference=reference, jobs=2)
    assert msgspec.structs.replace(found, images_per_second=0) == msgspec.structs.replace(again, images_per_second=0)


def test_beside_a_reference_the_difference_is_paired(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    reference = write_project(tmp_path / "reference", model=changed(1), pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 40)
    found = evaluate(model, data, reference=reference)
    mine, theirs = (hand_written_scores(m, data) for m in (tiny.classifier(), changed(1)))
    equal = (mine.argmax(axis=1) == theirs.argmax(axis=1)).mean()
    assert found.quality[0].reference is not None
    assert found.quality[0].reference.value == pytest.approx(equal)
    assert found.quality[0].difference is not None
    assert found.quality[0].difference.value == pytest.approx(1 - equal)
    assert found.agreement[0].value.value == pytest.approx(equal)
    [output] = found.outputs
    cosines = (mine * theirs).sum(axis=1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(theirs, axis=1)
    assert output.cosine == pytest.approx(cosines.mean(), abs=1e-5)
    assert output.sqnr_db == pytest.approx(10 * np.log10((theirs**2).sum() / ((mine - theirs) ** 2).sum()), abs=1e-3)


def test_a_model_agrees_with_itself_bit_for_bit(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    found = evaluate(model, write_pictures(tmp_path / "data", 5), reference=model)
    assert found.format == "images"
    assert found.agreement[0].value.value == 1
    assert found.outputs[0].sqnr_db is None
    assert "too few images to judge much: 5" in found.warnings[0]


def test_a_bundle_never_measures_on_what_calibrated_it(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", pictures=8)
    bundle = tmp_path / "a.edge"
    build(model, "x86_64", bundle, bundle_version=1)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 6)
    for picture in (tmp_path / "project" / "pictures").iterdir():  # 6 calibrated, 2 were held out
        (data / f"again_{picture.name}").write_bytes(picture.read_bytes())
    with (data / "labels.csv").open("a") as rows:
        rows.writelines(f"again_{index:03}.png,0\n" for index in range(8))
    found = evaluate(bundle, data, reference=model)
    # model.toml names the whole folder for calibration, the bundle the six that it used.
    assert (found.images, found.calibrated) == (6, 8)
    assert (evaluate(bundle, data).images, evaluate(bundle, data).calibrated) == (8, 6)
    assert "int8" in found.model


def test_a_detector_that_is_labelled_as_it_sees_is_perfect(tmp_path: Path) -> None:
    model = write_detector(tmp_path / "project")
    pictures = write_pictures(tmp_path / "data" / "images", 12, first=50)
    alone = evaluate(model, pictures, reference=model)
    assert (alone.agreement[0].name, alone.agreement[0].value.value) == ("detections matched (F1)", 1)
    _label_as_seen(model, tmp_path / "data")
    found = evaluate(model, tmp_path / "data")
    assert [figure.name for figure in found.quality] == ["mAP50-95", "mAP50"]
    assert found.quality[1].value.value == pytest.approx(1, abs=1e-6)


def _label_as_seen(model: Path, data: Path) -> None:
    subject = open_subject(model)
    observed = observe(pair_up([subject]), Dataset(find_images([data / "images"]), None, "images"))
    (data / "labels").mkdir()
    for index, record in enumerate(observed.records):
        boxes, (width, height) = record.rows[0], record.size_wh
        assert isinstance(boxes, Boxes)
        lines = []
        for (x1, y1, x2, y2), class_id in zip(boxes.boxes_xyxy, boxes.class_ids, strict=True):
            cx, cy = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
            lines.append(f"{class_id} {cx:.6f} {cy:.6f} {(x2 - x1) / width:.6f} {(y2 - y1) / height:.6f}\n")
        (data / "labels" / f"{observed.path(index).stem}.txt").write_text("".join(lines))


def test_unreadable_images_are_named_and_left_out(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 20)
    (data / "100.png").write_bytes(_undecodable())
    (data / "103.png").write_bytes(b"x")
    found = evaluate(model, data)
    assert (found.images, sorted(s.path.name for s in found.skipped)) == (18, ["100.png", "103.png"])
    assert found.quality[0].value.value == 1  # every other image kept its own label


def _undecodable() -> bytes:
    """A PNG whose header is in order, of the size of the test's pictures."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 48, 40, 8, 2, 0, 0, 0)),
        (b"IDAT", b"nothing that inflates"),
        (b"IEND", b""),
    ]
    packed = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_when_no_image_can_be_read_that_is_said(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(_undecodable())
    (tmp_path / "data" / "b.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"none of 2 images can be read; .*/data/a\.png: cannot be decoded, expected"):
        evaluate(model, tmp_path / "data", reference=model)


@pytest.mark.parametrize(("decoder", "softmax"), [("logits", True), ("softmax", False)])
def test_the_wrong_decoder_is_named_before_any_image_is_read(tmp_path: Path, decoder: str, softmax: bool) -> None:
    proto = tiny.classifier()
    if not softmax:
        del proto.graph.node[-1]
        proto.graph.output[0].name = "logits"
    model = write_project(tmp_path / "p", CLASSIFIER.replace('"softmax"', f'"{decoder}"'), proto, pictures=0)
    with pytest.raises(ModelError, match=r"model\.onnx: decoder: the outputs are"):
        evaluate(model, write_pictures(tmp_path / "data", 2), reference=model)


def test_a_background_is_an_answer_and_no_class(tmp_path: Path) -> None:
    text = CLASSIFIER + "[classification]\nbackground_class = true\n"
    model = write_project(tmp_path / "project", text, labels="background\nb\nc\n", pictures=0)
    data = write_pictures(tmp_path / "data", 30, first=100)
    answers = hand_written_scores(tiny.classifier(), data).argmax(axis=1)
    assert 0 < (answers > 0).mean() < 1
    rows = [f"{100 + index:03}.png,{max(answer - 1, 0)}\n" for index, answer in enumerate(answers)]
    (data / "labels.csv").write_text("".join(["file,class_id\n", *rows]))
    assert evaluate(model, data).quality[0].value.value == pytest.approx((answers > 0).mean())
    whole = write_project(tmp_path / "whole", pictures=0, labels="x\nC\nB\n")
    with pytest.raises(ModelError, match="none of the other model's 2"):
        evaluate(whole, data, reference=model)


def test_classes_are_compared_in_the_order_of_the_first_model(tmp_path: Path) -> None:
    text = CLASSIFIER + "[classification]\nbackground_class = true\n"
    plain = write_project(tmp_path / "plain", pictures=0, labels="background\nb\nc\n")
    with_background = write_project(tmp_path / "project", text, labels="background\nb\nc\n", pictures=0)
    data = write_pictures(tmp_path / "data", 30, first=100)
    scores = hand_written_scores(tiny.classifier(), data)
    found = evaluate(with_background, data, reference=plain)
    # To the first model the background is an answer of its own, to the other a class that the first does not have.
    assert found.agreement[0].value.value == pytest.approx((scores.argmax(axis=1) > 0).mean())
    assert found.agreement[1].value.value == pytest.approx(0, abs=1e-9)
    assert evaluate(with_background, data, reference=with_background).agreement[0].value.value == 1


def _constant() -> onnx.ModelProto:
    proto = tiny.classifier()
    for weight in proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 0, weight.name))
    return proto


def test_constant_scores_are_said(tmp_path: Path) -> None:
    model = write_project(tmp_path / "project", model=_constant(), pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 30)
    assert "tiny gives the same output for all 30 images" in evaluate(model, data).warnings[0]


@pytest.mark.parametrize(
    ("model", "data", "error", "expected"),
    [
        ("nowhere.toml", "data", EdgeError, "nowhere.toml: no such file"),
        ("project", "data", UsageError, "project: neither a model.toml nor a bundle"),
        ("project/model.toml", "unlabelled", UsageError, "no labels in it, so there is nothing to measure with"),
        ("project/model.toml", "nowhere", DataError, "nowhere"),
        ("project/model.toml", "empty", DataError, "empty"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, model: str, data: str, error: type[EdgeError], expected: str) -> None:
    write_project(tmp_path / "project", pictures=0)
    write_labelled(tmp_path / "data", tiny.classifier(), 4)
    write_pictures(tmp_path / "unlabelled", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error) as caught:
        evaluate(tmp_path / model, tmp_path / data)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_of_other_tasks_are_not_compared(tmp_path: Path) -> None:
    model, detector = write_project(tmp_path / "a", pictures=0), write_detector(tmp_path / "b")
    with pytest.raises(ModelError, match=r"task is detection, and that of .* is classification"):
        evaluate(model, write_pictures(tmp_path / "data", 3), reference=detector)


def test_labels_that_do_not_match_are_named(tmp_path: Path) -> None:
    model = write_project(tmp_path / "a", pictures=0)
    other = write_project(tmp_path / "b", pictures=0, labels="a\nbb\nz\n")
    with pytest.raises(ModelError, match=r"labels do not match: 2 of 3 .* \('b', 'c'\), the nearest is 'bb'"):
        evaluate(model, write_pictures(tmp_path / "data", 3), reference=other)


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path / "project", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 30, wrong=3)
    assert run(["evaluate", str(model), "--data", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "tiny on 30 images" in printed
    assert "90.0% [" in printed
    assert run(["evaluate", str(model), "--data", str(data), "--reference", str(model), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Evaluation)
    assert found.quality[0].difference is not None
    assert json.loads(msgspec.json.encode(found))["reference"] == "tiny"


def test_latency_is_measured_in_turn() -> None:
    calls: list[str] = []
    medians = interleaved_latency_ms([lambda: calls.append("a"), lambda: calls.append("b")])
    assert len(medians) == 2
    assert calls[4:8] == ["a", "b", "a", "b"]
