"""Where the sources and tools of a reduced ONNX Runtime come from, and unpacking them.

Debian's archives come through apt, which verifies them by its own signed lists. A folder with a source of ONNX Runtime
is copied, never changed. CMake, Ninja and auditwheel are fetched with pip into a folder that nothing else sees.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from edge_sdk.bundle.target import Target, load_target
from edge_sdk.core.errors import MissingDependencyError, UsageError
from edge_sdk_tools.arm_cost.counter import PYTHONS
from edge_sdk_tools.arm_cost.installation import Apt, debian_sources, host_architecture, require_apt, unpack
from edge_sdk_tools.packages import last_words, pip, run_program
from edge_sdk_tools.runtime.recipe import (
    DEPENDENCIES,
    HEADERS,
    Dependency,
    Machine,
    apply_patches,
    patched_files,
    write_stubs,
)

_RELEASE = "trixie"
_ONNXRUNTIME = Dependency("onnxruntime", "onnxruntime", "MIT")
_COMPILED = (_ONNXRUNTIME, *DEPENDENCIES)
_TOOLS = ("cmake==3.31.10", "ninja==1.13.0", "auditwheel==6.8.2", "cython==3.2.4")
_PIP_TIMEOUT_S = 600
_NOT_COPIED = (".git", "build", "__pycache__")  # of a checkout: its history, and what was built or run in it


class Component(msgspec.Struct, frozen=True):
    """One source that is in the runtime, as the SBOM names it.

    `licence` is an SPDX identifier, `sha256` the archive's, in hex, `purl` a package URL; a folder has none of both,
    and the version of a dependency that CMake fetches or is told of is not known.
    """

    name: str
    version: str
    licence: str
    sha256: str = ""
    purl: str = ""


class Tree(msgspec.Struct, frozen=True):
    """Patched sources, ready for CMake: the root of ONNX Runtime's, and its version, such as "1.21.0".

    `dependencies` has folders by FetchContent's names; it is empty where CMake fetches them itself. `state` is that of
    the root as it was patched, empty in an older cache.
    """

    root: Path
    version: str
    dependencies: dict[str, Path]
    components: tuple[Component, ...]
    state: str = ""

    def is_whole(self) -> bool:
        """Tell whether every file of the root is as it was patched."""
        return not self.state or state_of(self.root) == self.state


def download_debian(folder: Path) -> None:
    """Fetch what is missing of the sources that Debian's trixie has of ONNX Runtime and its dependencies."""
    require_apt()
    sources = debian_sources(_RELEASE, with_sources=True)
    apt = Apt(host_architecture(), folder / "apt", folder / "archives", sources)
    for each in _COMPILED:
        apt.fetch(["source", "--download-only", "--tar-only", each.package], folder)
    apt.fetch(["download", *(header.package for header in HEADERS)], folder)


def unpack_debian(downloads: Path, folder: Path) -> Tree:
    """Unpack and patch what was downloaded in an empty folder."""
    for each in _COMPILED:
        unpack_source(_archive(downloads, each), folder / each.name)
    packages = {}
    for header in HEADERS:
        packages[header.name] = folder / "headers" / header.name
        packages[header.name].mkdir(parents=True)
        unpack(_archive(downloads, header), packages[header.name])
    root = folder / _ONNXRUNTIME.name
    version = version_of(root)
    apply_patches(root, version)
    dependencies = {each.name: folder / each.name for each in DEPENDENCIES}
    dependencies |= write_stubs(folder / "stubs", packages)
    components = tuple(_component(_archive(downloads, each), each) for each in (*_COMPILED, *HEADERS))
    return Tree(root, version, dependencies, components)


def check_checkout(source: Path, work: Path, output: Path) -> None:
    """Refuse a folder that is no source of ONNX Runtime as published, or has to do with those that a build writes."""
    patched_files(source, version_of(source))
    if source.resolve().is_relative_to(work.resolve()):
        raise UsageError(f"{source}: inside of {work}, where builds replace it; copy it elsewhere first")
    for written in (work, output):
        within = Path(os.path.relpath(written.resolve(), source.resolve())).parts
        if os.pardir not in within and not {*_NOT_COPIED} & {*within}:
            raise UsageError(f"{written}: inside of {source}, which is copied; expected a folder outside of it")


def copy_checkout(source: Path, folder: Path) -> Tree:
    """Copy and patch a source of ONNX Runtime in an empty folder; its dependencies are CMake's matter."""
    version = version_of(source)
    root = folder / _ONNXRUNTIME.name
    # Links become files: a patch would change through them what they lead to.
    shutil.copytree(source, root, ignore=shutil.ignore_patterns(*_NOT_COPIED), ignore_dangling_symlinks=True)
    apply_patches(root, version)
    own = Component(_ONNXRUNTIME.name, version, _ONNXRUNTIME.licence)
    others = (Component(each.name, "", each.licence) for each in (*DEPENDENCIES, *HEADERS))
    return Tree(root, version, {}, (own, *others))


def version_of(source: Path) -> str:
    """Return the version that a source of ONNX Runtime gives itself; raise UsageError if it is none."""
    file = source / "VERSION_NUMBER"
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as cause:
        raise UsageError(f"{source}: no VERSION_NUMBER to be read, expected a source of ONNX Runtime") from cause
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise UsageError(f"{file}: expected a version such as 1.21.0, got {text[:40]!r}")
    return text


def load_device(target: str, python: str | None) -> Target:
    """Return a target by its name or file, with this minor version of Python in place of its own where one is given."""
    device = load_target(target)
    if python is not None and not re.fullmatch(r"3\.1\d", python):
        raise UsageError(f"--python {python[:20]!r}: expected a minor version such as {' or '.join(PYTHONS)}")
    return msgspec.structs.replace(device, python=python or device.python)


def check_python(python: str) -> None:
    """Refuse a version of Python that no Debian has, for its headers and for the proof."""
    if python not in PYTHONS:
        known = " and ".join(PYTHONS)
        raise UsageError(f"Python {python}: what a device installs can be compiled and proved for {known} only")


def fetch_python_headers(python: str, machine: Machine, folder: Path) -> None:
    """Fetch the headers of a machine's Python and unpack them into a folder of their own in `folder`."""
    name = machine.architecture
    system = system_folder(python, machine, folder)
    if not system.is_dir():
        require_apt()
        state, archives = (folder / f"{kind}-{system.name}" for kind in ("apt", "archives"))
        package = f"libpython{python}-dev"
        Apt(name, state, archives, debian_sources(PYTHONS[python])).fetch(["download", package], folder)
        partial = folder / f".{system.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        unpack(max(folder.glob(f"{package}_*_{name}.deb"), key=os.path.getmtime), partial)
        partial.rename(system)


def system_folder(python: str, machine: Machine, folder: Path) -> Path:
    """Return where in `folder` the headers of a machine's Python are unpacked."""
    return folder / f"python{python}-{machine.architecture}"


def python_headers(python: str, machine: Machine, folder: Path) -> Path:
    """Return the folder with Python.h of what was fetched into `folder`; its parent has folders of machines.

    Raise MissingDependencyError where these are not the headers of this Python on that machine.
    """
    system, name = system_folder(python, machine, folder), f"python{python}"
    again, include = f"the headers of Python {python}; remove {system}, and they come again", system / "usr/include"
    for path, wanted in (
        (include / name / "patchlevel.h", f"#define PY_MINOR_VERSION {python.split('.')[1]}"),
        (include / machine.triplet / name / "pyconfig.h", "#define SIZEOF_VOID_P 8"),
    ):
        try:
            text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        except OSError as cause:
            raise MissingDependencyError(f"{path} is missing, expected {again}") from cause
        if wanted not in text:
            raise MissingDependencyError(f"{path}: expected {wanted!r}, {again}")
    return include / name


def state_of(source: Path) -> str:
    """Return a digest of the names, sizes and times of all files of a source, which a change to one of them changes."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and not {*_NOT_COPIED} & {*name.parts}:
            state = path.stat()
            digest.update(f"{name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def tools_folder(downloads: Path) -> Path:
    """Return the folder of the tools, whose name has their versions."""
    return downloads / "-".join(_TOOLS).replace("==", "-")


def fetch_tools(folder: Path) -> None:
    """Install CMake, Ninja and auditwheel of known versions into a folder of their own."""
    ready = tools_folder(folder)
    if ready.is_dir():
        return
    partial = folder / ".tools"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        pip("install", "--target", str(partial), *_TOOLS, timeout_s=_PIP_TIMEOUT_S)
    except RuntimeError as cause:
        what = ", ".join(_TOOLS)
        raise MissingDependencyError(f"pip cannot fetch {what} ({cause}); is the package index reachable?") from cause
    partial.rename(ready)


def fetch_archive(requirement: str, name: str, sha256: str, folder: Path) -> None:
    """Fetch the source archive of a package into `folder`, unless it is there.

    pip would prepare it too, which runs its code with all its build tools and takes minutes: pip is ended once the
    archive is whole. `requirement` is `name==version`, `name` that of the archive's file, `sha256` in hex.
    """
    if (folder / name).is_file() and sha256_of(folder / name) == sha256:
        return
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=folder) as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary=:all:", "--require-hashes", "-r", str(wanted), "-d", scratch]
        said, until = Path(scratch) / "said", time.monotonic() + _PIP_TIMEOUT_S
        with (
            said.open("w") as file,
            subprocess.Popen(
                command, env={**os.environ, "TMPDIR": scratch}, stderr=file, start_new_session=True
            ) as process,
        ):
            try:
                while True:
                    is_over = process.poll() is not None or time.monotonic() > until
                    found = next((path for path in Path(scratch).rglob(name) if sha256_of(path) == sha256), None)
                    if found is not None or is_over:
                        break
                    time.sleep(0.5)
                if found is not None:
                    shutil.copyfile(found, folder / f".{name}")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it started, which would go on for minutes
                process.wait()
        if found is None:
            raise MissingDependencyError(
                f"pip cannot fetch the source of {requirement} ({last_words(said.read_text(errors='replace'))}); "
                "is the package index reachable?"
            )
    (folder / f".{name}").rename(folder / name)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _archive(folder: Path, dependency: Dependency) -> Path:
    """Return the newest archive of a package; the server may have had an older one earlier."""
    found = [*folder.glob(f"{dependency.package}_*.orig.tar.*"), *folder.glob(f"{dependency.package}_*.deb")]
    if not found:
        raise MissingDependencyError(f"{folder}: nothing of {dependency.package} was fetched")
    return max(found, key=os.path.getmtime)


def unpack_source(archive: Path, folder: Path) -> None:
    """Unpack a source archive, whose one outermost folder becomes `folder`."""
    partial = folder.with_name(f".{folder.name}")
    partial.mkdir()
    done = run_program(["tar", "-x", "--no-same-owner", "-f", str(archive), "-C", str(partial)])
    if done.returncode:
        raise OSError(f"{archive.name}: cannot be unpacked: {last_words(done.stderr)}")
    [content] = partial.iterdir()
    content.rename(folder)
    partial.rmdir()


def _component(archive: Path, dependency: Dependency) -> Component:
    """Describe an archive, whose name is `PACKAGE_VERSION.orig.tar.gz` or `PACKAGE_VERSION_ARCHITECTURE.deb`."""
    version = archive.name.removeprefix(f"{dependency.package}_").split(".orig.tar")[0].split("_")[0]
    purl = f"pkg:deb/debian/{dependency.package}@{version.replace('+', '%2B')}?distro={_RELEASE}"
    return Component(dependency.name, version.split("+dfsg")[0], dependency.licence, sha256_of(archive), purl)
