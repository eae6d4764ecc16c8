"""The forms of a model beside each other, their memory, and golden inputs replayed in other runtimes."""

import math
import os
import re
import signal
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import parse_version
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import IncompatibleError, MissingDependencyError, UsageError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.packages import Fetch, cache_folder
from edge_sdk_tools.prove.golden import replay_in
from edge_sdk_tools.prove.parity import Chain, Form, OutputChange, Parts, compare_forms, peak_memory
from edge_sdk_tools.quantize.convert import convert
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.projects import write_project

PLAIN = Parts(None, is_classifier=False)
SIGNAL = np.array([[3.0, 4.0]], np.float32)  # of energy 25


def _adding(*offsets: Sequence[float]) -> list[Form]:
    """The float model, and steps that each add an offset to what the one before said."""
    kinds = ("fp32", "simplified", "int8", "ort")
    forms = [Form("fp32", None, lambda tensor: [tensor])]
    so_far = np.zeros(2, np.float32)
    for kind, against, offset in zip(kinds[1:], kinds, offsets, strict=False):
        so_far = so_far + np.array(offset, np.float32)
        forms.append(Form(kind, against, lambda tensor, added=so_far: [tensor + added]))
    return forms


def test_errors_are_measured_from_the_step_before_and_from_fp32() -> None:
    changes = compare_forms(_adding((0.0, 0.0), (0.5, 0.0), (0.0, -0.25)), [SIGNAL, -SIGNAL], PLAIN)
    simplified, int8, ort = changes["simplified"], changes["int8"], changes["ort"]
    assert (simplified.identical, simplified.relative_error, simplified.cosine) == (True, 0.0, pytest.approx(1))
    assert (int8.identical, int8.largest, int8.against, int8.images) == (False, 0.5, "simplified", 2)
    assert int8.relative_error == pytest.approx(0.5 / 5)
    assert (ort.relative_error, ort.largest) == (pytest.approx(0.25 / 5), 0.25)
    # At right angles they add up as squares; on top of each other they would not.
    assert ort.total_error == pytest.approx(math.hypot(0.5, 0.25) / 5)
    assert (int8.top1_agreement, ort.largest_share) == (None, None)


def test_a_classifier_s_answers_are_compared_too() -> None:
    changes = compare_forms(_adding((2.0, 0.0)), [SIGNAL, 3 * SIGNAL], Parts(None, is_classifier=True))
    assert changes["simplified"].top1_agreement == 0.5


@pytest.mark.parametrize(("axis", "shape"), [(1, (1, 6, 8)), (-1, (1, 8, 6))])
def test_scores_do_not_drown_in_boxes(axis: int, shape: tuple[int, ...]) -> None:
    boxes, scores = np.split(np.ones(shape, np.float32), [4], axis=axis)
    whole, lost = (np.concatenate([640 * boxes, part], axis=axis) for part in (scores, np.zeros_like(scores)))
    forms = [Form("fp32", None, lambda _: [whole]), Form("int8", "fp32", lambda _: [lost])]
    apart = compare_forms(forms, [SIGNAL], Parts(axis, is_classifier=False))["int8"]
    assert apart.relative_error == pytest.approx(math.sqrt(0.5))
    assert compare_forms(forms, [SIGNAL], PLAIN)["int8"].relative_error == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize(
    "output", [np.zeros((1, 3), np.float32), np.array([[np.nan, 1]], np.float32), np.array([[np.inf, 1]], np.float32)]
)
def test_what_cannot_be_compared_is_not(output: Tensor) -> None:
    forms = [Form("fp32", None, lambda tensor: [tensor]), Form("int8", "fp32", lambda _: [output])]
    assert compare_forms(forms, [SIGNAL], PLAIN) == {}


def test_classes_have_no_energy() -> None:
    forms = [Form("fp32", None, lambda _: [np.array([1, 2])]), Form("int8", "fp32", lambda _: [np.array([1, 5])])]
    change = compare_forms(forms, [SIGNAL], PLAIN)["int8"]
    assert (change.identical, change.largest) == (False, 3)
    assert (change.relative_error, change.total_error, change.cosine) == (None, None, None)


def test_a_board_that_computes_something_else_is_a_doubt() -> None:
    for error, doubts in ((None, 0), (0.0, 0), (1.3e-6, 0), (0.036, 1)):
        change = OutputChange(against="ort", images=1, inputs=1, largest=0.074, relative_error=error)
        found = Chain({"arm": change}, {}, "cortex-a76", "").doubts
        assert len(found) == doubts
        assert all("emulated cortex-a76" in line and "3.6% of their size, by 0.074 at most" in line for line in found)
        assert Chain({}, {}, None, "").doubts == ()


def _convolutions(path: Path, channels: int) -> Path:
    weight = np.ones((channels, 3, 32, 32), np.float32)
    node = helper.make_node("Conv", ["images", "w"], ["y"])
    onnx.save(tiny.model([node], [1, 3, 32, 32], {"y": [1, channels, 1, 1]}, {"w": weight}), path)
    return path


def test_memory_is_that_of_each_model_alone(tmp_path: Path) -> None:
    large, small = _convolutions(tmp_path / "large.onnx", 4096), _convolutions(tmp_path / "small.onnx", 64)
    junk, folder = tmp_path / "junk.onnx", tmp_path / "ort"
    junk.write_bytes(b"junk")
    folder.mkdir()
    ort = convert(small, load_target("x86_64"), folder).model
    with peak_memory([small, large, junk, small, ort], ort) as memory:
        first, most, broken, again, converted = memory()
    assert broken is None
    weights_mb = 4096 * 3 * 32 * 32 * 4 / 1e6
    assert weights_mb < most < 5 * weights_mb
    # What the large one took is not there any more, and nothing of it is counted again.
    assert max(first, again, converted) < weights_mb / 2


def test_a_measurement_that_nobody_waits_for_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    large = _convolutions(tmp_path / "large.onnx", 4096)
    with peak_memory([large] * 50, large):
        pass
    assert started[0].returncode == -signal.SIGKILL


# Wheels for Python 3.10 to 3.13 exist of each; the lowest is what the targets name.
OLDER = "1.20.1"


@pytest.mark.long
def test_an_older_runtime_replays_golden_and_is_promised(tmp_path: Path) -> None:
    model = write_project(tmp_path)
    try:
        build(model, "arm64", tmp_path / "a.edge", prove_runtimes=[OLDER])
    except MissingDependencyError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no package index: {error}")
    promised = Bundle.open(tmp_path / "a.edge").manifest.onnxruntime
    assert (promised.minimum, promised.maximum) == (OLDER, ort.__version__)


@pytest.mark.skipif(
    parse_version(ort.__version__) <= (1, 23, 2), reason="this host's ONNX Runtime is one that a Jetson can have"
)
def test_a_target_that_cannot_have_the_builder_s_version_asks_for_a_proof(tmp_path: Path) -> None:
    said = refusal(UsageError, build, write_project(tmp_path), "jetson_orin_nano", tmp_path / "a.edge")
    assert re.search(r"jetson_orin_nano has ONNX Runtime 1\.23\.2 at most .* --prove-runtime 1\.23\.2", said)


def _stand_in(body: str) -> Fetch:
    """A wheel whose `onnxruntime` is this source: stands for a version that fails."""

    def fetch(requirement: str, folder: Path) -> None:
        with zipfile.ZipFile(folder / f"{requirement}.whl", "w") as archive:
            archive.writestr("onnxruntime/__init__.py", body)

    return fetch


def test_a_runtime_that_fails_is_named_and_without_proof_none_but_the_builders_is_promised(tmp_path: Path) -> None:
    build(write_project(tmp_path), "arm64", tmp_path / "a.edge")
    promised = Bundle.open(tmp_path / "a.edge").manifest.onnxruntime
    assert promised.minimum == promised.maximum == ort.__version__
    for version, body, expected in (
        ("1.21.5", "__version__ = '1.21.5'\nraise SystemExit(132)", "with ONNX Runtime 1.21.5: "),
        ("1.22.1", "__version__ = '9.9.9'\ndef __getattr__(name): raise RuntimeError('no kernel')", "no kernel"),
    ):
        assert expected in refusal(IncompatibleError, replay_in, version, tmp_path / "a.edge", _stand_in(body))


def test_a_runtime_that_cannot_be_had(tmp_path: Path) -> None:
    def fetch(requirement: str, folder: Path) -> None:
        raise RuntimeError("no matching distribution")

    said = refusal(MissingDependencyError, replay_in, "1.21.5", tmp_path, fetch)
    assert "onnxruntime==1.21.5 cannot be downloaded: no matching" in said
    assert not list(cache_folder().rglob("*.py"))
