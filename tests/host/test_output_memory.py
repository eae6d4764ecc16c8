"""What stands beside many others is run once an image, and keeps within its memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target
from edge_sdk_tools.check import check_model
from edge_sdk_tools.dataset import Dataset, find_images
from edge_sdk_tools.evaluate import OutputMemory, from_checked
from edge_sdk_tools.quantize import simplify
from edge_sdk_tools.search.attempt import Attempt, make
from edge_sdk_tools.search.setting import Setting
from tests.host.projects import write_project


def test_a_known_input_is_not_run_again() -> None:
    memory = OutputMemory()
    tensor = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    buffer = np.ones(4, np.float32)  # a session overwrites its outputs

    def run() -> tuple[np.ndarray, ...]:
        runs.append(1)
        return (buffer,)

    runs: list[int] = []
    memory.recall(tensor, run)
    buffer[:] = 7
    [again] = memory.recall(tensor.copy(), run)
    assert again.tolist() == [1, 1, 1, 1]
    assert len(runs) == 1
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 2
    memory.recall(tensor + 1, run)
    assert len(runs) == 2


def test_what_does_not_fit_is_run_again() -> None:
    memory = OutputMemory(limit_mb=0.001)
    for number in range(4):
        tensor = np.full((1, 8), number, np.float32)
        for _ in range(2):
            [output] = memory.recall(tensor, lambda: (np.full(100, 5.0, np.float32),))
            assert output[0] == 5
    assert len(memory) == 2


def test_every_attempt_asks_the_float_model_what_is_known(tmp_path: Path) -> None:
    spec, target = load_model_spec(write_project(tmp_path)), load_target("x86_64")
    checked = check_model(spec, target)
    fp32 = from_checked("FP32", spec, checked)
    work = tmp_path / "work"
    work.mkdir()
    images = Dataset(find_images([tmp_path / "pictures"]), None, "images")
    setting = Setting(spec, target, fp32, checked.proto.SerializeToString(), simplify(checked.proto, work), images)
    first = make(Attempt(None), setting)
    memory = setting.fp32.memory
    assert memory is not None
    assert len(memory) == len(images)
    assert make(Attempt(None), setting).measured.evaluation.agreement == first.measured.evaluation.agreement
    assert len(memory) == len(images)
    assert fp32.memory is None
