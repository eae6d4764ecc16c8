"""Build an ONNX Runtime that has what given bundles need and nothing else, and prove it.

    download ─▶ patch ─▶ configure ─▶ compile ─▶ package ─▶ prove
    sources.py  recipe.py             (Ninja)    package.py  prove.py

Every step leaves a stamp with a digest of what went into it, and is skipped while that stays the same: an interrupted
build goes on where it was, and another bundle's runtime begins with the objects of the last one. What the programs of a
step say goes into a file beside the stamps, whose last lines an error shows.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import OPERATORS_FILE, PRECISIONS, ReducedRuntime
from edge_sdk.bundle.target import Target, refuse_accelerators
from edge_sdk.core.errors import EdgeError, IncompatibleError, MissingDependencyError, OutputError, UsageError, one_line
from edge_sdk_tools.arm_cost.counter import native_python
from edge_sdk_tools.arm_cost.installation import locked
from edge_sdk_tools.bundle_folder import is_full
from edge_sdk_tools.jobs.runner import OnProgress, silent
from edge_sdk_tools.packages import cache_folder, run_program
from edge_sdk_tools.quantize.convert import operators_config, operators_of, ort_format_of
from edge_sdk_tools.runtime import package, sources
from edge_sdk_tools.runtime.prove import Proof, prove, undefined_symbols
from edge_sdk_tools.runtime.recipe import (
    FLAGS,
    HOOK,
    MACHINES,
    PATCHES,
    PROTOC,
    TOOLCHAIN,
    UNNEEDED,
    defining,
    recipe_digest,
    registered,
    unneeded_sources,
)

_NEEDED_BYTES = 3_000_000_000  # sources, objects and downloads of one build
_LAST_LINES = 12
_FORMAT = re.compile(r"kOrtModelVersion = (\d+);")
_PLAIN_PATH = re.compile(r"[\w/.,+~@-]+")  # paths that CMake, Ninja and a compiler's flags take as they are
_MISSING = ("No such file", "missing and no known rule", "Cannot find source file")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_DEPENDENCY = "FETCHCONTENT_SOURCE_DIR_"
_T = TypeVar("_T")
_DOMAINS = ("ai.onnx", "com.microsoft")


class BuiltRuntime(msgspec.Struct, frozen=True):
    """A built and proved runtime.

    Attributes:
        output: the folder with the wheel and what describes it.
        remembered: steps that an earlier build had finished.
        took: seconds of each other step: by the clock, and of CPU in this process and all that it started.
    """

    output: Path
    runtime: package.Runtime
    proof: Proof
    remembered: tuple[str, ...]
    took: dict[str, tuple[float, float]]


def build_runtime(
    bundles: Sequence[Path],
    target: str,
    output: Path,
    *,
    python: str | None = None,
    source: Path | None = None,
    definitions: Sequence[str] = (),
    jobs: int | None = None,
    on_progress: OnProgress = silent,
) -> BuiltRuntime:
    """Build, package and prove a reduced ONNX Runtime for bundles.

    Args:
        bundles: folders of bundles for that kind of device.
        target: name or file of the device.
        output: folder for the wheel, runtime.json, sbom.json and proof.json.
        python: minor version on the device; the target's own by default.
        source: folder with a source of ONNX Runtime; by default Debian's is fetched.
        definitions: further `NAME=VALUE` for CMake, such as FETCHCONTENT_SOURCE_DIR_ONNX=DIR.
        jobs: compilers at once; one for each CPU by default.
        on_progress: called with a step, how much of it is done, and how much there is.

    Raises:
        IncompatibleError: a bundle needs what the runtime cannot have, or the proof failed.
        EdgeError: what was given cannot be used; something is missing, full or cannot be fetched; or a program failed,
            with the last lines of what it said.
    """
    device = sources.load_device(target, python)
    defined = [_definition(text) for text in definitions]
    needs = read_needs(bundles, device)
    sources.check_python(device.python)
    check_programs({**check_machine(device), "protoc": "protobuf-compiler"})
    if source:
        sources.check_checkout(source, cache_folder() / "runtime", output)
    with open_workspace(output, device.machine, on_progress) as steps:
        return _Build(steps, needs, device, source, defined, jobs).run(output)


def _definition(text: str) -> str:
    """Return a definition for CMake, a dependency's folder as an absolute path."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--cmake {text}: expected NAME=VALUE")
    if not name.startswith(_DEPENDENCY):
        return text
    if not Path(value).is_dir():
        raise UsageError(f"--cmake {text}: no such folder")
    return f"{name}={Path(value).absolute()}"


class Needs(NamedTuple):
    """What bundles need of a runtime, all together.

    Attributes:
        config: lines of `domain;opset;Operator{types},…`.
        operators: `domain:name` of each operator, sorted.
        ort_format: the highest version of the ORT format among the models.
    """

    bundles: tuple[Bundle, ...]
    config: str
    operators: tuple[str, ...]
    ort_format: int


def read_needs(paths: Sequence[Path], device: Target) -> Needs:
    """Open bundles and join what they need; an IncompatibleError says what a reduced runtime cannot load of one."""
    refuse_accelerators(f"target {device.name}", device.providers)
    opened = tuple(Bundle.open(path) for path in paths)
    with tempfile.TemporaryDirectory(prefix="edge-sdk-runtime-") as scratch:
        work, models, formats = Path(scratch), list[Path](), [0]
        for number, bundle in enumerate(opened):
            _check_bundle(bundle, device)
            for variant in bundle.manifest.variants:
                data = bundle.read(variant.file)
                found = ort_format_of(data)
                if found.is_runtime_style:
                    raise IncompatibleError(
                        f"{bundle.path}: {variant.file} was converted in ORT's style Runtime, whose INT8 convolutions "
                        "run in float; `edge-sdk build` converts in the style Fixed"
                    )
                formats.append(found.version)
                models.append(work / f"{number}-{variant.file}")
                models[-1].write_bytes(data)
        config = operators_config(models, work)
    operators = operators_of(config)
    if not operators:
        raise UsageError("the bundles need no operators at all, expected models that compute something")
    return Needs(opened, config, operators, max(formats))


def check_machine(device: Target) -> dict[str, str]:
    """Return the programs that a build needs, with Debian's packages; refuse what cannot be proved here."""
    machine, own, here = MACHINES[device.machine], native_python(device.python), platform.machine()
    if machine.is_emulated:
        return machine.compilers
    if here != device.machine:
        where = f"a runtime for {device.machine} is proved on such a machine, this is {here}"
        raise UsageError(f"target {device.name}: {where}")
    if not own:
        raise MissingDependencyError(f"python{device.python}: none that runs is here, needed for the proof; install it")
    return machine.compilers


def _check_bundle(bundle: Bundle, device: Target) -> None:
    package.check_built_for(bundle, device)
    manifest = bundle.manifest
    refuse_accelerators(str(bundle.path), manifest.providers)
    custom = [*manifest.libraries, *(name for name in manifest.operators if name.split(":")[0] not in _DOMAINS)]
    if custom:
        raise IncompatibleError(f"{bundle.path}: needs {custom[0]}; a reduced runtime has no custom operators")
    for variant in manifest.variants:
        if not variant.file.endswith(".ort"):
            flag = PRECISIONS[variant.precision].flag
            advice = f"build it without {flag}" if flag and variant != manifest.variants[0] else "use the stock one"
            raise IncompatibleError(
                f"{bundle.path}: {variant.file} is not in ORT format, all that a reduced runtime reads; for "
                f"{device.machine} float convolutions stay ONNX: {advice}"
            )


def check_programs(programs: Mapping[str, str]) -> None:
    """Raise MissingDependencyError where a program is missing that a user must install, by the package that has it."""
    missing = [name for program, name in programs.items() if shutil.which(program) is None]
    if missing:
        raise MissingDependencyError(
            f"{' and '.join(missing)}: not installed, needed to compile; sudo apt-get install {' '.join(missing)}"
        )
    if "protoc" not in programs:
        return
    said = run_program(["protoc", "--version"]).stdout.split()
    if not said or not said[-1].startswith(f"{PROTOC}."):
        found = said[-1] if said else "none"
        raise MissingDependencyError(f"protoc is {found}, expected {PROTOC}: Debian's protobuf-compiler of bookworm")


def check_room(folder: Path, free_bytes: int) -> None:
    """Raise OutputError where a first build would fill the disk."""
    if free_bytes < _NEEDED_BYTES and not any(folder.glob("build-*")):
        needs = f"a runtime's build needs {_NEEDED_BYTES / 1e9:.0f}"
        raise OutputError(f"{folder}: {free_bytes / 1e9:.1f} GB are free, {needs}")


@contextmanager
def open_workspace(output: Path, machine: str, on_progress: OnProgress) -> Iterator[Steps]:
    """Make the folder of the results and that of the work, which one build at a time holds; yield the work's steps."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: a file, expected a folder")
    cache = cache_folder() / "runtime"
    if not _PLAIN_PATH.fullmatch(str(cache)):
        raise UsageError(f"{cache}: CMake compiles in no path with spaces or signs; set EDGE_SDK_CACHE to another")
    work = cache / machine
    try:
        work.mkdir(parents=True, exist_ok=True)
        output.mkdir(parents=True, exist_ok=True)
        check_room(work, shutil.disk_usage(work).free)
        with locked(cache, on_progress):
            yield Steps(cache, machine, on_progress)
    except OSError as cause:
        if isinstance(cause, shutil.Error):  # of a copied tree: a list of what could not be copied, and why
            source, _, why = cause.args[0][0]
            raise OutputError(f"{source}: cannot be copied: {why}") from cause
        what = "the disk is full; a build needs 3 GB" if is_full(cause) else cause.strerror or str(cause)
        raise OutputError(f"{cause.filename2 or cause.filename or work}: {what}") from cause


def read_record(path: Path, kind: type[_T]) -> _T:
    """Return what a step wrote of its result; where it is damaged, remove it, so that the step is done again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=lambda other, text: other(text))
    except msgspec.DecodeError as cause:
        path.unlink()
        raise EdgeError(f"{path}: damaged; build again") from cause


def hand_over(record: Path, wheels: Mapping[str, str], output: Path) -> None:
    """Copy what was made beside its place, then put it there: the wheels, with their SHA-256, and the record last."""
    made = record.parent
    for name, sha256 in wheels.items():
        if not (made / name).is_file() or sources.sha256_of(made / name) != sha256:
            record.unlink()  # so that the next build packs it again
            raise EdgeError(f"{made / name}: not as it was built; build again")
    with tempfile.TemporaryDirectory(prefix=".runtime-", dir=output) as scratch:
        files = sorted(made.iterdir(), key=lambda each: (each == record, each.name not in wheels))
        copies = [Path(shutil.copyfile(each, Path(scratch) / each.name)) for each in files]
        for copy in copies:
            copy.replace(output / copy.name)


class Steps:
    """Runs steps that an earlier build has not finished, and keeps their stamps and logs in `work`, by machine."""

    def __init__(self, cache: Path, machine: str, on_progress: OnProgress) -> None:
        self.cache, self.machine, self.on_progress = cache, machine, on_progress
        self.work, self.downloads = cache / machine, cache / "downloads"
        self.tools = sources.tools_folder(self.downloads)
        self.compiler = package.output_of([f"{MACHINES[machine].compiler}g++", "--version"]).splitlines()[0]
        self.remembered: list[str] = []
        self.took: dict[str, tuple[float, float]] = {}

    def do(self, name: str, inputs: object, action: Callable[[], None], *results: Path) -> None:
        """Do a step unless its stamp has the digest of `inputs` and all its `results` are there."""
        digest = hashlib.sha256(repr(inputs).encode()).hexdigest()
        stamp = self.work / f"{name}.stamp"
        if stamp.is_file() and stamp.read_bytes() == digest.encode() and all(map(Path.exists, results)):
            self.remembered.append(name)
            return
        stamp.unlink(missing_ok=True)
        self.on_progress(name, 0, 1)
        began_s, *cpu_s = time.monotonic(), *os.times()[:4]
        try:
            action()
        except subprocess.TimeoutExpired as cause:
            program = Path(cause.cmd[0]).name
            raise EdgeError(f"{name}: {program} did not end within {cause.timeout:g} s; try again") from cause
        except (OSError, MissingDependencyError):
            for downloaded in self.work.glob("*download.stamp"):  # what was fetched may be damaged or gone
                downloaded.unlink()
            raise
        spent_s = sum(os.times()[:4]) - sum(cpu_s)
        self.took[name] = (round(time.monotonic() - began_s, 1), round(spent_s, 1))
        stamp.write_text(digest)
        self.on_progress(name, 1, 1)

    def run(self, name: str, command: Sequence[str | Path], folder: Path, **environment: str) -> None:
        """Run a program of a step; how far Ninja is becomes progress, and an EdgeError has its last lines."""
        log = self.work / f"{name}.log"
        last = deque[str](maxlen=_LAST_LINES)
        with (
            log.open("a", encoding="utf-8", buffering=1) as file,
            subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            try:
                for line in process.stdout or ():
                    file.write(line)
                    last.append(line)
                    if found := _NINJA.match(line):
                        self.on_progress(name, int(found[1]), int(found[2]))
            except BaseException:
                process.terminate()  # Ninja ends its compilers
                raise
        if process.returncode:
            if any("No space left on device" in line for line in last):
                raise OutputError(f"{folder}: the disk is full; a runtime's build needs 3 GB")
            words = [f"  {one_line(line.rstrip())}" for line in last if line.strip()]
            if any(word in line for word in _MISSING for line in last):
                self.forget_source("".join(last))
            raise EdgeError(f"{name}: {Path(command[0]).name} ended with {process.returncode}; see {log}:", *words)

    def forget_source(self, where: str) -> None:
        """Raise EdgeError if `where` names a place in a source, which the next build unpacks again."""
        if f"{self.work}/source" in where:
            for stamp in (*self.work.glob("patch.stamp"), *self.work.glob("*-configure.stamp")):
                stamp.unlink()
            [place] = re.findall(rf"{re.escape(str(self.work))}/source[\w./+-]*", where)[-1:]
            raise EdgeError(
                f"{place}: this or what it names is missing; build again, and the sources are unpacked again"
            )

    def configure(self, name: str, source: Path, objects: Path, settings: Mapping[str, object], *options: str) -> None:
        """Have CMake make files for Ninja and the compiler of the machine, with these definitions."""
        toolchain = objects / "toolchain.cmake"
        compiler = MACHINES[self.machine].compiler
        toolchain.write_text(TOOLCHAIN.format(processor=self.machine, compiler=compiler))
        programs = {"CMAKE_TOOLCHAIN_FILE": toolchain, "CMAKE_MAKE_PROGRAM": self.tools / "bin" / "ninja"}
        command: list[str | Path] = [self.tools / "cmake" / "data" / "bin" / "cmake", "-G", "Ninja", "-S", source]
        command += ["-B", objects, *(f"-D{key}={value}" for key, value in {**settings, **programs}.items()), *options]
        self.run(name, command, objects, PYTHONPATH=str(self.tools))


class _Build:
    """The steps of one build, in the order in which `run` takes them; each one's input is what was done before it."""

    def __init__(
        self,
        steps: Steps,
        needs: Needs,
        device: Target,
        source: Path | None,
        definitions: Sequence[str],
        jobs: int | None,
    ) -> None:
        self._steps, self._needs, self._device = steps, needs, device
        self._source, self._definitions, self._jobs = source, tuple(definitions), jobs
        self._downloads, self._made, self._machine = steps.downloads, steps.work / "made", MACHINES[device.machine]
        self._objects = steps.work / "build-onnxruntime"

    def run(self, output: Path) -> BuiltRuntime:
        """Do what no earlier build has finished, and copy what it made into `output`."""
        do, needs, python = self._steps.do, self._needs, self._device.python
        system = sources.system_folder(python, self._machine, self._downloads)
        do("download", (python, self._source is None), self._download, self._steps.tools, system)
        headers = sources.python_headers(python, self._machine, self._downloads)
        given = sources.state_of(self._source) if self._source else "debian"
        tree_file = self._steps.work / "source" / "tree.json"
        shared = (given, recipe_digest(), self._steps.compiler, self._definitions)
        # CMake lists the files itself: without one that is missing it would link a library that lacks symbols.
        if tree_file.is_file() and not read_record(tree_file, sources.Tree).is_whole():
            tree_file.unlink()
        do("patch", shared, lambda: self._patch(tree_file), tree_file)
        tree = read_record(tree_file, sources.Tree)
        _check_format(tree, needs.ort_format)
        flags = self._compiler_flags(tree)
        settings = (shared, flags, headers, sys.executable, np.get_include(), np.__version__)
        do("configure", settings, lambda: self._configure(tree, flags, headers), self._objects / "build.ninja")
        do("compile", (settings, needs.config), lambda: self._compile(tree), self._objects / package.LIBRARY)
        runtime_file, proof_file = self._made / "runtime.json", self._made / "proof.json"
        digests = tuple(bundle.digest for bundle in needs.bundles)
        inputs = (settings, needs.config, digests, self._device.name, package.local_version(package.SUFFIX, {}))
        do("package", inputs, lambda: self._package(tree, runtime_file), runtime_file)
        runtime = read_record(runtime_file, package.Runtime)
        do("prove", (runtime.sha256, digests), lambda: self._prove(runtime, proof_file), proof_file)
        proof = read_record(proof_file, Proof)
        hand_over(runtime_file, {runtime.wheel: runtime.sha256}, output)
        return BuiltRuntime(output, runtime, proof, tuple(self._steps.remembered), self._steps.took)

    def _download(self) -> None:
        self._downloads.mkdir(exist_ok=True)
        sources.fetch_tools(self._downloads)
        sources.fetch_python_headers(self._device.python, self._machine, self._downloads)
        if self._source is None:
            sources.download_debian(self._downloads)

    def _patch(self, tree_file: Path) -> None:
        folder = tree_file.parent
        for stale in (folder, self._objects):
            shutil.rmtree(stale, ignore_errors=True)
            stale.mkdir()
        given, downloads = self._source, self._downloads
        tree = sources.copy_checkout(given, folder) if given else sources.unpack_debian(downloads, folder)
        tree = msgspec.structs.replace(tree, state=sources.state_of(tree.root))
        tree_file.write_bytes(msgspec.json.encode(tree, enc_hook=str))

    def _compiler_flags(self, tree: sources.Tree) -> str:
        # The wheel must not name folders of this machine; of several that match, the last one counts.
        folders = (self._steps.cache, self._objects, tree.root.parent, tree.root)
        maps = dict(zip(folders, ("runtime", "build", "dependencies", "onnxruntime"), strict=True))
        options = [f"-ffile-prefix-map={folder}=dependencies" for folder in self._given_folders()]
        options += [f"-ffile-prefix-map={folder}={name}" for folder, name in maps.items()]
        return " ".join(options)

    def _given_folders(self) -> list[Path]:
        """Return the folders of dependencies among the definitions."""
        pairs = (definition.split("=", 1) for definition in self._definitions)
        return [Path(value) for name, value in pairs if name.startswith(_DEPENDENCY)]

    def _configure(self, tree: sources.Tree, flags: str, headers: Path) -> None:
        objects = self._objects
        objects.mkdir(exist_ok=True)
        _reduce(self._steps, tree, self._needs, objects)  # CMake wants to see the files
        hook = objects / "hook.cmake"
        hook.write_text(HOOK)
        settings: dict[str, object] = {
            **FLAGS,
            "CMAKE_PROJECT_onnxruntime_INCLUDE": hook,
            **{f"CMAKE_{language}_FLAGS": flags for language in ("C", "CXX", "ASM")},
            "ONNX_CUSTOM_PROTOC_EXECUTABLE": shutil.which("protoc"),
            "Python_EXECUTABLE": sys.executable,
            "Python_INCLUDE_DIR": headers,
            "Python_NumPy_INCLUDE_DIR": np.get_include(),
            **{f"FETCHCONTENT_SOURCE_DIR_{name.upper()}": folder for name, folder in tree.dependencies.items()},
            "FETCHCONTENT_FULLY_DISCONNECTED": "ON" if tree.dependencies else "OFF",
        }
        if ccache := shutil.which("ccache"):
            settings |= {f"CMAKE_{language}_COMPILER_LAUNCHER": ccache for language in ("C", "CXX")}
        options = ("--compile-no-warning-as-error", *(f"-D{definition}" for definition in self._definitions))
        self._steps.configure("configure", tree.root / "cmake", objects, settings, *options)

    def _compile(self, tree: sources.Tree) -> None:
        _reduce(self._steps, tree, self._needs, self._objects)
        jobs = self._jobs or os.cpu_count() or 1
        library = self._objects / package.LIBRARY
        command = [str(self._steps.tools / "bin" / "ninja"), f"-j{jobs}", library.stem]
        is_partial = True
        while is_partial:
            self._steps.run("compile", command, self._objects, PYTHONPATH=str(self._steps.tools))
            is_partial = _restore_sources(self._objects, undefined_symbols(library, self._machine.compiler))

    def _package(self, tree: sources.Tree, runtime_file: Path) -> None:
        made, needs = self._made, self._needs
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        sets = [bundle.manifest.entry(OPERATORS_FILE) for bundle in needs.bundles]
        record = ReducedRuntime(needs.operators, tuple(sorted({entry.sha256 for entry in sets if entry})))
        library = self._objects / package.LIBRARY
        wheel, sizes = package.write_wheel(tree, library, record, self._device, self._steps.tools, made)
        runtime = package.Runtime(
            wheel=wheel.name,
            sha256=sources.sha256_of(wheel),
            onnxruntime=tree.version,
            python=self._device.python,
            target=self._device.name,
            compiler=self._steps.compiler,
            flags=FLAGS,
            operators=tuple(needs.config.splitlines()),
            patches=tuple(f"{patch.file}: {patch.name}" for patch in PATCHES[tree.version]),
            bundles={bundle.digest: bundle.manifest.name for bundle in needs.bundles},
            sizes=sizes,
            components=tree.components,
        )
        (made / "sbom.json").write_bytes(package.bill_of_materials(runtime))
        runtime_file.write_bytes(package.pretty(runtime))

    def _prove(self, runtime: package.Runtime, proof_file: Path) -> None:
        proof = prove(
            self._made / runtime.wheel,
            self._needs.bundles,
            self._needs.operators,
            self._device,
            version=runtime.onnxruntime,
            private=(self._steps.cache, Path.home(), Path(sys.prefix), *self._given_folders()),
            downloads=self._downloads,
            on_progress=self._steps.on_progress,
        )
        proof_file.write_bytes(package.pretty(proof))


def _check_format(tree: sources.Tree, needed: int) -> None:
    """Raise IncompatibleError where the source does not read that version of the ORT format."""
    file = tree.root / "onnxruntime" / "core" / "flatbuffers" / "ort_format_version.h"
    found = _FORMAT.search(file.read_text(encoding="utf-8"))
    if found is None:
        raise UsageError(f"{file}: no kOrtModelVersion there, expected a source of ONNX Runtime")
    if needed > int(found[1]):
        raise IncompatibleError(
            f"the bundles' models have version {needed} of the ORT format, ONNX Runtime {tree.version} reads "
            f"{found[1]} and older"
        )


def _reduce(steps: Steps, tree: sources.Tree, needs: Needs, objects: Path) -> None:
    """Write the files that register kernels with those of the needed operators only, and what is not compiled then."""
    config = objects / "operators.config"
    if config.is_file() and config.read_text() == needs.config:
        return  # what is written is newer than its objects, and would be compiled again
    config.unlink(missing_ok=True)
    script = tree.root / "tools" / "ci_build" / "reduce_op_kernels.py"
    options: list[str | Path] = ["--enable_type_reduction", "--is_extended_minimal_build_or_higher"]
    fresh = objects / "operators.fresh"
    fresh.write_text(needs.config)
    steps.run("reduce", [sys.executable, script, *options, "--cmake_build_dir", objects, fresh], objects)
    found = registered(objects / "op_reduction.generated")
    missing = ", ".join(sorted({*needs.operators} - found))
    if missing:
        raise IncompatibleError(f"ONNX Runtime {tree.version} has no {missing} for the CPU")
    _write_unneeded(objects, unneeded_sources(tree.root, found))
    fresh.rename(config)


def _write_unneeded(objects: Path, files: Iterable[Path]) -> None:
    (objects / UNNEEDED).write_text("".join(f"{path}\n" for path in sorted(files)))


def _restore_sources(objects: Path, undefined: Sequence[str]) -> bool:
    """Have those sources compiled that seem to define symbols, all of them where none does; return whether any were."""
    unneeded = {Path(line) for line in (objects / UNNEEDED).read_text().splitlines()}
    if not undefined or not unneeded:
        return False  # the proof refuses symbols that are still undefined
    _write_unneeded(objects, unneeded - (defining(undefined, unneeded) or unneeded))
    return True
