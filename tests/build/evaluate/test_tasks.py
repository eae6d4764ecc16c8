"""evaluate and build of class maps, and of detectors with several outputs."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import numpy_helper

from edge_sdk.core.errors import AccuracyGateError, DataError, UsageError
from edge_sdk.core.frame import Segmentation
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.distillation.gate import distill_check
from edge_sdk_tools.evaluate.embedding import make_gallery
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.model import open_subject
from tests.support import models as tiny
from tests.support.absent import Lazy
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, SEGMENTER, write_pictures, write_project


@pytest.fixture
def segmenter(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project", SEGMENTER, tiny.segmenter(), labels="background\nred\nblue\n")


def _paint(segmenter: Path, data: Path, count: int) -> list[np.ndarray]:
    """Pictures with the model's own class maps as masks."""
    write_pictures(data / "images", count, first=300)
    (data / "masks").mkdir()
    paint = open_subject(segmenter).open()
    maps = []
    for path in sorted((data / "images").iterdir()):
        result = paint(cv2.imread(str(path))).result  # type: ignore[arg-type]  # OpenCV's array is of bytes
        assert isinstance(result, Segmentation)
        maps.append(result.to_frame())
        cv2.imwrite(str(data / "masks" / path.name), maps[-1])
    return maps


def test_mean_iou_is_what_scikit_learn_counts(tmp_path: Path, segmenter: Path) -> None:
    maps = _paint(segmenter, tmp_path / "data", 8)
    truths = []
    for path, painted in zip(sorted((tmp_path / "data" / "masks").iterdir()), maps, strict=True):
        truth = painted.copy()
        truth[:20] = 1
        cv2.imwrite(str(path), truth)
        truths.append(truth)
    expected = Lazy("sklearn.metrics").jaccard_score(np.ravel(truths), np.ravel(maps), average="macro")
    assert evaluate(segmenter, tmp_path / "data").quality[0].value.value == pytest.approx(expected, abs=1e-6)


def test_a_student_is_judged_by_its_class_maps(tmp_path: Path, segmenter: Path) -> None:
    _paint(segmenter, tmp_path / "data", 8)
    labelled = distill_check(segmenter, segmenter, tmp_path / "data")
    (tmp_path / "data" / "masks").rename(tmp_path / "elsewhere")
    plain = distill_check(segmenter, segmenter, tmp_path / "data")
    assert (labelled.verdict.metric, labelled.verdict.passed, labelled.p_value) == ("mIoU", True, None)
    assert (plain.verdict.metric, plain.verdict.value, plain.worst) == ("mIoU of class maps", 1, ())


def test_a_bundle_of_a_segmenter_promises_its_agreement(tmp_path: Path, segmenter: Path) -> None:
    report = build(segmenter, "x86_64", tmp_path / "a.edge", bundle_version=1)
    assert report.agreement.metric == "mean_iou"
    assert report.agreement.value > 0.8
    assert "INT8" not in report.samples[0].int8
    found = evaluate(tmp_path / "a.edge", write_pictures(tmp_path / "data", 5, first=60), reference=segmenter)
    assert found.agreement[0].value.value > 0.8


def test_models_that_find_nothing_in_common_cannot_be_compared(tmp_path: Path, segmenter: Path) -> None:
    proto = tiny.segmenter()
    for weight in proto.graph.initializer:  # a fourth class, which wins everywhere
        values = numpy_helper.to_array(weight)
        more = np.concatenate([values, np.full((1, *values.shape[1:]), 9.0 if weight.name == "b" else 0.0)])
        weight.CopyFrom(numpy_helper.from_array(more.astype(np.float32), weight.name))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    text = SEGMENTER.replace('"cells"', '"teacher"')
    teacher = write_project(tmp_path / "t", text, proto, labels="background\nred\nblue\ngreen\n", pictures=0)
    with pytest.raises(AccuracyGateError, match="cells and teacher find nothing that both know on 3 images"):
        evaluate(segmenter, write_pictures(tmp_path / "data", 3, first=400), reference=teacher)


_STRETCHED = CLASSIFIER.replace("std = [255, 255, 255]", 'resize = "stretch"')
VECTORS = (
    _STRETCHED.replace("classification", "embedding")
    .replace("softmax", "vector")
    .replace('"stretch"', '"stretch"\nmean = [128, 128, 128]\nstd = [128, 128, 128]\n[thresholds]\nconfidence = 0.9')
)


def _write_colours(folder: Path, colours: dict[str, list[tuple[int, int, int]]]) -> Path:
    for name, pictures in colours.items():
        (folder / name).mkdir(parents=True)
        for number, bgr in enumerate(pictures):
            cv2.imwrite(str(folder / name / f"{number}.png"), np.full((20, 30, 3), bgr, np.uint8))
    return folder


def test_a_gallery_names_pictures(tmp_path: Path, cli: Cli) -> None:
    mean = tiny.parsed("p = GlobalAveragePool(images) y = Flatten(p)", {"y": (1, 3)})
    toml = write_project(tmp_path / "project", VECTORS, mean, labels="red\nblue\n", pictures=0)
    gallery = _write_colours(tmp_path / "gallery", {"blue": [(255, 0, 0)], "red": [(0, 0, 255)]})
    assert "2 names, 2 vectors" in cli(0, "gallery", toml, gallery).out
    toml.write_text(VECTORS.replace("labels.txt", "gallery.npz"))
    shown = {"red": [(1, 1, 250), (9, 9, 240), (250, 9, 9)], "blue": [(240, 1, 1), (200, 20, 255)]}
    found = evaluate(toml, _write_colours(tmp_path / "data", shown), reference=toml)
    assert found.quality[0].value.value == pytest.approx(3 / 5)  # a red one is blue, and a blue one resembles nothing
    assert found.agreement[0].value.value == pytest.approx(1)
    with pytest.raises(DataError, match="lies in no folder of"):
        make_gallery(toml, gallery / "blue", tmp_path / "new.npz")
    with pytest.raises(UsageError, match="nothing is overwritten"):
        make_gallery(toml, gallery, toml.parent / "gallery.npz")
