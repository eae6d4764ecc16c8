"""`make runtime`: a reduced ONNX Runtime is built from nothing and proved; boards run a bundle with it."""

from __future__ import annotations

import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edge_sdk_tools.arm_cost.counter import CPUS
from edge_sdk_tools.runtime.package import Runtime
from edge_sdk_tools.runtime.prove import Proof
from edge_sdk_tools.runtime.recipe import PATCHES
from tests.long.test_arm64 import CHECKOUT, MODELS, Board, DeviceInstall, find_emulator, make_roots, on_host
from tests.support.absent import Cache
from tests.support.projects import write_pictures

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not os.environ.get("EDGE_SDK_RUNTIME"), reason="half an hour of compiling: `make runtime`"),
]
PI = "raspberry_pi_5"
PLACE = CHECKOUT / ".cache" / "runtime"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two bundles with different operators; the runtime is built for the detector."""
    built = {}
    for task, write in MODELS.items():
        folder = tmp_path_factory.mktemp(task)
        built[task] = folder / f"{task}.edge"
        description = write(folder / "project")
        options = ("--target", PI, "--with-fp32", "--fresh", "-o", str(built[task]))
        on_host("-m", "edge_sdk", "build", str(description), *options)
    return built


@pytest.fixture(scope="module")
def output(bundles: dict[str, Path]) -> Path:
    """What `edge-sdk runtime build` writes, made from nothing."""
    shutil.rmtree(PLACE, ignore_errors=True)
    os.environ["EDGE_SDK_CACHE"] = str(PLACE / "cache")
    try:
        command = ("-m", "edge_sdk", "runtime", "build", str(bundles["detection"]), "--target", PI, "--from-debian")
        print(on_host(*command, "-o", str(PLACE / "out")))  # noqa: T201 - the figures
    finally:
        del os.environ["EDGE_SDK_CACHE"]
    return PLACE / "out"


@pytest.fixture(scope="module")
def boards(output: Path) -> dict[str, Board]:
    """Emulated boards with the device install, on which the reduced runtime lies over the stock one."""
    find_emulator()
    cache = Cache(CHECKOUT / ".cache" / "arm64")
    bare = [Board.emulated(core, root) for core, root in make_roots(cache).items()]
    site = DeviceInstall(bare[0], PI).make(cache)
    [wheel] = output.glob("*.whl")
    over = output.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(over)
    installed = (board.with_install(site) for board in bare)
    path = os.pathsep.join((str(over), str(site)))
    return {b.name: replace(b, environment={**b.environment, "PYTHONPATH": path}) for b in installed}


def test_the_wheel_is_small(output: Path) -> None:
    runtime = msgspec.json.decode((output / "runtime.json").read_bytes(), type=Runtime)
    assert runtime.sizes.wheel <= 1_400_000
    assert runtime.sizes.unpacked <= 4_000_000
    assert runtime.onnxruntime in PATCHES
    proof = msgspec.json.decode((output / "proof.json").read_bytes(), type=Proof)
    assert {one.core for one in proof.replays} == set(CPUS)
    assert {one.variant for one in proof.replays} == {"int8", "fp32"}


@pytest.mark.parametrize("name", CPUS)
def test_a_board_runs_the_bundle_and_refuses_another(
    boards: dict[str, Board], bundles: dict[str, Path], tmp_path: Path, name: str
) -> None:
    board, detector = boards[name], str(bundles["detection"])
    assert "reduced to" in board.checked("-m", "edge_sdk", "inspect", detector)
    pictures = write_pictures(tmp_path / "pictures", 3, first=100)
    # The emulator runs one program, and no other Python of its board beside it.
    lines = board.checked(
        *("-m", "edge_sdk", "run", detector, "--source", str(pictures), "--frames", "3", "--trial-seconds", "0")
    ).splitlines()
    assert len(lines) == 3
    done = board.run("-m", "edge_sdk", "run", str(bundles["classification"]), "--source", str(pictures))
    assert done.returncode == 6
    assert "has no ai.onnx:" in done.stderr
