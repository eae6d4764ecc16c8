"""Put the compiled library and ONNX Runtime's Python files together as a wheel, and describe it.

The wheel is named `onnxruntime`, so that it takes the place of the stock one. Its version is the source's with
`.post1`, unlike the stock one's, and a digest of its files, by which pip tells two of them apart. It holds a record of
its operators (`edge_sdk.bundle.manifest.ReducedRuntime`), by which a device refuses a bundle that it cannot run. The
same files give the same bytes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import sys
import zipfile
from pathlib import Path

import msgspec

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import REDUCED_FILE, ReducedRuntime
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError, IncompatibleError, UsageError, first_line
from edge_sdk_tools.packages import last_words, run_program
from edge_sdk_tools.runtime.recipe import MACHINES
from edge_sdk_tools.runtime.sources import Component, Tree

SUFFIX = ".post1"
"""What the wheel's version has behind the source's, before its digest."""
LIBRARY = "onnxruntime_pybind11_state.so"
"""The library's name in the folder where it was compiled."""
_CAPI = ("collect_build_info", "inference_collection", "validation")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can hold
_UNUSED = re.compile(r"^@\w+@$", re.MULTILINE)  # places for an import of PyTorch and for flags of dlopen
_SECTION = re.compile(r"^(\.\S+)\s+(\d+)\s+\d+$", re.MULTILINE)
_LARGEST = 1_000_000_000  # bytes that a wheel unpacks to, all of which are in memory at once
_SMALLEST_SECTION = 1000  # bytes; smaller ones are not listed
_UNOPENED = re.compile(
    r"/tests/|\.pyi$|\.(?:h|hpp|a|lib|pxd)$"
    r"|^numpy/_core/(?:_simd|_\w+_tests)\.|^cv2/data/.*\.xml$"
)
_TAG = re.compile(r"platform tag:\s*\"(\w+)\"")


class Sizes(msgspec.Struct, frozen=True):
    """Sizes in bytes: the wheel, what it unpacks to, the library, and the library's larger sections by name."""

    wheel: int
    unpacked: int
    library: int
    sections: dict[str, int]


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A reduced runtime, as runtime.json describes it.

    Attributes:
        wheel: file name; `sha256` is in hex.
        onnxruntime: version of the source.
        python: minor version.
        compiler: what it says of itself, one line.
        flags: CMake's definitions that decide what is built.
        operators: lines of `domain;opset;Operator{types},…`.
        patches: what was changed in the source.
        bundles: name of each bundle that it was built for, by the SHA-256 of its manifest.
    """

    wheel: str
    sha256: str
    onnxruntime: str
    python: str
    target: str
    compiler: str
    flags: dict[str, str]
    operators: tuple[str, ...]
    patches: tuple[str, ...]
    bundles: dict[str, str]
    sizes: Sizes
    components: tuple[Component, ...]
    edge_sdk: str = edge_sdk.__version__


def write_wheel(
    tree: Tree, library: Path, record: ReducedRuntime, device: Target, tools: Path, folder: Path
) -> tuple[Path, Sizes]:
    """Write the wheel into an empty folder, with the platform tag that its library's symbols allow.

    `library` is as it was linked, and a stripped copy goes into the wheel; `record` is what a device reads of it.
    `tools` is a folder with auditwheel.
    """
    machine = MACHINES[device.machine]
    small = folder / LIBRARY
    output_of([f"{machine.compiler}strip", "--strip-unneeded", "-o", str(small), str(library)])
    number = device.python.replace(".", "")
    files = _files(tree, small.read_bytes(), record, f"{number}-{machine.triplet}")
    sections = _sections(output_of([f"{machine.compiler}size", "-A", str(small)]))
    version, tag = local_version(f"{tree.version}{SUFFIX}", files), f"cp{number}-cp{number}"
    files["onnxruntime/capi/build_and_package_info.py"] = (
        f"package_name = 'onnxruntime'\n__version__ = '{version}'\n".encode()
    )
    loose = _write(folder, version, f"{tag}-linux_{device.machine}", files, device.python)
    wheel = _write(folder, version, f"{tag}-{platform_of(loose, tools)}", files, device.python)
    loose.unlink()
    sizes = Sizes(wheel.stat().st_size, sum(map(len, files.values())), small.stat().st_size, sections)
    small.unlink()
    return wheel, sizes


def local_version(version: str, files: dict[str, bytes]) -> str:
    """Return a version with a digest of these files by path as its local part, which pip compares."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(files[name]).digest())
    return f"{version}+edge{digest.hexdigest()[:8]}"


def unpacked_size(wheel: Path) -> int:
    """Return the bytes that a wheel unpacks to."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def platform_of(wheel: Path, tools: Path) -> str:
    """Return the oldest platform tag that auditwheel, in `tools`, allows a wheel; raise EdgeError if there is none."""
    found = _TAG.search(output_of([sys.executable, "-m", "auditwheel", "show", str(wheel)], PYTHONPATH=str(tools)))
    if found is None:
        raise EdgeError(f"{wheel.name}: auditwheel finds no platform on which it runs")
    return found[1]


def needed_files(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by path, without those that no device opens: tests, stubs, headers."""
    if unpacked_size(wheel) > _LARGEST:
        raise UsageError(f"{wheel.name}: unpacks to {unpacked_size(wheel):,} bytes, expected {_LARGEST:,} at most")
    with zipfile.ZipFile(wheel) as archive:
        every = [entry for entry in archive.infolist() if not entry.is_dir()]
        if outside := [name for name in (e.filename for e in every) if name.startswith("/") or ".." in name.split("/")]:
            raise UsageError(f"{wheel.name}: no wheel, {outside[0]} lies outside of it; pip fetched it")
        try:
            return {entry.filename: archive.read(entry) for entry in every if not _UNOPENED.search(entry.filename)}
        except Exception as cause:  # zipfile's and its decompressors' share no root of their own
            raise UsageError(f"{wheel.name}: cannot be read as a wheel: {first_line(cause)}") from cause


def output_of(command: list[str], **environment: str) -> str:
    """Run a program and return its standard output; raise EdgeError with its last words where it fails."""
    done = run_program(command, env={**os.environ, **environment})
    if done.returncode:
        raise EdgeError(f"{Path(command[0]).name} failed: {last_words(done.stderr)}")
    return done.stdout


def check_built_for(bundle: Bundle, device: Target) -> None:
    """Raise IncompatibleError for a bundle that is for another kind of machine."""
    promise = bundle.manifest
    if promise.machine != device.machine:
        raise IncompatibleError(
            f"{bundle.path}: built for {promise.machine} (target {promise.target}), target {device.name} is "
            f"{device.machine}; build it with --target {device.name} first"
        )


def pretty(value: object) -> bytes:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _sections(text: str) -> dict[str, int]:
    sizes = {name: int(size) for name, size in _SECTION.findall(text)}
    large = {name: size for name, size in sizes.items() if size >= _SMALLEST_SECTION}
    return dict(sorted(large.items(), key=lambda item: -item[1]))


def _files(tree: Tree, library: bytes, record: ReducedRuntime, extension: str) -> dict[str, bytes]:
    """Return the content of the package by path."""
    source = tree.root / "onnxruntime"
    python = source / "python"
    state = _UNUSED.sub("", (python / "_pybind_state.py.in").read_text(encoding="utf-8"))
    names = ("_ld_preload.py", *(f"onnxruntime_{name}.py" for name in _CAPI))
    capi = {name: (python / name).read_bytes() for name in names}
    capi |= {
        "__init__.py": (python / "__init__.py").read_bytes(),
        "_pybind_state.py": state.encode(),
        f"onnxruntime_pybind11_state.cpython-{extension}.so": library,
        REDUCED_FILE: pretty(record),
    }
    top = {
        "__init__.py": (source / "__init__.py").read_bytes(),
        "LICENSE": (tree.root / "LICENSE").read_bytes(),
        "ThirdPartyNotices.txt": (tree.root / "ThirdPartyNotices.txt").read_bytes(),
    }
    files = {f"onnxruntime/{name}": data for name, data in top.items()}
    return files | {f"onnxruntime/capi/{name}": data for name, data in capi.items()}


def _write(folder: Path, version: str, tag: str, files: dict[str, bytes], python: str) -> Path:
    information = f"onnxruntime-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\nLicense: MIT License\n"
        "Summary: ONNX Runtime with the operators of some models only, built by edge-sdk\n"
        f"Requires-Python: =={python}.*\nRequires-Dist: numpy>=1.21.6\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: edge-sdk\nRoot-Is-Purelib: false\nTag: {tag}\n"
    path = folder / f"onnxruntime-{version}-{tag}.whl"
    described = {f"{information}/METADATA": metadata.encode(), f"{information}/WHEEL": wheel.encode()}
    pack_wheel(path, files | described)
    return path


def pack_wheel(path: Path, files: dict[str, bytes]) -> None:
    """Write a wheel with these files by path, and a RECORD of them; the same files give the same bytes."""
    [information] = {name.split("/")[0] for name in files if name.split("/")[0].endswith(".dist-info")}
    record = f"{information}/RECORD"
    kept = {name: data for name, data in files.items() if name != record}
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, data in kept.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((record, "", ""))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in {**kept, record: rows.getvalue().encode()}.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)


def bill_of_materials(runtime: Runtime) -> bytes:
    """Return the SBOM of a runtime as CycloneDX 1.5 in JSON."""

    def component(name: str, version: str, sha256: str, purl: str, licence: str = "") -> dict[str, object]:
        found: dict[str, object] = {"type": "library", "name": name, "version": version, "purl": purl}
        found["licenses"] = licence and [{"license": {"id": licence}}]
        found["hashes"] = sha256 and [{"alg": "SHA-256", "content": sha256}]
        return {key: value for key, value in found.items() if value}

    version = runtime.wheel.split("-")[1]
    subject = component("onnxruntime", version, runtime.sha256, f"pkg:pypi/onnxruntime@{version}")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject, "tools": [{"name": "edge-sdk", "version": runtime.edge_sdk}]},
        "components": [component(c.name, c.version, c.sha256, c.purl, c.licence) for c in runtime.components],
    }
    return pretty(document)
