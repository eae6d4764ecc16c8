"""One build by several workers: the same model is chosen, whoever makes the candidates and whoever dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import dask
import msgspec
import pytest
from distributed import LocalCluster

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Provenance
from edge_sdk.cli.root import run
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.jobs.runner import JobRunner
from tests.support.jobs import local_cluster
from tests.support.models import uneven
from tests.support.projects import write_labelled, write_project

# Dask closes some of its sockets and loops only when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)


class Project:
    """A model that loses quality in INT8, with its labelled images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_project(folder, model=uneven(), pictures=16)
        self.data = write_labelled(folder / "data", uneven(), 60)

    def built(self, name: str, job_runner: JobRunner, **arguments: Any) -> tuple[BuildResult, Provenance]:
        """What the build says, and how the model was made."""
        bundle = self.folder / name
        report = build(
            self.model, "x86_64", bundle, evaluation=[self.data], bundle_version=1, job_runner=job_runner, **arguments
        )
        made = Bundle.open(bundle).manifest.provenance
        # Which input is faster is a matter of time.
        return report, msgspec.structs.replace(made, recipe={**made.recipe, "input": ""})


def test_several_jobs_choose_what_one_chooses(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with JobRunner() as job_runner:
        alone, chosen = project.built("a.edge", job_runner)
    with JobRunner(jobs=2) as job_runner:
        both, of_both = project.built("b.edge", job_runner)
    assert len(alone.candidates) > 5
    assert len(chosen.float_nodes) > 1
    assert of_both == chosen
    assert both.quality == alone.quality
    # Two at once may try one more than was needed.
    tried = {trial.recipe: trial.change for trial in both.candidates}
    assert {trial.recipe: trial.change for trial in alone.candidates}.items() <= tried.items()


@pytest.mark.long
def test_a_cluster_whose_workers_die_chooses_the_same(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with JobRunner() as job_runner:
        alone, chosen = project.built("a.edge", job_runner)
    deaths: list[int] = []
    # A result that died with its worker is asked for this long, 30 s by default.
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), local_cluster(2) as cluster:

        def kill_one(step: str, done: int, total: int) -> None:
            if step == "try recipes" and 0 < done < total and not deaths:
                deaths.append(next(nanny.pid for nanny in cluster.workers.values()))
                os.kill(deaths[0], signal.SIGKILL)

        with JobRunner(scheduler=cluster.scheduler_address) as job_runner:
            report, there = project.built("b.edge", job_runner, on_progress=kill_one)
        assert _pids(cluster).isdisjoint(deaths)
    assert deaths
    assert there == chosen
    assert report.quality == alone.quality
    # Nothing is counted twice; only the last recipe may have as many float layers as one before it, and others.
    assert len({trial.recipe for trial in report.candidates}) >= len(report.candidates) - 1


@pytest.mark.long
def test_a_cluster_need_not_see_the_images(tmp_path: Path) -> None:
    """What is sent to a worker holds the images; their paths mean nothing there."""
    project = Project(tmp_path)
    hidden = tmp_path / "hidden"

    def hide(step: str, done: int, _total: int) -> None:
        if step == "try recipes" and done == 0 and project.data.exists():
            project.data.rename(hidden)
        elif step == "measure latency" and hidden.exists():
            hidden.rename(project.data)

    def bring_back(step: str, done: int, total: int) -> None:
        hide(step, done, total)
        if step == "try recipes" and done and hidden.exists():
            hidden.rename(project.data)

    with local_cluster(1) as cluster, JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        report, _ = project.built("b.edge", job_runner, on_progress=bring_back)
    assert report.agreement.images == 60


def test_nobody_at_the_scheduler_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path)
    command = ["build", str(model), "--target", "x86_64", "--scheduler", "tcp://127.0.0.1:9"]
    assert run([*command, "-o", str(tmp_path / "a.edge")]) == 2
    assert "scheduler tcp://127.0.0.1:9: nobody answers" in capsys.readouterr().err
    assert run([*command, "--jobs", "2"]) == 2
    assert "leave out jobs" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.edge"))


def _pids(cluster: LocalCluster) -> set[int]:
    return {nanny.pid for nanny in cluster.workers.values()}
