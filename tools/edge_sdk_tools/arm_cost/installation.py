"""Fetch the parts of a counter and put them together, without installing anything on this machine.

There is either a whole counter or none: what an interrupted attempt fetched is kept for the next one. A system is a
Debian for another architecture in a folder: apt gets a state folder of its own for it, so that root is not needed.
Wheels for its Python are unpacked, which is all that an import needs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from edge_sdk.core.errors import MissingDependencyError, OutputError
from edge_sdk_tools.arm_cost.counter import (
    PYTHON,
    PYTHONS,
    Counter,
    Recipe,
    counters_folder,
    current_recipe,
    find_counter,
)
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent
from edge_sdk_tools.packages import last_words, pip, run_program

_PROGRAMS = ("apt-get", "dpkg-deb", "tar")
_TIMEOUT_S = 300

# The hooks of this machine's own apt are cleared, because they would clean its caches after this update.
_CONFIGURATION = """\
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}";
Dir::Cache::Archives "{archives}";
"""


def require_apt() -> None:
    """Check that apt-get, dpkg-deb and tar are installed."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise MissingDependencyError(f"{program} is not installed, expected a Debian or Ubuntu machine")


class Apt:
    """apt-get with a state folder of its own, for one architecture in Debian's spelling (`arm64`).

    Packages in `archives` are not fetched again; `sources` are lines of a sources.list, empty for this machine's own.
    """

    def __init__(self, architecture: str, state: Path, archives: Path, sources: str = "") -> None:
        for folder in (state / "lists" / "partial", archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        configuration = _CONFIGURATION.format(architecture=architecture, state=state, archives=archives)
        if sources:
            (state / "sources.list").write_text(sources)
            configuration += f'Dir::Etc::SourceList "{state}/sources.list";\nDir::Etc::SourceParts "-";\n'
        (state / "apt.conf").write_text(configuration)
        self._command = ["apt-get", "-c", str(state / "apt.conf"), "-qq"]
        self._archives, self._state = archives, state

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Fetch packages (`name` or `name=version`) and all they depend on."""
        # Errors are ignored: a third party's source may lack this architecture. The installation below decides.
        self._run("update")
        # Remove packages of an earlier attempt that the server has replaced since.
        self._run("autoclean")
        done = self._run("install", "--yes", "--download-only", *packages)
        if done.returncode:
            what = f"apt-get cannot fetch {', '.join(packages)} ({last_words(done.stderr)})"
            raise MissingDependencyError(f"{what}; is the package server reachable?")
        return sorted(self._archives.glob("*.deb"))

    def fetch(self, arguments: Sequence[str], folder: Path) -> None:
        """Fetch packages or source archives into `folder`: `download NAME…` or `source …`, nothing they depend on."""
        done = self._run(*arguments, cwd=folder) if self._has_lists() else None
        if done is None or done.returncode:  # there are no lists, or the server has replaced what they name
            done = self._run("-o", "APT::Update::Error-Mode=any", "update")
            if self._has_lists():
                done = self._run(*arguments, cwd=folder)
        if done.returncode:
            what = f"apt-get {' '.join(arguments)} failed ({last_words(done.stderr)})"
            raise MissingDependencyError(f"{what}; is the package server reachable?")

    def _run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run_program([*self._command, *words], timeout_s=_TIMEOUT_S, cwd=cwd)

    def _has_lists(self) -> bool:
        return any((self._state / "lists").glob("*Packages*"))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack one package into `folder`; follow links such as `lib` to `usr/lib`, which `dpkg-deb -x` would replace."""
    tar = ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(folder)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as reading:
        done = subprocess.run(tar, stdin=reading.stdout, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if reading.returncode or done.returncode:
        words = done.stderr.strip().splitlines() or [f"dpkg-deb ended with {reading.returncode}"]
        raise OSError(f"{archive.name}: {words[0]}")


_MERGED = ("bin", "lib", "sbin")


def make_system(folder: Path, archives: Iterable[Path]) -> None:
    """Unpack packages into `folder`, which is made."""
    for name in _MERGED:
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for archive in archives:
        unpack(archive, folder)


_PIP_TIMEOUT_S = 1200
_NEWEST_GLIBC, _OLDEST_GLIBC = 36, 17  # Debian 12 has 2.36; manylinux2014 is 2.17


def download_wheels(requirements: Sequence[str], python: str, folder: Path, machine: str = "aarch64") -> list[Path]:
    """Fetch wheels (`name==version`) for a machine into `folder`, by Python, unless they are there."""
    folder /= python
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [f"{requirement.replace('==', '-')}-*_{machine}.whl" for requirement in requirements]
    if not all(any(map(zipfile.is_zipfile, folder.glob(pattern))) for pattern in wanted):
        fetch_wheels([*requirements, "--no-deps"], python, platforms(machine), folder)
    return [next(folder.glob(pattern)) for pattern in wanted]


def platforms(machine: str, newest_glibc: int = _NEWEST_GLIBC) -> list[str]:
    """Return pip's tags of the platforms whose wheels a machine with that glibc 2.N installs."""
    every = [f"manylinux_2_{minor}_{machine}" for minor in range(newest_glibc, _OLDEST_GLIBC - 1, -1)]
    return [*every, f"manylinux2014_{machine}"]


def fetch_wheels(arguments: Sequence[str], python: str, platforms: Sequence[str], folder: Path) -> None:
    """Have pip download wheels for another machine into `folder`: requirements, and options such as `--no-deps`.

    A MissingDependencyError says that one cannot be had, an OSError that the disk is full.
    """
    machine = ["--implementation", "cp", "--python-version", python, *(f"--platform={name}" for name in platforms)]
    try:
        pip("download", *machine, "--dest", str(folder), *arguments, timeout_s=_PIP_TIMEOUT_S)
    except RuntimeError as cause:
        what = ", ".join(part for part in arguments if not part.startswith("-"))
        raise MissingDependencyError(
            f"pip cannot fetch {what} for Python {python}, {platforms[0]} ({cause}); is the package index reachable?"
        ) from cause


def unpack_wheels(wheels: Iterable[Path], folder: Path) -> None:
    """Lay wheels into one folder, for PYTHONPATH."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)  # zipfile keeps members inside the folder


_DOWNLOADS = "downloads"
_COMPILERS = ("cc", "gcc", "clang")
_BOARD = ("libstdc++6", "libgomp1")  # beside Python: what ONNX Runtime is linked with
# The C library is this machine's own: the plugin is linked with it, and a newer one runs what an older one did.
_FROM_HERE = ("libc6_", "libgcc-s1_", "gcc-12-base_", "libcrypt1_")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_DEBIAN = "http://deb.debian.org/debian"


def set_up(folder: Path | None = None, on_progress: OnProgress = silent, python: str = PYTHON) -> Counter:
    """Make sure that there is a counter for this machine and its ONNX Runtime, with a Python of PYTHONS.

    A MissingDependencyError says that a program is missing or something cannot be fetched, an OutputError that the
    folder cannot be written, any other EdgeError that what was fetched does not work on this machine.
    """
    found = find_counter(folder, python)
    if found is not None:
        return found
    require_apt()
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise MissingDependencyError("there is no C compiler (cc); install Debian's gcc and libc6-dev")
    place = counters_folder(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked(place, on_progress):
            # Another process may have made it while this one waited.
            return find_counter(folder, python) or _install(place, current_recipe(python), compiler, on_progress)
    except OSError as cause:
        if cause.errno == errno.ENOSPC:
            shutil.rmtree(place / _DOWNLOADS, ignore_errors=True)
        raise OutputError(f"{place}: the counter cannot be set up: {cause.strerror or cause}") from cause
    except subprocess.TimeoutExpired as cause:
        raise MissingDependencyError(f"{cause.cmd[0]} did not end within {cause.timeout:g} s; try again") from cause


def _install(place: Path, recipe: Recipe, compiler: str, on_progress: OnProgress) -> Counter:
    for abandoned in place.glob(".making-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=place) as scratch:
        fresh = Counter(Path(scratch) / "counter", recipe)
        fresh.folder.mkdir()
        steps: dict[str, Callable[[], object]] = {
            "emulator": lambda: _add_emulator(fresh, Path(scratch), place / _DOWNLOADS),
            "arm64 Python": lambda: _add_system(fresh, Path(scratch), place / _DOWNLOADS),
            "arm64 wheels": lambda: _add_wheels(fresh, place / _DOWNLOADS),
            "plugin": lambda: _add_plugin(fresh, compiler),
            "trial": fresh.try_out,
        }
        for name, step in steps.items():
            with one_step(on_progress, name):
                step()
        fresh.record.write_bytes(msgspec.json.format(msgspec.json.encode(recipe), indent=2) + b"\n")
        kept = Counter(place / recipe.key, recipe)
        shutil.rmtree(kept.folder, ignore_errors=True)  # without its record it is no counter
        fresh.folder.rename(kept.folder)
    shutil.rmtree(place / _DOWNLOADS, ignore_errors=True)
    return kept


def _add_emulator(counter: Counter, scratch: Path, downloads: Path) -> None:
    """Add the one emulator that is needed out of the package's thirty, and the libraries of its dependencies."""
    architecture = host_architecture()
    apt = Apt(architecture, scratch / "apt-host", downloads / architecture, debian_sources(counter.recipe.release))
    archives = apt.download([f"qemu-user={counter.recipe.qemu}"])
    unpacked = scratch / "emulator"
    make_system(unpacked, (path for path in archives if not path.name.startswith(_FROM_HERE)))
    (unpacked / "usr" / "bin" / "qemu-aarch64").rename(counter.emulator)
    counter.libraries.mkdir()
    for library in (unpacked / "usr" / "lib").glob("*-linux-gnu*/*.so*"):
        library.rename(counter.libraries / library.name)


def _add_system(counter: Counter, scratch: Path, downloads: Path) -> None:
    recipe = counter.recipe
    sources = debian_sources(PYTHONS[recipe.python])
    apt = Apt("arm64", scratch / "apt-arm64", downloads / f"board-{recipe.python}", sources)
    make_system(counter.system, apt.download([f"python{recipe.python}", *_BOARD]))
    # A root for qemu's -L: links to what the system holds, and on top files that name the core.
    for core in recipe.cores:
        root = counter.root(core.model)
        root.mkdir()
        for entry in counter.system.iterdir():
            (root / entry.name).symlink_to(os.path.relpath(entry, root))
        for name, text in core.files().items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _add_wheels(counter: Counter, downloads: Path) -> None:
    recipe = counter.recipe
    wanted = [f"onnxruntime=={recipe.onnxruntime}", f"numpy=={recipe.numpy}"]
    unpack_wheels(download_wheels(wanted, recipe.python, downloads / "wheels"), counter.site)


def _add_plugin(counter: Counter, compiler: str) -> None:
    source = counter.folder / "icount.c"
    source.write_text(counter.recipe.plugin, encoding="utf-8")
    command = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(counter.plugin), str(source)]
    done = run_program(command, timeout_s=60)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no message"])[0]
        what = f"{compiler} cannot compile the plugin ({words})"
        raise MissingDependencyError(f"{what}; install Debian's build-essential")


def host_architecture() -> str:
    """Return this machine's architecture in Debian's spelling."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def debian_sources(release: str, *, with_sources: bool = False) -> str:
    """Return lines of a sources.list for a release of Debian, from the mirror that this machine's apt uses.

    They are empty where this machine's own have that release; with source packages they are never.
    """
    try:
        here = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        here = ""
    if here == release and not with_sources:
        return ""
    if not _KEYRING.is_file():
        raise MissingDependencyError(f"{_KEYRING} is missing; install the package debian-archive-keyring")
    kinds = ("deb", "deb-src") if with_sources else ("deb",)
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian"]
    mirror = next(iter(run_program(command, timeout_s=_TIMEOUT_S).stdout.split()), _DEBIAN)
    return "".join(f"{kind} [signed-by={_KEYRING}] {mirror} {release} main\n" for kind in kinds)


@contextlib.contextmanager
def locked(folder: Path, on_progress: OnProgress = silent) -> Iterator[None]:
    """Let one process at a time into the folder, because apt and pip share the downloads; one that waits says so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(f"wait for another build in {folder}", 0, 1)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
