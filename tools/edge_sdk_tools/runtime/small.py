"""Compile an OpenCV and a numpy that have what edge-sdk calls on a device: `edge-sdk runtime minimal`.

    download ─▶ configure ─▶ compile ─▶ package ─▶ prove
                (CMake, Meson)  (Ninja)

Most of the 146 MB of the stock wheels is FFmpeg, OpenBLAS and an engine for neural networks. A small wheel is the stock
wheel of the same version with other libraries in it. Behind that version it has a digest of its files, by which pip
tells it from the stock wheel. Like a build of ONNX Runtime (build.py), a build goes on where an earlier one stopped.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import msgspec
import numpy as np

from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import IncompatibleError, UsageError
from edge_sdk_tools.arm_cost.counter import CPUS, PYTHONS, Counter
from edge_sdk_tools.arm_cost.installation import download_wheels, set_up
from edge_sdk_tools.jobs.runner import OnProgress, silent
from edge_sdk_tools.runtime import sources
from edge_sdk_tools.runtime.build import Steps, check_programs, hand_over, open_workspace, read_record
from edge_sdk_tools.runtime.package import (
    local_version,
    needed_files,
    output_of,
    pack_wheel,
    platform_of,
    pretty,
    unpacked_size,
)
from edge_sdk_tools.runtime.prove import PEAK, board_with, check_leaks, output_on
from edge_sdk_tools.runtime.recipe import MACHINES, TOOLCHAIN

_MACHINE = "aarch64"  # of _CROSS and _PRETENDED, and of what is compared
_PI = MACHINES[_MACHINE]


class Package(NamedTuple):
    """A package that is compiled small: its name as in the names of its files, and its source archive's hash in hex."""

    name: str
    version: str
    sha256: str

    @property
    def archive(self) -> str:
        """File name of the source archive."""
        return f"{self.name}-{self.version}.tar.gz"

    @property
    def requirement(self) -> str:
        """The package as a requirement for pip."""
        return f"{self.name}=={self.version}"


_OPENCV_SHA256 = "b82f9831daab90b725c7c1ee1b36cb5732c367096ac76d119e64e14eb70d5f3c"
OPENCV = Package("opencv_python_headless", "5.0.0.93", _OPENCV_SHA256)
NUMPY = Package("numpy", "2.4.6", "f3a3570c4a2a16746ac2c31a7c7c7b0c186b95ce902e33db6f28094ed7387dda")
PACKAGES = (OPENCV, NUMPY)

# Cameras of V4L2 and pictures are all that is left of input. CMake's own defaults are kept otherwise.
OPENCV_FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_LIST": "core,imgproc,imgcodecs,videoio,geometry,python3",
    "BUILD_SHARED_LIBS": "OFF",
    "PYTHON3_LIMITED_API": "ON",
    "CPU_BASELINE": "NEON",
    "CPU_DISPATCH": "",
    **{f"BUILD_{name}": "ON" for name in ("ZLIB", "PNG", "JPEG", "WEBP")},
    **{f"BUILD_{name}": "OFF" for name in ("TESTS", "PERF_TESTS", "JAVA", "opencv_apps")},
    **{
        f"WITH_{name}": "OFF"
        for name in (
            *("FFMPEG", "GSTREAMER", "OPENCL", "PROTOBUF", "FLATBUFFERS", "LAPACK", "EIGEN", "ITT", "KLEIDICV", "1394"),
            *("TIFF", "OPENEXR", "JASPER", "OPENJPEG", "AVIF", "IMGCODEC_HDR", "IMGCODEC_SUNRASTER", "IMGCODEC_PFM"),
        )
    },
    "OPENCV_GENERATE_PKGCONFIG": "OFF",
    "CV_TRACE": "OFF",
}
NUMPY_FLAGS = ("-Dbuildtype=release", "-Dblas=none", "-Dlapack=none", "-Dallow-noblas=true")

_CROSS = """\
[binaries]
c = [{launcher}'{compiler}gcc']
cpp = [{launcher}'{compiler}g++']
ar = '{compiler}ar'
strip = '{compiler}strip'
python = '{python}'
[built-in options]
c_args = [{flags}]
cpp_args = [{flags}]
[properties]
longdouble_format = 'IEEE_QUAD_LE'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
"""
# Meson asks the Python that it runs in where headers are and how extensions are called.
_PRETENDED = """\
import sysconfig
found, paths = sysconfig.get_config_vars(), sysconfig.get_paths
found |= {{"EXT_SUFFIX": ".cpython-{number}-aarch64-linux-gnu.so", "INCLUDEPY": {include!r}}}
sysconfig.get_paths = lambda *a, **k: {{**paths(*a, **k), "include": {include!r}, "platinclude": {include!r}}}
"""

# What a device calls, on one picture; each result, and the least CPU time of five.
_CALLS = """
import json, sys, time
import numpy as np
began = time.process_time()
import cv2
took = {"import": time.process_time() - began}
cv2.setNumThreads(1)
picture = np.load(sys.argv[1])
jpeg = cv2.imencode(".jpg", picture)[1]
memory = peak_kib()
gray = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)
turn = np.float32([[0.3, 0.05, 3], [-0.05, 0.3, 4]])
table = np.arange(255, -1, -1, np.uint8)
wide = np.linspace(-4, 4, 32 * 6400, dtype=np.float32).reshape(32, 6400)
def outlines():
    found = cv2.findContours((gray > 128).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]
    return np.float64([(cv2.contourArea(one), *cv2.minAreaRect(one)[0]) for one in found[:50]])
def drawn():
    image = picture.copy()
    cv2.rectangle(image, (20, 30), (300, 200), (0, 255, 0), 2, cv2.LINE_AA)
    cv2.putText(image, "person 91%", (20, 28), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1, cv2.LINE_AA)
    cv2.fillPoly(image, [np.int32([[9, 9], [90, 20], [40, 80]])], (1, 2, 3))
    return image
calls = {
    "decode": lambda: cv2.imdecode(jpeg, cv2.IMREAD_COLOR),
    "encode": lambda: cv2.imencode(".jpg", picture)[1],
    "resize": lambda: cv2.resize(picture, (224, 224), interpolation=cv2.INTER_LINEAR),
    "shrink": lambda: cv2.resize(picture, (224, 224), interpolation=cv2.INTER_AREA),
    "warp": lambda: cv2.warpAffine(picture, turn, (320, 320), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE),
    "colour": lambda: cv2.cvtColor(picture, cv2.COLOR_BGR2RGB),
    "gray": lambda: gray,
    "table": lambda: cv2.LUT(picture, table),
    "rotate": lambda: cv2.rotate(picture, cv2.ROTATE_90_CLOCKWISE),
    "draw": drawn,
    "outlines": outlines,
    "product": lambda: wide[:8, :32] @ wide,
    "sigmoid": lambda: 1 / (1 + np.exp(-wide)),
    "order": lambda: np.argsort(wide[:, ::-1], axis=None, kind="stable"),
}
results = {}
for name, call in calls.items():
    spent = []
    for _ in range(5):
        began = time.process_time()
        results[name] = call()
        spent.append(time.process_time() - began)
    took[name] = min(spent)
np.savez(sys.argv[2], **results)
print(json.dumps([took, memory]))
"""
_RELATIVE = 1e-5  # of the largest value, by which floating-point results may differ


class SmallWheel(msgspec.Struct, frozen=True):
    """One wheel: its file name, SHA-256 in hex, and what it and the stock one unpack to, in bytes."""

    file: str
    sha256: str
    unpacked: int
    stock_unpacked: int


class Compared(msgspec.Struct, frozen=True):
    """The functions of OpenCV and numpy that a device calls, measured with small and stock wheels on an emulated core.

    Attributes:
        cpu_s: least CPU seconds of the emulator by call.
        difference: the largest between both results by call.
        peak_mb: highest resident memory with both packages imported and the emulator's own, MB of 1e6 bytes.
    """

    core: str
    cpu_s: dict[str, float]
    stock_cpu_s: dict[str, float]
    difference: dict[str, float]
    peak_mb: float
    stock_peak_mb: float


class SmallBuild(msgspec.Struct, frozen=True):
    """What was made: the folder, its wheels, how they compare, and what an earlier build had finished."""

    output: Path
    wheels: tuple[SmallWheel, ...]
    compared: tuple[Compared, ...]
    remembered: tuple[str, ...]
    took: dict[str, tuple[float, float]]


def build_small(
    target: str, output: Path, *, python: str | None = None, jobs: int | None = None, on_progress: OnProgress = silent
) -> SmallBuild:
    """Compile, package and prove a small OpenCV and numpy.

    Args:
        target: name or file of the device, an aarch64 one.
        output: folder for the wheels and small.json.
        python: minor version on the device; the target's own by default.
        jobs: compilers at once; one for each CPU by default.
        on_progress: called with a step, how much of it is done, and how much there is.

    Raises:
        IncompatibleError: the small wheels give other results than the stock ones.
        EdgeError: as of `build_runtime`.
    """
    device = sources.load_device(target, python)
    if device.machine != _MACHINE:
        raise UsageError(f"target {device.name} is {device.machine}; small packages are built for {_MACHINE} only")
    sources.check_python(device.python)
    check_programs(_PI.compilers)
    with open_workspace(output, _MACHINE, on_progress) as steps:
        return _Build(steps, device, jobs or os.cpu_count() or 1).run(output)


class _Build:
    """The steps of one build, in the order in which `run` takes them."""

    def __init__(self, steps: Steps, device: Target, jobs: int) -> None:
        self._steps, self._device, self._jobs = steps, device, jobs
        self._downloads, self._made = steps.downloads, steps.work / "small"
        # The library of OpenCV is the same for every Python.
        self._pythons = {OPENCV.name: next(iter(PYTHONS)), NUMPY.name: device.python}
        self._tools = steps.tools
        self._trees = {package.name: steps.work / f"source-{package.name}" for package in PACKAGES}
        self._objects = {package.name: steps.work / f"build-{package.name}" for package in PACKAGES}

    def run(self, output: Path) -> SmallBuild:
        """Do what no earlier build has finished, and copy what it made into `output`."""
        do, python = self._steps.do, self._device.python
        recipe = (PACKAGES, OPENCV_FLAGS, TOOLCHAIN, NUMPY_FLAGS, _CROSS, _PRETENDED)
        settings = (*recipe, self._steps.compiler, np.__version__)
        found = [self._downloads / package.archive for package in PACKAGES] + [self._stock(one) for one in PACKAGES]
        found += [sources.system_folder(own, _PI, self._downloads) for own in self._pythons.values()]
        do("small-download", (PACKAGES, python), self._download, self._tools, *found)
        for package, configure in ((OPENCV, self._configure_opencv), (NUMPY, self._configure_numpy)):
            objects, own = self._objects[package.name], self._pythons[package.name]
            fresh, compiled = partial(self._fresh, package, configure), partial(self._compile, package)
            do(f"{package.name}-configure", (*settings, own), fresh, objects / "build.ninja")
            do(f"{package.name}-compile", (*settings, own), compiled, objects / "compiled")
        record = self._made / "small.json"
        do("small-package", (*settings, python, local_version("", {})), lambda: self._package(record), record)
        wheels = read_record(record, tuple[SmallWheel, ...])
        proof = self._made / "small-proof.json"
        do("small-prove", (wheels, PEAK, _CALLS), lambda: self._prove(wheels, proof), proof)
        compared = read_record(proof, tuple[Compared, ...])
        hand_over(record, {wheel.file: wheel.sha256 for wheel in wheels}, output)
        return SmallBuild(output, wheels, compared, tuple(self._steps.remembered), self._steps.took)

    def _stock(self, package: Package) -> Path:
        """Return the file of the stock wheel, or a file that is not there."""
        folder = self._downloads / "stock" / self._device.python
        return next(folder.glob(f"{package.name}-{package.version}-*.whl"), folder / "none" / "none")

    def _download(self) -> None:
        self._downloads.mkdir(exist_ok=True)
        sources.fetch_tools(self._downloads)
        for python in self._pythons.values():
            sources.fetch_python_headers(python, _PI, self._downloads)
        for package in PACKAGES:
            sources.fetch_archive(package.requirement, package.archive, package.sha256, self._downloads)
        wanted = [package.requirement for package in PACKAGES]
        download_wheels(wanted, self._device.python, self._downloads / "stock")

    def _fresh(self, package: Package, configure: Callable[[Path, Path], None]) -> None:
        tree, objects = self._trees[package.name], self._objects[package.name]
        for folder in (tree, objects):
            shutil.rmtree(folder, ignore_errors=True)
        sources.unpack_source(self._downloads / package.archive, tree)
        objects.mkdir()
        configure(tree, objects)

    def _flags(self, package: Package) -> list[str]:
        # The wheels must not name folders of this machine; of several that match, the last one counts.
        folders = (self._steps.cache, self._objects[package.name], self._trees[package.name])
        maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in zip(folders, "wbs", strict=True)]
        include = self._include(package)
        return [*maps, f"-I{include}", "-isystem", str(include.parent)]

    def _include(self, package: Package) -> Path:
        return sources.python_headers(self._pythons[package.name], _PI, self._downloads)

    def _configure_opencv(self, tree: Path, objects: Path) -> None:
        include = self._include(OPENCV)
        settings: dict[str, object] = {
            **OPENCV_FLAGS,
            **{f"CMAKE_{language}_FLAGS": " ".join(self._flags(OPENCV)) for language in ("C", "CXX")},
            "OPENCV_DOWNLOAD_PATH": objects / "none",
            "OPENCV_PYTHON3_INSTALL_PATH": "python",
            "PYTHON3_EXECUTABLE": sys.executable,
            "PYTHON3_INCLUDE_PATH": include,
            "PYTHON3_INCLUDE_DIR": include,
            "PYTHON3_NUMPY_INCLUDE_DIRS": np.get_include(),
        }
        self._steps.configure(f"{OPENCV.name}-configure", tree / "opencv", objects, settings)
        # What OpenCV says of its build, and where it looks for data files.
        for told in (objects / "modules" / "core" / "version_string.inc", objects / "opencv_data_config.hpp"):
            told.write_text(self._without_folders(told.read_text(encoding="utf-8")), encoding="utf-8")

    def _without_folders(self, text: str) -> str:
        """Return a text without the names of this machine's folders."""
        for folder in (self._steps.cache, Path(sys.prefix), Path(sys.base_prefix), Path.home()):
            text = text.replace(str(folder), "") if folder.name else text
        return text

    def _configure_numpy(self, tree: Path, objects: Path) -> None:
        number, include = self._device.python.replace(".", ""), self._include(NUMPY)
        (objects / "sitecustomize.py").write_text(_PRETENDED.format(number=number, include=str(include)))
        python = objects / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{objects}:{self._tools}" exec "{sys.executable}" "$@"\n')
        # pip's own script names the environment that fetched it, which may be gone.
        cython = objects / "cython"
        cython.write_text(f'#!/bin/sh\nexec "{python}" -m cython "$@"\n')
        for script in (python, cython):
            script.chmod(0o755)
        cross = objects / "cross.ini"
        flags = ", ".join(f"'{flag}'" for flag in self._flags(NUMPY))
        launcher = "'ccache', " if shutil.which("ccache") else ""
        cross.write_text(_CROSS.format(compiler=_PI.compiler, python=python, flags=flags, launcher=launcher))
        meson = tree / "vendored-meson" / "meson" / "meson.py"
        command: list[str | Path] = [sys.executable, meson, "setup", objects, tree, "--cross-file", cross, *NUMPY_FLAGS]
        self._steps.run(f"{NUMPY.name}-configure", command, objects, **self._environment(objects))

    def _environment(self, objects: Path) -> dict[str, str]:
        path = os.pathsep.join([str(objects), str(self._tools / "bin"), os.environ["PATH"]])
        return {"PYTHONPATH": str(self._tools), "PATH": path}

    def _compile(self, package: Package) -> None:
        objects = self._objects[package.name]
        targets = ["opencv_python3"] if package is OPENCV else []
        command = [str(self._tools / "bin" / "ninja"), f"-j{self._jobs}", *targets]
        self._steps.run(f"{package.name}-compile", command, objects, **self._environment(objects))
        (objects / "compiled").touch()

    def _package(self, record: Path) -> None:
        shutil.rmtree(self._made, ignore_errors=True)
        self._made.mkdir()
        wheels = [self._wheel(package) for package in PACKAGES]
        record.write_bytes(pretty(wheels))

    def _wheel(self, package: Package) -> SmallWheel:
        """Write the stock wheel with the compiled libraries in place of its own, and without those that they needed."""
        stock, objects = self._stock(package), self._objects[package.name]
        its_own = f"{package.name}.libs/"
        files = {name: data for name, data in needed_files(stock).items() if not name.startswith(its_own)}
        for name in [name for name in files if name.endswith(".so")]:
            library = self._made / "library"
            original = next(objects.rglob(Path(name).name))
            output_of([f"{_PI.compiler}strip", "--strip-unneeded", "-o", str(library), str(original)])
            files[name] = library.read_bytes()
            library.unlink()
        if package is NUMPY:  # what it says of its build is the small one's
            text = (objects / "numpy" / "__config__.py").read_text(encoding="utf-8")
            files["numpy/__config__.py"] = self._without_folders(text).encode()
        tag = stock.stem.split("-", 2)[2].rsplit("-", 1)[0]
        version = local_version(package.version, files)
        old, about = (f"{package.name}-{number}.dist-info/" for number in (package.version, version))
        files = {name.replace(old, about): data for name, data in files.items()}
        named = f"\nVersion: {package.version}\n".encode()
        files[f"{about}METADATA"] = files[f"{about}METADATA"].replace(named, f"\nVersion: {version}\n".encode(), 1)
        kept = [line for line in files[f"{about}WHEEL"].decode().splitlines() if line and not line.startswith("Tag:")]

        def write(platform: str) -> Path:
            files[f"{about}WHEEL"] = "\n".join([*kept, f"Tag: {tag}-{platform}", ""]).encode()
            path = self._made / f"{package.name}-{version}-{tag}-{platform}.whl"
            pack_wheel(path, files)
            return path

        loose = write("linux_aarch64")
        wheel = write(platform_of(loose, self._tools))
        loose.unlink()
        check_leaks(wheel, (self._steps.cache, Path.home(), Path(sys.prefix)))
        return SmallWheel(wheel.name, sources.sha256_of(wheel), unpacked_size(wheel), unpacked_size(stock))

    def _prove(self, wheels: tuple[SmallWheel, ...], proof: Path) -> None:
        counter = set_up(python=self._device.python)
        with tempfile.TemporaryDirectory(prefix="edge-sdk-small-") as scratch:
            folder = Path(scratch)
            small = board_with(counter, [self._made / wheel.file for wheel in wheels], folder / "small")
            stock = board_with(counter, [self._stock(package) for package in PACKAGES], folder / "stock")
            picture = folder / "picture.npy"
            noise = np.random.default_rng(0).integers(0, 256, (45, 80, 3), np.uint8)
            np.save(picture, cv2.resize(noise, (1280, 720), interpolation=cv2.INTER_CUBIC))
            compared = []
            for number, core in enumerate(CPUS):
                self._steps.on_progress("small-prove", number, len(CPUS))
                compared.append(_compare(small, stock, core, picture, folder))
        proof.write_bytes(pretty(compared))


def _compare(small: Counter, stock: Counter, core: str, picture: Path, folder: Path) -> Compared:
    """Run what a device calls with both; raise IncompatibleError where the results differ by more than rounding."""
    said_by, results = [], []
    for name, board in (("small", small), ("stock", stock)):
        file = folder / f"{name}-{core}.npz"
        said_by.append(output_on(board, core, f"the {name} packages", PEAK + _CALLS, str(picture), str(file)))
        results.append(dict(np.load(file)))
    differences = {}
    for name, expected in results[1].items():
        got = results[0][name]
        if got.shape != expected.shape:
            raise IncompatibleError(f"{name} on an emulated {core}: a result of {got.shape}, stock {expected.shape}")
        differences[name] = float(np.abs(got.astype(np.float64) - expected).max(initial=0))
        most = 0.0 if expected.dtype.kind in "ui" else _RELATIVE * float(np.abs(expected).max())
        if differences[name] > most:
            where = f"{name} on an emulated {core}"
            raise IncompatibleError(f"{where}: differs by {differences[name]:g} from the stock one")
    (cpu_s, peak), (stock_cpu_s, stock_peak) = said_by
    return Compared(core, cpu_s, stock_cpu_s, differences, peak * 1024 / 1e6, stock_peak * 1024 / 1e6)
