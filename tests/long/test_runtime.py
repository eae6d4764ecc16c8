"""`make runtime`: a reduced ONNX Runtime is built from nothing, proved, and installed on emulated boards."""

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from edge_sdk_tools.arm_cost.counter import CORES, CPUS, Counter
from edge_sdk_tools.runtime.package import Runtime
from edge_sdk_tools.runtime.prove import Proof
from edge_sdk_tools.runtime.recipe import PATCHES
from tests.long.test_arm64 import CHECKOUT, MODELS, PICTURES, Board
from tests.long.test_arm64 import _on_host as on_host
from tests.support.projects import write_pictures

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(3 * 3600),  # only a guard, for a machine that does other things too
    pytest.mark.skipif(not os.environ.get("EDGE_SDK_RUNTIME"), reason="half an hour of compiling: `make runtime`"),
]
PI = "raspberry_pi_5"
PLACE = CHECKOUT / ".cache" / "runtime"
LARGEST_INSTALL = 60_000_000  # bytes; with the stock packages 222


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two bundles with different operators; the runtime is built for the detector."""
    built = {}
    for task, write in MODELS.items():
        folder = tmp_path_factory.mktemp(task)
        built[task] = folder / f"{task}.edge"
        options = ("--target", PI, "--with-fp32", "--fresh", "-o", str(built[task]))
        on_host("-m", "edge_sdk", "build", str(write(folder / "project")), *options)
    return built


@pytest.fixture(scope="module")
def output(bundles: dict[str, Path]) -> Path:
    """What `edge-sdk runtime build` and `minimal` write, made from nothing."""
    shutil.rmtree(PLACE, ignore_errors=True)
    build = ("build", str(bundles["detection"]), "--target", PI, "-o")
    out, second = str(PLACE / "out"), str(PLACE / "second")
    commands = [(*build, out), (*build, second, "--python", "3.13"), ("minimal", "--target", PI, "-o", out)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EDGE_SDK_CACHE", "CCACHE_DIR"):
            patch.setenv(name, str(PLACE / name.lower()))
        for command in commands:
            print(on_host("-m", "edge_sdk", "runtime", *command))  # noqa: T201 - the figures are what it is run for
    return PLACE / "out"


@pytest.fixture(scope="module")
def site(output: Path, bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a device has installed from a wheelhouse with all that was compiled, without a package index."""
    folder = tmp_path_factory.mktemp("device")
    on_host("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT))
    [wheel], compiled = folder.glob("*.whl"), output.glob("*.whl")
    house, installed = folder / "house", folder / "site"
    pins = ("-c", str(CHECKOUT / "constraints.txt"))
    options = ("--target", PI, "--wheel", str(wheel), *pins, "-o", str(house))
    options += tuple(part for path in compiled for part in ("--runtime", str(path)))
    print(on_host("-m", "edge_sdk", "wheelhouse", str(bundles["detection"]), *options))  # noqa: T201 - the sizes
    # For another Python pip wants to be told which wheels it may take: those that are there.
    tags = {tag for path in house.glob("*.whl") for tag in path.stem.rsplit("-", 1)[1].split(".")}
    install = ["install", "--quiet", "--no-index", "--find-links", str(house), "--require-hashes", "--no-compile"]
    install += ["-r", str(house / "requirements.txt"), "--target", str(installed), "--only-binary=:all:"]
    install += ["--implementation", "cp", "--python-version", "3.11"]
    on_host("-m", "pip", *install, *(part for tag in tags for part in ("--platform", tag)))
    return installed


@pytest.mark.parametrize(("name", "python"), [("out", "3.11"), ("second", "3.13")])
def test_the_wheel_is_small(output: Path, name: str, python: str) -> None:
    output = output.with_name(name)
    runtime = msgspec.json.decode((output / "runtime.json").read_bytes(), type=Runtime)
    assert runtime.python == python
    assert runtime.sizes.wheel <= 1_400_000
    assert runtime.sizes.unpacked <= 4_000_000
    assert runtime.onnxruntime in PATCHES
    proof = msgspec.json.decode((output / "proof.json").read_bytes(), type=Proof)
    assert {one.core for one in proof.replays} == set(CPUS)
    assert {one.variant for one in proof.replays} == {"int8", "fp32"}


def test_a_device_is_small(site: Path) -> None:
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"installed: {size:,} bytes")  # noqa: T201
    assert size <= LARGEST_INSTALL


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.model)
def test_a_device_runs_its_bundle_and_refuses_another(
    counter: Counter, site: Path, bundles: dict[str, Path], tmp_path: Path, core: object
) -> None:
    board = Board.of(counter, core, site, site)
    pictures = write_pictures(tmp_path / "pictures", PICTURES, first=100)

    def command(verb: str, task: str) -> list[str]:
        source = ("--source", str(pictures), "--frames", str(PICTURES), "--trial-seconds", "0", "--json")
        return ["-m", "edge_sdk", verb, str(bundles[task]), *(source if verb == "run" else ())]

    assert "reduced to" in board.checked(*command("inspect", "detection"))
    published = map(json.loads, board.checked(*command("run", "detection")).splitlines())
    assert [one["seq"] for one in published if one["stream"] == "result"] == list(range(PICTURES))
    refused = board.run(*command("run", "classification"))
    assert refused.returncode == 6
    [line] = [line for line in refused.stderr.splitlines() if "the reduced ONNX Runtime" in line]
    assert " here has no ai.onnx:GlobalAveragePool" in line or "QLinearGlobalAveragePool" in line
    assert line.split(": ")[-1] in board.checked(*command("inspect", "classification")).replace("\n", " ")
