"""Gather the wheels that a device installs without a package index, with a reduced ONNX Runtime or the stock one.

pip chooses and fetches them for the target's Python and platform. Of numpy and OpenCV the files that no device opens
are left out (tests, headers, stubs for type checkers): such a wheel has a build tag after its version, a RECORD of what
it holds, and every licence. A list of requirements has the hash of each wheel, which pip on the device compares.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import REDUCED_FILE, ReducedRuntime
from edge_sdk.bundle.target import Target, refuse_accelerators
from edge_sdk.core.errors import OutputError, UsageError, first_line
from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, EXTENSIONS_PACKAGE
from edge_sdk_tools.arm_cost.counter import PYTHONS
from edge_sdk_tools.arm_cost.installation import fetch_wheels, platforms
from edge_sdk_tools.bundle_folder import is_full
from edge_sdk_tools.runtime.package import check_built_for, needed_files, pack_wheel, unpacked_size
from edge_sdk_tools.runtime.sources import load_device, sha256_of

REQUIREMENTS = "requirements.txt"
_BUILD = "1edge"
_SMALL = ("numpy", "opencv_python_headless")
_GLIBC = {"bookworm": 36, "trixie": 41}  # 2.N, by Debian's release
_LONGEST_RECORD = 1 << 20  # bytes that are read of what a reduced runtime says of itself; one has some thousands


class Gathered(msgspec.Struct, frozen=True):
    """One wheel of a wheelhouse: its file name, what it unpacks to, and what was left out of it, in bytes."""

    file: str
    sha256: str
    unpacked: int
    left_out: int

    @property
    def requirement(self) -> str:
        """The wheel as a requirement for pip: `===` tells a version from one with a local part, `==` does not."""
        name, version, *_ = self.file.split("-")
        return f"{name.replace('_', '-').lower()}==={version}"


def make_wheelhouse(
    bundles: Sequence[Path],
    target: str,
    wheel: Path,
    output: Path,
    *,
    python: str | None = None,
    replaced: Sequence[Path] = (),
    constraints: Path | None = None,
) -> list[Gathered]:
    """Gather the wheels for devices of a target that run these bundles; return them, the largest first.

    Args:
        bundles: folders of bundles; each is compared with the ONNX Runtime that is gathered.
        target: name or file of the device.
        wheel: file of edge-sdk's wheel, as `make wheel` writes it.
        output: folder that does not exist yet.
        python: minor version on the device; the target's own by default.
        replaced: files of wheels in place of the stock ones: a reduced ONNX Runtime, a small OpenCV and numpy.
        constraints: file with pip's constraints; what it says of a package that a file replaces does not count.

    Raises:
        IncompatibleError: a bundle is for another machine, or does not run with that ONNX Runtime.
        EdgeError: a file is no wheel, or not for this target; or one cannot be fetched or written.
    """
    device = load_device(target, python)
    opened = [Bundle.open(path) for path in bundles]
    if os.path.lexists(output):
        raise UsageError(f"{output}: exists already; give a folder that does not")
    for bundle in opened:
        check_built_for(bundle, device)
    _read_wheel(wheel, "edge_sdk", device)
    runtime = False
    for path in replaced:  # before anything is fetched
        name = path.name.split("-")[0]
        found = _read_wheel(path, name if name in _SMALL else "onnxruntime", device)
        if name not in _SMALL:
            runtime = True
            if found.reduced:
                refuse_accelerators(f"target {device.name}", device.providers)
            for bundle in opened:
                bundle.check_device(device.machine, *found)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
            fetched, made = Path(scratch) / "fetched", Path(scratch) / "made"
            fetched.mkdir()
            made.mkdir()
            operators = {name for bundle in opened for name in bundle.manifest.operators}
            extra = [EXTENSIONS_PACKAGE] if any(name.startswith(f"{EXTENSIONS_DOMAIN}:") for name in operators) else []
            _fetch(device, [wheel, *replaced, *extra], constraints, fetched)
            if not runtime:
                found = _read_wheel(_stock_in(fetched, wheel), "onnxruntime", device)
                for bundle in opened:
                    bundle.check_device(device.machine, *found)
            gathered = sorted((_gather(path, made) for path in fetched.iterdir()), key=lambda one: -one.unpacked)
            lines = (f"{one.requirement} --hash=sha256:{one.sha256}\n" for one in gathered)
            (made / REQUIREMENTS).write_text("".join(lines))
            made.rename(output)
    except OSError as cause:
        what = "the disk is full" if is_full(cause) else cause.strerror or str(cause)
        raise OutputError(f"{cause.filename or output}: {what}") from cause
    return gathered


def _stock_in(fetched: Path, wheel: Path) -> Path:
    """Return the ONNX Runtime that pip fetched for edge-sdk's wheel; raise UsageError if it did not want any."""
    for path in fetched.glob("onnxruntime-*.whl"):
        return path
    raise UsageError(f"{wheel}: names no ONNX Runtime among what it needs; expected the wheel of `make wheel`")


class _Runtime(NamedTuple):
    version: str
    reduced: ReducedRuntime | None


def _read_wheel(path: Path, name: str, device: Target) -> _Runtime:
    """Return the version of a wheel and, of a reduced ONNX Runtime, what it says of itself.

    A wheel that cannot be read, of something else, or of another Python or machine is refused.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            record = f"{name}/capi/{REDUCED_FILE}"
            text = None
            if record in archive.namelist():
                with archive.open(record) as file:
                    text = file.read(_LONGEST_RECORD)
        reduced = None if text is None else msgspec.json.decode(text, type=ReducedRuntime)
    except Exception as cause:  # zipfile's, its decompressors' and msgspec's share no root of their own
        raise UsageError(f"{path}: cannot be read as a wheel: {first_line(cause)}") from cause
    parts = path.stem.split("-")
    if path.suffix != ".whl" or len(parts) < 5 or parts[0] != name:
        raise UsageError(f"{path}: expected the wheel of {name}, under the name that it was made with")
    python, abi, platform = parts[-3:]
    minor = int(device.python.split(".")[1])
    if not (
        python.startswith(("py3", f"cp3{minor}"))
        or (abi == "abi3" and python in {f"cp3{older}" for older in range(minor)})
    ):
        raise UsageError(
            f"{path}: for {python}, target {device.name} has Python {device.python}; --python names another one"
        )
    if platform != "any" and not (
        platform.startswith(("manylinux", "linux_")) and platform.endswith(f"_{device.machine}")
    ):
        raise UsageError(f"{path}: for {platform}, target {device.name} is {device.machine}")
    release = PYTHONS.get(device.python)
    wanted = min((int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", platform)), default=0)
    if release and wanted > _GLIBC[release]:
        has = f"a device with Python {device.python} (Debian {release}) has 2.{_GLIBC[release]}"
        raise UsageError(f"{path}: wants the C library 2.{wanted}, {has}; take a wheel for an older one")
    return _Runtime(parts[1], reduced)


def _fetch(device: Target, wanted: Sequence[Path | str], constraints: Path | None, folder: Path) -> None:
    """Have pip fetch wheels, requirements, and what they need."""
    glibc, machine = device.wheel_platform.removeprefix("manylinux_2_").split("_", 1)
    tags = platforms(machine, int(glibc))
    # What was compiled may want a newer C library than the target's wheels: it was proved on that of the target.
    tags += [one.stem.rsplit("-", 1)[1] for one in wanted if isinstance(one, Path) and one.stem.endswith(machine)]
    arguments = [*map(str, wanted)]
    if constraints:
        try:
            lines = constraints.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as cause:
            raise UsageError(f"{constraints}: cannot be read: {first_line(cause)}") from cause
        own = folder.parent / "constraints.txt"
        given = "|".join(one.name.split("-")[0].replace("_", "[-_.]") for one in wanted if isinstance(one, Path))
        of_given = re.compile(rf"\s*(?:{given})(?![\w.-])", re.IGNORECASE)
        own.write_text("".join(line for line in lines if not of_given.match(line)))
        arguments.append(f"--constraint={own}")
    fetch_wheels(arguments, device.python, tags, folder)


def _gather(wheel: Path, folder: Path) -> Gathered:
    """Write a wheel into a folder, without what no device opens."""
    name, version, *rest = wheel.name.split("-")
    made, left_out = folder / wheel.name, 0
    if name in _SMALL and "+" not in version and len(rest) == 3:  # neither small nor with a build tag of its own
        made = folder / "-".join((name, version, _BUILD, *rest))
        files = needed_files(wheel)
        left_out = unpacked_size(wheel) - sum(map(len, files.values()))
        about = f"{name}-{version}.dist-info/WHEEL"
        if about not in files:
            raise UsageError(f"{wheel.name}: no wheel, {about} is missing; pip fetched it")
        files[about] = files[about].rstrip() + f"\nBuild: {_BUILD}\n".encode()
        pack_wheel(made, files)
    else:
        wheel.rename(made)
    return Gathered(made.name, sha256_of(made), unpacked_size(made), left_out)
