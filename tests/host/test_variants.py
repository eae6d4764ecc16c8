"""Variants: one bundle with several models, each measured, each within its gates or left out and said to be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import AccuracyGateError, SizeGateError
from edge_sdk.manifest import Difference
from edge_sdk.quality import Rating, ratings
from edge_sdk.session import Session
from edge_sdk.tasks import make_task
from edge_sdk_tools import prove
from edge_sdk_tools.build import build
from edge_sdk_tools.ledger import from_json
from edge_sdk_tools.runtime_replay import replay_variants
from edge_sdk_tools.variants import Request, workbench
from tests.host import variant_models
from tests.host.labelled import write_labelled
from tests.host.projects import CLASSIFIER, write_project


def _sized(side: int) -> str:
    return CLASSIFIER.replace("[16, 16]", f"[{side}, {side}]")


def test_each_is_carried_with_what_the_device_needs_to_choose(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=variant_models.wide_classifier())
    request = Request(sizes=((24, 32), (16, 16)), fp32=True, fp16=True)
    report = build(model, "x86_64", tmp_path / "a.edge", variants=request)
    bundle = Bundle.open(tmp_path / "a.edge")
    found = {v.name: v for v in bundle.manifest.variants}
    assert list(found) == [row.name for row in report.variants] == ["int8", "int8.24x32", "fp32", "fp16"]
    assert bundle.manifest.input.size_wh == found["int8"].size_wh == (16, 16)
    assert found["int8.24x32"].size_wh == (24, 32)
    assert [v.integer_mac_share for v in found.values()] == [1.0, 1.0, None, None]
    assert [v.agreement is None for v in found.values()] == [False, False, True, False]
    assert all(v.host_latency_ms > 0 and v.quality is None and v.estimate is None for v in found.values())
    assert "com.microsoft:QLinearConv" in found["int8.24x32"].operators
    assert "ai.onnx:QLinearConv" not in found["fp32"].operators
    assert "ai.onnx:Cast" in found["fp16"].operators
    assert set(bundle.manifest.operators) == {name for v in found.values() for name in v.operators}
    config = bundle.read("required_operators_and_types.config").decode()
    assert "QLinearConv" in config
    assert [v.file.rpartition(".")[2] for v in found.values()] == ["ort", "ort", "onnx", "onnx"]
    assert all(f"# model.{name}.onnx is ONNX" in config for name in ("fp32", "fp16"))
    assert "model.int8" not in config
    assert str(tmp_path) not in config
    replay_variants(bundle)
    for name, variant in found.items():
        one = bundle.led_by(name)
        session = Session.open(one)
        make_task(one.manifest, len(bundle.labels()), session.output_shapes)
        taken = one.manifest.taken
        assert (session.input_shape, session.input_dtype) == (taken.shape(variant.size_wh), taken.dtype)
        assert one.manifest.input.size_wh == variant.size_wh


def test_a_size_has_ranges_of_its_own(tmp_path: Path) -> None:
    model = write_project(tmp_path, _sized(256), variant_models.summer(256), pictures=32)
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((16, 16),)))
    # Sums over 65536 pixels are 256 times those over 256: in the ranges of the first all of these would be one integer.
    assert [row.problem for row in report.variants] == [None, None]
    small = Bundle.open(tmp_path / "a.edge").led_by("int8.16x16")
    outputs = [outputs[0] for _, outputs in small.golden()]
    assert max(float(abs(output - 1 / 3).max()) for output in outputs) > 0.1


def test_labels_give_quality_beside_float_at_the_first_size(tmp_path: Path) -> None:
    float_model = variant_models.wide_classifier()
    model, data = write_project(tmp_path, model=float_model), write_labelled(tmp_path / "labelled", float_model, 6)
    request = Request(sizes=((32, 32),), fp32=True)
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[data], variants=request)
    int8, small, fp32 = Bundle.open(tmp_path / "a.edge").manifest.variants
    for variant, row in zip((int8, small, fp32), report.variants, strict=True):
        assert variant.quality is not None
        assert variant.quality.metric == row.metric == "top-1"
        assert variant.quality.value == row.value
        assert variant.quality.images == 6
    assert int8.quality is not None
    assert fp32.quality is not None
    assert small.quality is not None
    assert int8.quality.fp32 == small.quality.fp32 == fp32.quality.fp32 == fp32.quality.value
    for quality in (int8.quality, small.quality, fp32.quality):
        assert quality.difference is not None
        assert quality.difference.reference == "fp32"
        assert quality.difference.value == pytest.approx(quality.value - quality.fp32)
        assert quality.difference.low < quality.difference.value < quality.difference.high
    itself = fp32.quality.difference
    assert itself is not None
    assert itself == Difference("fp32", 0.0, -itself.high, itself.high)


def test_the_difference_is_of_pairs_and_tuning_has_it(tmp_path: Path) -> None:
    float_model = variant_models.wide_classifier()
    model = write_project(tmp_path, model=float_model)
    data = write_labelled(tmp_path / "labelled", float_model, 40, wrong=20)
    request = Request(sizes=((8, 8),), fp32=True)
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[data], variants=request)
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    by_name = {v.name: v.quality for v in manifest.variants}
    int8, shown = by_name["int8"], report.quality[0].difference
    assert int8 is not None
    assert int8.difference is not None
    assert shown is not None
    assert int8.difference == Difference("fp32", shown.value, shown.low, shown.high)
    # Every second image is right, so that its own interval is wide; where float says the same, the difference's is not.
    assert int8.difference.high - int8.difference.low < int8.high - int8.low
    metric, rated = ratings(manifest)
    assert metric == "top-1"
    assert rated["fp32"] == Rating(0.5, like_reference=True)
    assert rated["int8"].like_reference
    for name, quality in by_name.items():
        assert quality is not None
        assert quality.difference is not None
        assert rated[name] == Rating(quality.value, like_reference=quality.difference.may_be_noise)


def test_what_does_not_hold_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CLASSIFIER + "\n[gates]\nint8_min_agreement = 0.6\n"
    model = write_project(tmp_path, text, variant_models.adder(), labels="a\nb\n", pictures=32)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes", "256,12"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "int8.256x256 IS LEFT OUT because INT8 agrees with FP32 on" in out
    names = [v.name for v in Bundle.open(tmp_path / "a.edge").manifest.variants]
    assert names == ["int8", "int8.12x12"]
    assert not list((tmp_path / "a.edge").glob("*256*"))
    with pytest.raises(AccuracyGateError, match=r"int8\.256x256: INT8 agrees with FP32 on .* leave that size out"):
        build(model, "x86_64", tmp_path / "b.edge", require_int8=True, variants=Request(sizes=((256, 256),)))
    assert not (tmp_path / "b.edge").exists()


def test_where_float_is_carried_other_sizes_are_float_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A model that is slower in INT8 for certain is none of a few kilobytes.
    monkeypatch.setattr(prove, "interleaved_latency_ms", lambda _calls, _on_round: [20.0, 10.0])
    model = write_project(tmp_path, model=variant_models.wide_classifier())
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((24, 24),), fp32=True))
    bundle = Bundle.open(tmp_path / "a.edge")
    assert bundle.manifest.fallback_reason
    assert [v.name for v in bundle.manifest.variants] == ["fp32", "fp32.24x24"]
    assert bundle.manifest.variants[1].agreement is not None
    replay_variants(bundle)


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_called_slow_was_timed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    # Noise, which nothing real gives on demand: the first proof is of the first model, the second of the other size.
    times = iter([[5.0, 10.0], [20.0, 10.0]])
    monkeypatch.setattr(prove, "interleaved_latency_ms", lambda _calls, _on_round: next(times))
    again = [9.0, 5.0, 20.0, 10.0] if twice else [9.0, 5.0, 4.0, 10.0]
    monkeypatch.setattr(workbench, "interleaved_latency_ms", lambda _calls, _on_round: again)
    model = write_project(tmp_path, model=variant_models.wide_classifier())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((24, 24),)))
    assert (report.variants[1].problem is not None) is twice
    assert report.variants[1].latency_ratio == again[2] / 9.0
    assert len(Bundle.open(tmp_path / "a.edge").manifest.variants) == (1 if twice else 2)


def test_the_size_gate_is_for_each_model(tmp_path: Path) -> None:
    text = CLASSIFIER + "\n[gates]\nmax_size_mb = {}\n"
    model = write_project(tmp_path, text.format(0.05), variant_models.wide_classifier())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(fp32=True))
    [_, fp32] = report.variants
    assert fp32.problem is not None
    assert "gates.max_size_mb allows 0.05" in fp32.problem
    assert [v.name for v in Bundle.open(tmp_path / "a.edge").manifest.variants] == ["int8"]
    (tmp_path / "model.toml").write_text(text.format(0.001))
    with pytest.raises(SizeGateError):
        build(model, "x86_64", tmp_path / "b.edge", variants=Request(fp32=True))


def test_the_command_shows_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, model=variant_models.wide_classifier())
    command = ["build", str(model), "--target", "arm64", "-o", str(tmp_path / "a.edge"), "--with-fp32"]
    assert run([*command, "--sizes", "32"]) == 0
    out = capsys.readouterr().out
    assert "variants; time against the FP32 model as given, here" in out
    for name in ("int8.32x32", "fp32", "32x32"):
        assert name in out
    assert run([*command, "--json"]) == 0
    shown = from_json((tmp_path / "a.edge" / "report.json").read_bytes()).variants
    assert [row.name for row in shown] == ["int8", "fp32"]
    assert "Models in the bundle" in (tmp_path / "a.edge" / "report.html").read_text()
    rows = msgspec.json.decode(capsys.readouterr().out)["variants"]
    assert [(row["name"], row["problem"]) for row in rows] == [("int8", None), ("fp32", None)]
    assert rows[1]["model_mb"] > 2 * rows[0]["model_mb"]
    assert run([*command[:-1]]) == 0
    assert "variants" not in capsys.readouterr().out
