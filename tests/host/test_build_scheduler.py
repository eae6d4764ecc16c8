"""`edge-sdk build --scheduler` as a user types it: a process of its own, and worker processes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.bundle import Bundle
from tests.host.labelled import write_labelled
from tests.host.projects import write_project
from tests.host.test_candidates_cluster import local_cluster
from tests.host.uneven import uneven

# Dask closes some of its sockets and loops only when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)


def test_a_build_by_a_cluster_chooses_what_one_process_chooses(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=uneven(), pictures=16)
    write_labelled(tmp_path / "data", uneven(), 40)
    alone = _build(model, "alone.edge")
    with local_cluster(2) as cluster:
        there = _build(model, "there.edge", "--scheduler", cluster.scheduler_address)
        # The scheduler's own record: which job a worker finished.
        finished = {entry[0] for entry in cluster.scheduler.transition_log if entry[2] == "memory"}
    jobs = [name for name in finished if name.startswith("edge-sdk-") and "-shared-" not in name]
    assert len(jobs) >= len(alone["trials"]) > 1
    assert there["quality"] == alone["quality"]
    assert there["agreement"] == alone["agreement"]
    chosen, of_cluster = (_made(tmp_path / name) for name in ("alone.edge", "there.edge"))
    assert len(chosen[1]) > 1
    assert of_cluster == chosen


def _build(model: Path, name: str, *options: str) -> dict[str, Any]:
    """What `edge-sdk build --json` prints, in a process that finds nothing finished."""
    command = [sys.executable, "-m", "edge_sdk", "build", str(model), "--target", "x86_64", "--json"]
    command += ["--evaluation", str(model.parent / "data"), "-o", str(model.parent / name), *options]
    environment = {**os.environ, "EDGE_SDK_CACHE": str(model.parent / f"cache of {name}")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _made(bundle: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """The recipe and the nodes left float."""
    made = Bundle.open(bundle).manifest.provenance
    # Which input is faster is a matter of time.
    return {**made.recipe, "input": ""}, made.float_nodes
