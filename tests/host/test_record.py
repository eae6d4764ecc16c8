"""The record of a real build: every figure is one that the build measured, or none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from edge_sdk_tools import prove
from edge_sdk_tools.build import build
from edge_sdk_tools.ledger import Ledger, from_json, report_schema
from tests.device import tiny
from tests.host.labelled import write_labelled
from tests.host.projects import CLASSIFIER, write_project
from tests.host.test_distill_check import changed


def _recorded(bundle: Path) -> Ledger:
    return from_json((bundle / "report.json").read_bytes())


def test_a_build_is_recorded_step_by_step(tmp_path: Path) -> None:
    write_project(tmp_path / "teacher", CLASSIFIER.replace('"tiny"', '"teacher"'), pictures=0)
    model = write_project(tmp_path / "p", CLASSIFIER + '[teacher]\nmodel = "../teacher/model.toml"\n', pictures=16)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 40, wrong=4)
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[data], bundle_version=1)
    ledger = _recorded(tmp_path / "a.edge")
    assert [step.kind for step in ledger.steps] == ["teacher", "fp32", "simplified", "int8", "ort"]
    assert (ledger.name, ledger.target, ledger.images, ledger.verdict.carries) == ("tiny", "x86_64", 40, "int8")
    shipped = ledger.shipped
    assert shipped is not None
    assert (shipped.kind, shipped.size_mb, shipped.change) == ("ort", report.model_mb, report.quality[0].difference)
    [candidate] = ledger.candidates
    assert (candidate.chosen, candidate.held) == (True, True)
    assert ledger.libraries["onnxruntime"]
    assert len(ledger.local_noise) == 2
    steps = {step.kind: step for step in ledger.steps}
    teacher, fp32 = steps["teacher"], steps["fp32"]
    assert teacher.size_mb == pytest.approx((tmp_path / "teacher" / "model.onnx").stat().st_size / 1e6, rel=0.1)
    assert teacher.latency_ratio is not None
    assert teacher.latency_ratio > 0
    # The same model under another name: nothing is lost, and the interval says how little 40 images tell.
    assert (fp32.against, fp32.change and fp32.change.value) == ("teacher", 0.0)
    assert fp32.change is not None
    assert fp32.change.low < 0 < fp32.change.high


def test_each_step_is_compared_with_the_one_before_and_their_errors_add_up(tmp_path: Path) -> None:
    build(write_project(tmp_path, pictures=40), "x86_64", tmp_path / "a.edge", bundle_version=1)
    steps = {step.kind: step for step in _recorded(tmp_path / "a.edge").steps}
    changes = {kind: step.outputs for kind, step in steps.items() if step.outputs}
    assert {kind: change.against for kind, change in changes.items()} == {
        "simplified": "fp32",
        "int8": "simplified",
        "ort": "int8",
    }
    assert all((change.images, change.inputs) == (8, 8) for change in changes.values())
    own = [change.relative_error or 0.0 for change in changes.values()]
    total = changes["ort"].total_error
    assert own[0] < 1e-6  # folding constants rounds in another order at most
    assert 1e-4 < own[1] < 0.5
    assert total == pytest.approx(math.sqrt(sum(error**2 for error in own)), rel=0.05)
    assert all(step.peak_memory_mb is not None for step in steps.values())
    page = (tmp_path / "a.edge" / "report.html").read_text()
    assert "measured in all" in page


def test_a_report_keeps_to_its_schema(tmp_path: Path) -> None:
    build(write_project(tmp_path, pictures=16), "raspberry_pi_5", tmp_path / "a.edge", bundle_version=1)
    validator = jsonschema.Draft202012Validator(json.loads(report_schema()))
    document = json.loads((tmp_path / "a.edge" / "report.json").read_bytes())
    validator.validate(document)
    for wrong in ({"steps": [{}]}, {"schema_version": 2}, {"images": -1}, {"local_noise": [{"node": 1}]}):
        assert not validator.is_valid({**document, **wrong}), wrong
    page = (tmp_path / "a.edge" / "report.html").read_text()
    assert "The bundle carries INT8" in page
    assert str(tmp_path) not in page


def test_images_on_which_the_two_differ_are_shown(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", model=changed(5, 0.1), pictures=16)
    data = write_labelled(tmp_path / "data", changed(5, 0.1), 60)
    build(model, "x86_64_avx2", tmp_path / "a.edge", evaluation=[data], bundle_version=1)
    ledger = _recorded(tmp_path / "a.edge")
    page = (tmp_path / "a.edge" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == len(ledger.worst_images)
    for worst in ledger.worst_images:
        assert worst.fp32 != worst.int8


def test_a_fallback_is_recorded_with_what_int8_would_have_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "interleaved_latency_ms", lambda _calls, _on_round: [20.0, 10.0])
    report = build(write_project(tmp_path, pictures=16), "x86_64", tmp_path / "a.edge", bundle_version=1)
    ledger = _recorded(tmp_path / "a.edge")
    steps = {step.kind: step for step in ledger.steps}
    assert (ledger.verdict.carries, ledger.verdict.why) == ("fp32", report.fallback_reason)
    assert ledger.verdict.next_steps != ()
    assert (steps["int8"].shipped, steps["ort"].shipped) == (False, True)
    assert steps["int8"].latency_ratio == 2.0
    assert steps["ort"].outputs is not None
    assert steps["ort"].outputs.against == "simplified"
    assert (steps["ort"].size_mb, steps["int8"].size_mb) == (report.model_mb, report.int8_mb)
    assert "The bundle carries FP32" in (tmp_path / "a.edge" / "report.html").read_text()
