"""Other versions of ONNX Runtime: proved by running them, promised only then."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import onnxruntime as ort
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import parse_version
from edge_sdk.core.errors import IncompatibleError, MissingDependencyError, UsageError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.packages import Fetch
from edge_sdk_tools.prove.runtime_versions import replay_in
from tests.support.projects import write_project

# Wheels for Python 3.10 to 3.13 exist of each; the lowest is what the targets name.
OLDER = "1.20.1"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("EDGE_SDK_CACHE", str(folder))
    return folder


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
    with pytest.raises(
        UsageError, match=r"jetson_orin_nano has ONNX Runtime 1\.23\.2 at most .* --prove-runtime 1\.23\.2"
    ):
        build(write_project(tmp_path), "jetson_orin_nano", tmp_path / "a.edge")


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
        (
            "1.22.1",
            "__version__ = '9.9.9'\ndef __getattr__(name): raise RuntimeError('no such kernel')",
            "no such kernel",
        ),
    ):
        with pytest.raises(IncompatibleError, match=expected) as caught:
            replay_in(version, tmp_path / "a.edge", _stand_in(body))
        assert "\n" not in str(caught.value)


def test_a_runtime_that_cannot_be_had(tmp_path: Path, cache: Path) -> None:
    def fetch(requirement: str, folder: Path) -> None:
        raise RuntimeError("no matching distribution")

    with pytest.raises(MissingDependencyError, match=r"onnxruntime==1\.21\.5 cannot be downloaded: no matching"):
        replay_in("1.21.5", tmp_path, fetch)
    assert not list(cache.rglob("*.py"))
