"""`edge-sdk run` with a model that misbehaves on some frames."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from tests.support.bundles import SIDE, endless, not_a_number, write_real_bundle
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system

# The limit is half a second, or ten times what golden took on a machine that does other things too.
_ENDED = re.compile(r"a run did not finish within [0-9.]+ s and was ended; the frame is given up")


def _pictures(folder: Path, levels: list[int]) -> Path:
    folder.mkdir()
    for index, level in enumerate(levels):
        cv2.imwrite(str(folder / f"{index}.png"), np.full((SIDE, SIDE, 3), level, np.uint8))
    return folder


def test_a_frame_that_hangs_the_model_costs_that_frame(tmp_path: Path) -> None:
    bundle = write_real_bundle(tmp_path / "a.edge", endless())
    pictures = _pictures(tmp_path / "pictures", [50, 255, 255, 60, 255])
    done = edge_sdk("run", bundle, "--source", pictures, "--run-limit", 0.5, "--json")
    assert done.returncode == 0, done.stderr
    *results, summary = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [r["seq"] for r in results] == [0, 3]
    assert (summary["results"], summary["hung"]) == (2, 3)
    assert len(_ENDED.findall(done.stderr)) == 3


def test_a_model_that_hangs_three_times_in_a_row_ends_the_run(tmp_path: Path) -> None:
    bundle = write_real_bundle(tmp_path / "a.edge", endless())
    pictures = _pictures(tmp_path / "pictures", [50, 255, 255, 255, 60])
    done = edge_sdk("run", bundle, "--source", pictures, "--run-limit", 0.5)
    assert done.returncode == 1
    assert [msgspec.json.decode(line)["seq"] for line in done.stdout.splitlines()] == [0]
    last = done.stderr.splitlines()[-1]
    assert "did not finish within" in last
    assert "3 frames in a row" in last


def test_outputs_that_are_no_numbers_are_said_once_marked_and_counted(tmp_path: Path) -> None:
    bundle = write_real_bundle(tmp_path / "a.edge", not_a_number())
    pictures = _pictures(tmp_path / "pictures", [50, 255, 60, 255])
    done = edge_sdk("run", bundle, "--source", pictures, "--json")
    assert done.returncode == 0, done.stderr
    *results, summary = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [r.get("not_finite", False) for r in results] == [False, True, False, True]
    assert [len(r["classes"]) for r in results] == [2, 0, 2, 0]
    assert (summary["results"], summary["not_finite"]) == (4, 2)
    assert done.stderr.count("are NaN or infinite") == 1


def test_an_accelerator_that_is_not_there_is_said_in_one_line_at_start(tmp_path: Path) -> None:
    wanted = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    bundle = write_real_bundle(tmp_path / "a.edge", not_a_number(), providers=wanted)
    done = edge_sdk("run", bundle, "--source", _pictures(tmp_path / "pictures", [50]))
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "was asked for and is not used" in line]
    for name in wanted[:2]:
        assert f"{name} was asked for and is not used: " in line
    assert len(done.stdout.splitlines()) == 1
