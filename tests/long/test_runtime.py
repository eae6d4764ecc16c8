"""`make runtime`: a reduced ONNX Runtime is built from nothing and proved."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from edge_sdk_tools.arm_cost.counter import CPUS
from edge_sdk_tools.runtime.package import Runtime
from edge_sdk_tools.runtime.prove import Proof
from edge_sdk_tools.runtime.recipe import PATCHES
from tests.long.test_arm64 import CHECKOUT, MODELS
from tests.long.test_arm64 import _on_host as on_host

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


def test_the_wheel_is_small(output: Path) -> None:
    runtime = msgspec.json.decode((output / "runtime.json").read_bytes(), type=Runtime)
    assert runtime.sizes.wheel <= 1_400_000
    assert runtime.sizes.unpacked <= 4_000_000
    assert runtime.onnxruntime in PATCHES
    proof = msgspec.json.decode((output / "proof.json").read_bytes(), type=Proof)
    assert {one.core for one in proof.replays} == set(CPUS)
    assert {one.variant for one in proof.replays} == {"int8", "fp32"}
