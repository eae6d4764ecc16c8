"""Targets: all of them load, and a wrong one is refused with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.errors import TargetError
from edge_sdk.target import load_target, target_names, targets_folder


def test_brings_the_promised_targets() -> None:
    assert target_names() == [
        "arm64",
        "jetson_orin_nano",
        "raspberry_pi_4",
        "raspberry_pi_5",
        "raspberry_pi_zero_2w",
        "x86_64",
        "x86_64_avx2",
    ]


@pytest.mark.parametrize("name", target_names())
def test_every_target_loads_and_explains_each_field(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    text = (targets_folder() / f"{name}.toml").read_text()
    keys = [line.partition(" =")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert {*target.__struct_fields__} - {"provider_options"} <= {*keys}
    for key in keys:
        line = next(i for i, text_line in enumerate(text.splitlines()) if text_line.startswith(f"{key} ="))
        explained = "#" in text.splitlines()[line] or text.splitlines()[line - 1].startswith("#")
        assert explained, f"{name}: {key} has no comment"


def test_what_sets_the_targets_apart() -> None:
    assert load_target("x86_64_avx2").reduce_range
    assert not load_target("x86_64").reduce_range
    assert load_target("raspberry_pi_4").cpu == "cortex-a72"
    assert load_target("raspberry_pi_5").cpu == "cortex-a76"
    assert load_target("raspberry_pi_zero_2w").memory_mb == 512
    jetson = load_target("jetson_orin_nano")
    assert jetson.providers == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert jetson.python == "3.10"
    assert jetson.provider_options.given() == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    # In full precision: what is less exact is beyond the tolerance of a float model's golden inputs.
    assert jetson.provider_options.of("TensorrtExecutionProvider") == {"trt_max_workspace_size": "1073741824"}
    assert jetson.provider_options.of("CUDAExecutionProvider")["use_tf32"] == "0"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('machine = "aarch64"', 'machin = "aarch64"', "unknown key machin; did you mean machine?"),
        ('machine = "aarch64"', 'machine = "armv7l"', "machine: 'armv7l', expected x86_64 or aarch64"),
        ('machine = "aarch64"', "", "machine is missing, expected one of x86_64 or aarch64"),
        ("intra_op_num_threads = 2", "intra_op_num_threads = 0", "intra_op_num_threads is 0, expected 1 or more"),
        (
            "intra_op_num_threads = 2",
            'intra_op_num_threads = "2"',
            "intra_op_num_threads: got a string, expected a whole number; leave out the quotes",
        ),
        ("allow_spinning = false", "allow_spinning = 0", "allow_spinning: got a whole number, expected true or false"),
        ("memory_mb = 1024", "memory_mb = 1", "memory_mb is 1, expected 64 or more"),
        ('["CPUExecutionProvider"]', '["NeonExecutionProvider"]', "'NeonExecutionProvider' is not an execution"),
        ('["CPUExecutionProvider"]', '["CUDAExecutionProvider"]', "expected CPUExecutionProvider last"),
        ('["CPUExecutionProvider"]', "[]", "providers has 0 entries, expected 1 or more"),
        ('weight_type = "QInt8"', 'weight_type = "int8"', "'int8', expected QUInt8 or QInt8; did you mean QInt8?"),
        ('weight_type = "QInt8"', 'weight_type = "INT4"', "weight_type: 'INT4', expected QUInt8 or QInt8"),
        ("latency_budget_ms = 200.0", "latency_budget_ms = -5", "latency_budget_ms is -5, expected more than 0"),
        ("latency_budget_ms = 200.0", "latency_budget_ms = inf", "latency_budget_ms is inf, expected a finite number"),
        ('max_onnxruntime = ""', 'max_onnxruntime = "new"', "max_onnxruntime: 'new', expected a version, or empty"),
        ('min_onnxruntime = "1.20.1"', 'min_onnxruntime = "new"', "min_onnxruntime: 'new', expected "),
        ('name = "arm64"', 'name = "other"', "name is 'other', expected 'arm64'"),
        ('name = "arm64"', "name = ", "not valid TOML"),
        ("allow_spinning = false", "allow_spinning = False", "; true and false are written in small letters"),
    ],
)
def test_wrong_target_names_file_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = (targets_folder() / "arm64.toml").read_text()
    assert old in text
    path = tmp_path / "arm64.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(TargetError) as caught:
        load_target(str(path))
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2


_TENSORRT, _CUDA = "[provider_options.TensorrtExecutionProvider]\n", "[provider_options.CUDAExecutionProvider]\n"


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (_TENSORRT + "trt_fp16_enabled = true", "ExecutionProvider.trt_fp16_enabled; did you mean trt_fp16_enable?"),
        (_TENSORRT + 'trt_fp16_enable = "yes"', "trt_fp16_enable: got a string, expected true or false"),
        (_TENSORRT + "trt_builder_optimization_level = 6", "trt_builder_optimization_level is 6, expected 5 or less"),
        (_CUDA + 'arena_extend_strategy = "kSame"', "expected kNextPowerOfTwo or kSameAsRequested"),
        ("[provider_options.TensorRTExecutionProvider]", "did you mean TensorrtExecutionProvider?"),
        ("[provider_options.CPUExecutionProvider]", "unknown key provider_options.CPUExecutionProvider"),
        # A bundle must not say where a device writes, nor what code it loads.
        (_TENSORRT + 'trt_engine_cache_path = "/tmp"', "unknown key provider_options.TensorrtExecutionProvider.trt_en"),
        (
            _TENSORRT + 'trt_extra_plugin_lib_paths = "a.so"',
            "unknown key provider_options.TensorrtExecutionProvider.",
        ),
        (_TENSORRT + "trt_dla_core = 1", "TensorrtExecutionProvider: it is not among providers, which are CPUExec"),
    ],
)
def test_wrong_options_of_a_provider_name_the_key(tmp_path: Path, added: str, expected: str) -> None:
    path = tmp_path / "arm64.toml"
    path.write_text((targets_folder() / "arm64.toml").read_text() + added)
    with pytest.raises(TargetError) as caught:
        load_target(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"unknown target 'pi4'.*raspberry_pi_4"):
        load_target("pi4")


def test_name_is_never_a_path() -> None:
    with pytest.raises(TargetError, match="unknown target"):
        load_target("../targets/arm64")


def test_missing_file() -> None:
    with pytest.raises(TargetError, match=r"nowhere/x\.toml: no such file"):
        load_target("nowhere/x.toml")
