"""Building a reduced ONNX Runtime: what bundles need, patches, steps that resume, the wheel; and wheelhouses.

CMake, Ninja, the compiler and the package index are stand-ins here; `make runtime` builds and proves a real one.
"""

import csv
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from unittest.mock import Mock

import msgspec
import onnx
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import OPERATORS_FILE, REDUCED_FILE, ReducedRuntime
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import EdgeError, IncompatibleError, MissingDependencyError, OutputError, UsageError
from edge_sdk_tools.arm_cost.counter import current_recipe
from edge_sdk_tools.arm_cost.installation import Apt
from edge_sdk_tools.packages import cache_folder
from edge_sdk_tools.quantize import convert
from edge_sdk_tools.runtime import build, prove, small, sources
from edge_sdk_tools.runtime.package import pack_wheel
from edge_sdk_tools.runtime.prove import Proof
from edge_sdk_tools.runtime.recipe import HEADERS, MACHINES, PATCHES, apply_patches, write_stubs
from edge_sdk_tools.runtime.wheelhouse import make_wheelhouse
from tests.support import models as tiny
from tests.support.broker import wait_until
from tests.support.bundles import FILES, make_manifest, write_bundle
from tests.support.logs import refusal
from tests.support.program import Cli

PI = "raspberry_pi_5"
OPERATORS = "ai.onnx;11;Conv\nai.onnx;13;Softmax{types}\n"


def ort_of(model: onnx.ModelProto, folder: Path, style: convert.OptimizationStyle | None = None) -> bytes:
    """A model in ORT format, as a build for a Raspberry Pi carries it or in another style."""
    folder.mkdir(parents=True)
    source = folder / "model.onnx"
    onnx.save(model, source)
    if style is None:
        return convert.convert(source, load_target(PI), folder).model.read_bytes()
    convert.convert_onnx_models_to_ort(source, output_dir=folder, optimization_styles=[style])
    return next(folder.glob("*.ort")).read_bytes()


def pi_bundle(folder: Path, model: bytes, **changes: object) -> Path:
    """A bundle for a Raspberry Pi 5 with one model."""
    (folder.parent / "work").mkdir(exist_ok=True)
    path = folder.parent / "work" / "model.ort"
    path.write_bytes(model)
    config = convert.operators_config([path], path.parent)
    operators = convert.operators_of(config)
    files = FILES | {"model.int8.ort": model, OPERATORS_FILE: config.encode()}
    manifest = make_manifest(files)
    variants = (msgspec.structs.replace(manifest.variants[0], operators=operators),)
    settings = {"machine": "aarch64", "target": PI, "variants": variants, "operators": operators, **changes}
    return write_bundle(folder, msgspec.structs.replace(manifest, **settings), files)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two models with different operators and operator sets."""
    folder = tmp_path_factory.mktemp("models")
    return {one.__name__: ort_of(one(), folder / one.__name__) for one in (tiny.classifier, tiny.mixer)}


def test_the_needs_of_bundles_are_joined(tmp_path: Path, made: dict[str, bytes]) -> None:
    paths = [pi_bundle(tmp_path / f"{name}.edge", model) for name, model in made.items()]
    first, second, both = (build.read_needs(given, load_target(PI)) for given in (paths[:1], paths[1:], paths))
    assert first.operators != second.operators
    assert (set(both.operators), both.ort_format >= 5) == ({*first.operators, *second.operators}, True)
    assert [bundle.path for bundle in both.bundles] == paths


def test_an_operator_of_two_versions_is_there_in_both(tmp_path: Path) -> None:
    models = {n: ort_of(tiny.classifier(opset=n), tmp_path / f"model-{n}") for n in (12, 13)}
    paths = [pi_bundle(tmp_path / f"{opset}.edge", model) for opset, model in models.items()]
    for given, has_both in ((paths, True), (paths[:1], False)):
        lines = build.read_needs(given, load_target(PI)).config.splitlines()
        assert ({"11", "13"} <= {line.split(";")[1] for line in lines}) == has_both


def test_bundles_that_a_reduced_runtime_cannot_run_are_refused(tmp_path: Path, made: dict[str, bytes]) -> None:
    device, model, plain = load_target(PI), made["classifier"], make_manifest().variants[0]
    cases: dict[str, dict[str, object]] = {
        r"built for x86_64 .*--target raspberry_pi_5": {"machine": "x86_64", "target": "x86_64"},
        "asks for CUDA.*install onnxruntime-gpu": {"providers": ("CUDAExecutionProvider", "CPUExecutionProvider")},
        "needs labels.txt; a reduced runtime has no custom operators": {"libraries": ("labels.txt",)},
    }
    for number, (expected, changes) in enumerate(cases.items()):
        path = pi_bundle(tmp_path / f"{number}.edge", model, **changes)
        assert re.search(expected, refusal(IncompatibleError, build.read_needs, [path], device))
    for number, (names, expected) in enumerate(
        ((("fp32.onnx",), "use the stock one"), (("int8.ort", "fp32.onnx"), "build it without --with-fp32"))
    ):
        files = FILES | {"model.int8.ort": model, "model.fp32.onnx": b"any"}
        variants = tuple(msgspec.structs.replace(plain, file=f"model.{one}", precision=one[:4]) for one in names)
        manifest = msgspec.structs.replace(make_manifest(files), machine="x86_64", target="x86_64", variants=variants)
        with pytest.raises(IncompatibleError, match=rf"model\.fp32\.onnx is not in ORT format.*: {expected}"):
            build.read_needs([write_bundle(tmp_path / f"onnx{number}.edge", manifest, files)], load_target("x86_64"))
    model = ort_of(tiny.classifier(), tmp_path / "style", convert.OptimizationStyle.Runtime)
    assert "style Runtime" in refusal(
        IncompatibleError, build.read_needs, [pi_bundle(tmp_path / "s.edge", model)], device
    )
    assert "no operators at all" in refusal(UsageError, build.read_needs, [], device)
    said = refusal(IncompatibleError, build.read_needs, [], load_target("x86_64_openvino"))
    assert said.startswith("target x86_64_openvino: asks for OpenVINOExecutionProvider, ")


# A source of ONNX Runtime with no more than the places that are patched or read.

SCHEMA = """\
void addGlobalSchemaFunctions(pybind11::module& m) {
  m.def(
      "get_all_operator_schema", []() { return all_schemas(); });
  m.def(
      "get_all_opkernel_def", []() { return all_kernels(); });
}
void addOpSchemaSubmodule(py::module& m) {
  auto schemadef = m.def_submodule("schemadef");
}
}  // namespace python
"""
SOFTMAX = "".join(
    f"const Mlas{kind}Constants<float16x{size}_t> {kind}ConstantsFp16x{size} = {{\n    one(1),\n}};\n"
    f"T get() {{\n    return {kind}ConstantsFp16x{size};\n}}\n"
    for kind in ("Exp", "Tanh")
    for size in (8, 4)
)
ELEMENTWISE = "onnxruntime/core/providers/cpu/math/element_wise_ops.cc"
MINIMAL = "#if !defined(ORT_MINIMAL_BUILD)"
REDUCE = """\
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--cmake_build_dir") + 1]) / "op_reduction.generated"
folder.mkdir(exist_ok=True)
config = pathlib.Path(sys.argv[-1]).read_text()
names = [line.split(";")[2].split("{")[0] for line in config.splitlines() if "#" not in line]
domains = {"ai.onnx": "Onnx", "com.microsoft": "MS"}
entry = "  BuildKernelCreateInfo<ONNX_OPERATOR_KERNEL_CLASS_NAME(kCpuExecutionProvider, k%sDomain, 1,\\n    %s)>,\\n"
text = "// BuildKernelCreateInfo<ONNX_OPERATOR_KERNEL_CLASS_NAME(kCpuExecutionProvider, kOnnxDomain, 1, Gone)>,\\n"
for wanted in json.loads(pathlib.Path(__file__).with_name("known.json").read_text()):
    domain, name = wanted.split(":")
    text += entry % (domains[domain], name)
(folder / "kernels.cc").write_text(text)
"""


def write_source(root: Path, *, version: str = "1.21.0", ort_format: int = 6, known: tuple[str, ...] = ()) -> Path:
    texts = {
        "VERSION_NUMBER": f"{version}\n", "LICENSE": "MIT\n", "ThirdPartyNotices.txt": "others\n",
        "cmake/CMakeLists.txt": 'string(APPEND ORT_BUILD_INFO ", cmake cxx flags: ${CMAKE_CXX_FLAGS}")\n',
        "cmake/onnxruntime_python.cmake": "set(x)\nfile(GLOB onnxruntime_backend_srcs\n)\n",
        "onnxruntime/__init__.py": "", "onnxruntime/python/onnxruntime_pybind_schema.cc": SCHEMA,
        "onnxruntime/python/onnxruntime_validation.py": "",
        "onnxruntime/core/mlas/lib/softmax_kernel_neon_fp16.cpp": SOFTMAX,
        "onnxruntime/core/framework/allocation_planner.cc": "f() {\n    const auto& ptype1 = arg1.Type();\n}\n",
        ELEMENTWISE: "namespace onnxruntime {\n" + 14 * "y = a.array().template max<Eigen::PropagateNaN>(\nb<T>());\n",
        **{f"onnxruntime/core/mlas/lib/{name}.cpp": f"{MINIMAL}\nx();\n#endif\n" for name in ("platform", "convsym")},
        "onnxruntime/core/flatbuffers/ort_format_version.h": f"constexpr const int kOrtModelVersion = {ort_format};\n",
        "onnxruntime/python/_pybind_state.py.in": "@IMPORT_TORCH@\nfrom .onnxruntime_pybind11_state import *\n",
        "tools/ci_build/reduce_op_kernels.py": REDUCE, "tools/ci_build/known.json": msgspec.json.encode(known).decode(),
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("_ld_preload", "onnxruntime_collect_build_info", "onnxruntime_inference_collection", "__init__"):
        (root / "onnxruntime/python" / f"{name}.py").write_text(f"# {name}\n")
    return root


def test_patches_take_once_and_only_on_the_source_as_published(tmp_path: Path) -> None:
    root = write_source(tmp_path / "source")
    apply_patches(root, "1.21.0")
    assert (root / ELEMENTWISE).read_text().count("y = propagating_max(a.array(), \nb<T>());") == 14
    softmax = (root / "onnxruntime/core/mlas/lib/softmax_kernel_neon_fp16.cpp").read_text()
    assert "static MlasExpConstants<float16x8_t> ExpConstantsFp16x8() { return {\n    one(1),\n}; }" in softmax
    assert softmax.count("ConstantsFp16x4();") == 2
    assert MINIMAL not in (root / "onnxruntime/core/mlas/lib/platform.cpp").read_text()
    schema = (root / "onnxruntime/python/onnxruntime_pybind_schema.cc").read_text()
    assert schema.count("#if !defined(ORT_MINIMAL_BUILD)\n") == schema.count("#endif\n") == 2
    assert schema.index("#endif") < schema.index('"get_all_opkernel_def"')
    assert "return()\nfile(GLOB" in (root / "cmake/onnxruntime_python.cmake").read_text()
    said = "is there 0 times, expected 1 .* not the source of ONNX Runtime 1.21.0"
    assert re.search(said, refusal(UsageError, apply_patches, root, "1.21.0"))
    (root / PATCHES["1.21.0"][0].file).unlink()
    assert "is missing, expected the source" in refusal(UsageError, apply_patches, root, "1.21.0")
    assert "1.99.0: no reduced runtime was ever built of it; known" in refusal(
        UsageError, apply_patches, root, "1.99.0"
    )
    (root / "VERSION_NUMBER").unlink()  # a folder without a version is no source
    assert "no VERSION_NUMBER" in refusal(UsageError, sources.copy_checkout, root, tmp_path / "copy")
    for text in ("", "main\n", "1.21\n"):
        (root / "VERSION_NUMBER").write_text(text)
        assert "VERSION_NUMBER: expected" in refusal(UsageError, sources.copy_checkout, root, tmp_path / "copy")


def test_headers_become_cmake_projects(tmp_path: Path) -> None:
    packages = {header.name: tmp_path / header.name for header in HEADERS}
    folders = write_stubs(tmp_path / "stubs", packages)
    assert "Boost::mp11" in (folders["mp11"] / "CMakeLists.txt").read_text()
    assert folders["safeint"] == packages["safeint"] / "usr/include/safeint"
    assert set(folders) == {*packages, "utf8_range"}


def test_headers_of_another_python_are_refused(tmp_path: Path) -> None:
    given = ("3.13", MACHINES["aarch64"], tmp_path)
    include = tmp_path / "python3.13-arm64/usr/include"
    for folder in ("python3.13", "aarch64-linux-gnu/python3.13"):
        (include / folder).mkdir(parents=True)
    assert "expected the headers of Python 3.13" in refusal(MissingDependencyError, sources.python_headers, *given)
    (include / "python3.13/patchlevel.h").write_text("#define PY_MINOR_VERSION 12\n")
    assert "expected '#define PY_MINOR_VERSION 13'" in refusal(MissingDependencyError, sources.python_headers, *given)
    (include / "python3.13/patchlevel.h").write_text("#define PY_MINOR_VERSION  13\n")
    (include / "aarch64-linux-gnu/python3.13/pyconfig.h").write_text("#define SIZEOF_VOID_P 8\n")
    assert sources.python_headers(*given) == include / "python3.13"


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)


def test_a_server_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "apt-get", "echo 'E: Failed to fetch http://me:secret@host/x' >&2; exit 100")
    apt = Apt("arm64", tmp_path / "state", tmp_path / "archives")
    expected = "apt-get download libx-dev failed (E: Failed to fetch http://host/x)"
    assert expected in refusal(MissingDependencyError, apt.fetch, ["download", "libx-dev"], tmp_path)


def test_missing_programs(tmp_path: Path, made: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    bundle = pi_bundle(tmp_path / "a.edge", made["classifier"])
    command = ["runtime", "build", str(bundle), "--target", PI, "-o", str(tmp_path / "out")]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "apt-get install g++-aarch64-linux-gnu protobuf-compiler" in cli(8, *command).err
    program(tmp_path / "empty", "aarch64-linux-gnu-g++")
    program(tmp_path / "empty", "protoc", "echo libprotoc 3.12.4")
    assert "protoc is 3.12.4, expected 3.21" in cli(8, *command).err
    assert "0.5 GB are free, a runtime's build needs 3" in refusal(OutputError, build.check_room, tmp_path, 500_000_000)


class Stage:
    """Stand-ins for everything that fetches, compiles and emulates."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...]) -> None:
        self.source, self.output = write_source(folder / "source", known=known), folder / "out"
        self.told = list[tuple[str, int, int]]()
        bin_folder = folder / "bin"
        for triplet in ("aarch64-linux-gnu", "x86_64-linux-gnu"):
            program(bin_folder, f"{triplet}-g++", "echo 'g++ 12.2.0'")
            program(bin_folder, f"{triplet}-strip", 'cp "$4" "$3"')
            program(bin_folder, f"{triplet}-size", "printf '.text 2300000 0\\n.tiny 8 0\\n'")
            # Undefined symbols are shown once, as if what defines them was compiled then.
            program(bin_folder, f"{triplet}-nm", f"cat {folder}/symbols 2>/dev/null; rm -f {folder}/symbols")
        program(bin_folder, "protoc", "echo libprotoc 3.21.12")
        monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
        monkeypatch.setattr(sources, "fetch_tools", self._fetch_tools)
        monkeypatch.setattr(sources, "fetch_python_headers", lambda *a: sources.system_folder(*a).mkdir(exist_ok=True))
        monkeypatch.setattr(sources, "python_headers", lambda python, _, place: place / f"include/python{python}")
        proof = Proof(tag="t", unit="CPU ms", needed=(), refusals=(), replays=(), start={}, stock_start={})
        monkeypatch.setattr(build, "prove", Mock(return_value=proof))
        self.ninja = folder / "ninja.sh"
        self.compiles()

    def _fetch_tools(self, downloads: Path) -> None:
        tools = sources.tools_folder(downloads)
        told = "install -D build.ninja modules/core/version_string.inc; cp build.ninja opencv_data_config.hpp"
        cmake = f'echo "$@" > {tools}/cmake.txt; pwd > build.ninja; {told}'
        program(tools / "cmake/data/bin", "cmake", cmake)
        program(tools / "bin", "ninja", f". {self.ninja}")
        (tools / "auditwheel").mkdir(exist_ok=True)
        tag = "print('the platform tag:', sys.argv[-1].split('-')[-1].replace('linux', '\"manylinux_2_35')[:-4] + '\"')"
        (tools / "auditwheel/__main__.py").write_text(f"import sys; {tag}")

    def compiles(self, text: str = "echo '[2/2] two'; echo library > onnxruntime_pybind11_state.so") -> None:
        """Decide what Ninja does."""
        self.ninja.write_text(f"{text}\n")

    def build(self, *bundles: Path, target: str = PI, python: str | None = None) -> build.BuiltRuntime:
        self.told.clear()
        options = {"python": python, "source": self.source, "on_progress": lambda *step: self.told.append(step)}
        return build.build_runtime(bundles, target, self.output, **options)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, bytes]) -> Stage:
    paths = [pi_bundle(tmp_path / f"all-{name}.edge", model) for name, model in made.items()]
    return Stage(tmp_path, monkeypatch, build.read_needs(paths, load_target(PI)).operators)


def test_steps_are_done_again_for_what_has_changed(
    tmp_path: Path, made: dict[str, bytes], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (pi_bundle(tmp_path / f"{name}.edge", model) for name, model in made.items())
    assert stage.build(first).remembered == ()
    assert ("compile", 2, 2) in stage.told
    toolchain = next(cache_folder().rglob("toolchain.cmake")).read_text()
    assert "PROCESSOR aarch64)\nset(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)" in toolchain
    every = ("download", "patch", "configure", "compile", "package", "prove")
    assert stage.build(first).remembered == every
    for cut, kept in (("made/*.whl", 4), ("made/runtime.json", 4), ("source/tree.json", 1)):
        next(cache_folder().rglob(cut)).write_bytes(b"cut short")
        assert "build again" in refusal(EdgeError, stage.build, first)
        assert stage.build(first).remembered[:kept] == every[:kept]
    next(cache_folder().rglob("python3.11-arm64")).rmdir()
    assert stage.build(first).remembered == every[1:]
    assert stage.build(first, second).remembered == every[:3]
    with monkeypatch.context() as patch:  # the virtual environment is another one
        patch.setattr("numpy.get_include", lambda: "/elsewhere")
        assert stage.build(first, second).remembered == every[:2]
    other = stage.build(first, second, python="3.13")
    assert other.remembered == every[1:2]  # the objects of the last Python are those of this one
    assert "/include/python3.13 " in next(cache_folder().rglob("cmake.txt")).read_text()
    for python, expected in (("3.12", "for 3.11 and 3.13 only"), ("", "a minor version such as 3.11 or 3.13")):
        assert expected in refusal(UsageError, stage.build, first, python=python)
    assert stage.build(first, second).remembered == every[1:2]
    here = pi_bundle(tmp_path / "here.edge", made["mixer"], machine="x86_64", target="x86_64")
    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "riscv64")
        assert "this is riscv64" in refusal(UsageError, stage.build, here, target="x86_64")
        patch.setattr("platform.machine", lambda: "x86_64")
        native = stage.build(here, target="x86_64")
    assert native.runtime.wheel.endswith("-cp311-cp311-manylinux_2_35_x86_64.whl")
    for each, name in ((other, "313-aarch64"), (native, "311-x86_64")):
        with zipfile.ZipFile(stage.output / each.runtime.wheel) as archive:
            assert f"onnxruntime/capi/onnxruntime_pybind11_state.cpython-{name}-linux-gnu.so" in archive.namelist()
    assert stage.build(first, second).remembered == every  # each machine has its own objects
    (stage.source / "LICENSE").write_text("changed since\n")
    assert stage.build(first, second).remembered == every[:1]


def test_what_is_written_describes_the_wheel(tmp_path: Path, made: dict[str, bytes], stage: Stage) -> None:
    bundle = Bundle.open(pi_bundle(tmp_path / "a.edge", made["classifier"]))
    runtime = stage.build(bundle.path).runtime
    version, tags = runtime.wheel.removeprefix("onnxruntime-").split("-", 1)
    assert re.fullmatch(
        r"1\.21\.0\.post1\+edge[0-9a-f]{8} cp311-cp311-manylinux_2_35_aarch64\.whl", f"{version} {tags}"
    )
    assert {path.name for path in stage.output.iterdir()} == {"proof.json", "runtime.json", "sbom.json", runtime.wheel}
    assert runtime.sha256 == sources.sha256_of(stage.output / runtime.wheel)
    assert runtime.sizes.sections == {".text": 2_300_000}
    assert runtime.bundles == {bundle.digest: "tiny"}
    with zipfile.ZipFile(stage.output / runtime.wheel) as archive:
        record = msgspec.json.decode(archive.read(f"onnxruntime/capi/{REDUCED_FILE}"), type=ReducedRuntime)
        *rows, own = csv.reader(archive.read(f"onnxruntime-{version}.dist-info/RECORD").decode().splitlines())
        assert {*archive.namelist()} == {own[0], *(name for name, _, _ in rows)}
        for name, digest, _ in rows:
            assert digest == f"sha256={urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode()[:43]}"
        assert "torch" not in archive.read("onnxruntime/capi/_pybind_state.py").decode().lower()
        assert f"'{version}'" in archive.read("onnxruntime/capi/build_and_package_info.py").decode()
    assert record.operators == bundle.manifest.operators
    bundle.check_device("aarch64", version, record)
    bill = msgspec.json.decode((stage.output / "sbom.json").read_bytes())
    assert (bill["bomFormat"], bill["components"][0]["name"]) == ("CycloneDX", "onnxruntime")
    other = Bundle.open(pi_bundle(tmp_path / "b.edge", made["mixer"]))  # pip sees a version of its own
    both = stage.build(bundle.path, other.path).runtime
    assert both.bundles == {one.digest: "tiny" for one in (bundle, other)}
    assert both.wheel != runtime.wheel


def test_a_failed_compilation_shows_why_and_goes_on(tmp_path: Path, made: dict[str, bytes], stage: Stage) -> None:
    bundle = pi_bundle(tmp_path / "a.edge", made["classifier"])
    gone = cache_folder() / "runtime/aarch64/source/onnxruntime"
    for text, error, expected in (
        ("echo FAILED: one.o; echo 'error: no such type'; exit 1", EdgeError, "\n  error: no such type"),
        ("echo 'one.s: No space left on device'; exit 1", OutputError, "the disk is full"),
        (f"echo '{gone}/a.h: No such file'; exit 1", EdgeError, "a.h: this or what it names is missing; build again"),
    ):
        stage.compiles(text)
        with pytest.raises(error, match=expected):
            stage.build(bundle)
        assert not stage.output.joinpath("runtime.json").exists()
    stage.compiles()
    assert stage.build(bundle).remembered == ("download",)
    (gone / "LICENSE").unlink()
    assert stage.build(bundle).remembered == ("download", "package", "prove")
    assert (gone / "LICENSE").is_file()


def test_unneeded_sources_are_compiled_if_called(tmp_path: Path, made: dict[str, bytes], stage: Stage) -> None:
    kernels = stage.source / "onnxruntime/core/providers/cpu"
    for name, text in (
        ("conv", "ONNX_CPU_OPERATOR_KERNEL(Conv, 11, K, Conv);"),
        ("expand", "ONNX_CPU_OPERATOR_KERNEL(Expand, 8, K, E); int Expander::Shape() const { return 1; }"),
        ("loop", "ONNX_CPU_OPERATOR_KERNEL(Loop, 8, K, Loop);"),
        ("utils", "int helper();"),
    ):
        kernels.mkdir(parents=True, exist_ok=True)
        (kernels / f"{name}.cc").write_text(f"{text}\n")

    def left_out() -> set[str]:
        return {Path(line).stem for line in next(cache_folder().rglob("unneeded.txt")).read_text().splitlines()}

    stage.build(pi_bundle(tmp_path / "a.edge", made["classifier"]))
    assert left_out() == {"expand", "loop"}
    (tmp_path / "symbols").write_text("                 U onnxruntime::Expander::Shape() const\n")
    stage.build(pi_bundle(tmp_path / "b.edge", made["mixer"]))
    assert left_out() == {"loop"}


def test_what_the_source_does_not_have_is_refused(tmp_path: Path, made: dict[str, bytes], stage: Stage) -> None:
    bundle = pi_bundle(tmp_path / "a.edge", made["classifier"])
    write_source(stage.source, known=("ai.onnx:Conv",))
    assert "ONNX Runtime 1.21.0 has no ai.onnx:" in refusal(IncompatibleError, stage.build, bundle)
    write_source(stage.source, ort_format=4)
    assert "reads 4 and older" in refusal(IncompatibleError, stage.build, bundle)
    stage.output = stage.source / "out"
    assert "is copied; expected a folder outside" in refusal(UsageError, stage.build, bundle)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_symbols_that_nobody_has_and_paths_of_this_machine_are_found(tmp_path: Path) -> None:
    def wheel_of(code: str) -> Path:
        source, library = tmp_path / "one.c", tmp_path / "one.so"
        source.write_text(code)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        path = tmp_path / "one.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(library, "onnxruntime/capi/one.so")
        return path

    good = wheel_of('#include <stdio.h>\nvoid PyErr_Clear(void); void f(void) { puts("http://x"); PyErr_Clear(); }')
    assert "libc.so.6" in prove.check_library(good, "")
    prove.check_leaks(good, [tmp_path, Path("/")])
    bad = wheel_of(f'void missing(const char *); void f(void) {{ missing("{tmp_path}/source"); }}')
    assert "undefined symbols: missing" in refusal(IncompatibleError, prove.check_library, bad, "")
    assert "contains the path" in refusal(IncompatibleError, prove.check_leaks, bad, [tmp_path])


def test_this_machine_is_a_board_that_sees_the_given_wheels_alone(tmp_path: Path) -> None:
    wheel = made_up_wheel(tmp_path, "onnxruntime-1.0-cp311-cp311-manylinux_2_35_x86_64.whl")
    recipe = msgspec.structs.replace(current_recipe(), python=f"{sys.version_info.major}.{sys.version_info.minor}")
    board = prove.native_board([wheel], tmp_path / "board", recipe)
    file = prove.output_on(board, "x86_64", "it", "import json, onnxruntime as o; print(json.dumps(o.__file__))")
    assert Path(file).is_relative_to(board.site)
    said = refusal(EdgeError, prove.output_on, board, "x86_64", "it", "import msgspec")
    assert said.startswith("it on this x86_64 ended with 1: ModuleNotFoundError")


def made_up_wheel(folder: Path, file: str, needs: tuple[str, ...] = (), **content: bytes) -> Path:
    """A wheel with a package of its own name and `content` by name, whose dots and slashes are `_dot_` and `__`."""
    name, version, *_ = file.split("-")
    about = f"{name}-{version}.dist-info"
    lines = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs))
    metadata = "".join(f"{line}\n" for line in lines)
    tag = "-".join(file.removesuffix(".whl").split("-")[-3:])
    files = {f"{name}/__init__.py": b"", f"{about}/METADATA": metadata.encode()}
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files |= {f"{name}/{key.replace('__', '/').replace('_dot_', '.')}": data for key, data in content.items()}
    folder.mkdir(parents=True, exist_ok=True)
    pack_wheel(folder / file, files)
    return folder / file


class Index:
    """A folder in place of the package index, with the wheels that a device needs; pip looks nowhere else."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        self.folder = folder
        needs = ("numpy>=2", "onnxruntime>=1.20.1,!=1.21.0")
        self.sdk = made_up_wheel(folder.parent, "edge_sdk-0.1.0-py3-none-any.whl", needs)
        opencv = f"opencv_python_headless-{small.OPENCV.version}-cp37-abi3-manylinux_2_28_aarch64.whl"
        made_up_wheel(folder, opencv, cv2_dot_abi3_dot_so=b"stock")
        numpy = {"tests__test_one_dot_py": b"1", "__init___dot_pyi": b"2", "LICENSE": b"3", "_core_dot_so": b"stock"}
        for tag in ("cp311-cp311-manylinux_2_27_aarch64", "cp313-cp313-manylinux_2_27_aarch64"):
            made_up_wheel(folder, f"onnxruntime-1.31.1-{tag}.whl")
            made_up_wheel(folder, f"numpy-2.4.6-{tag}.whl", **numpy)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path / "index", monkeypatch)


def reduced_wheel(folder: Path, bundle: Path, file: str = "") -> Path:
    """The wheel of a runtime that was built for a bundle, without a library."""
    manifest = Bundle.open(bundle).manifest
    record = ReducedRuntime(manifest.operators, (manifest.entry(OPERATORS_FILE).sha256,))
    file = file or "onnxruntime-1.21.0.post1+edge1-cp311-cp311-manylinux_2_35_aarch64.whl"
    return made_up_wheel(folder, file, capi__reduced_dot_json=msgspec.json.encode(record))


def test_a_wheelhouse_needs_no_package_index(tmp_path: Path, made: dict[str, bytes], index: Index, cli: Cli) -> None:
    bundle, house = pi_bundle(tmp_path / "a.edge", made["classifier"]), tmp_path / "house"
    pins = tmp_path / "constraints.txt"
    pins.write_text("\ufeffonnxruntime==1.31.1\n onnxruntime >= 1.22\nnumpy==2.4.6\n")
    command = ["wheelhouse", str(bundle), "--target", PI, "--wheel", str(index.sdk), "-c", str(pins), "-o", str(house)]
    printed = cli(0, *command, "--runtime", reduced_wheel(tmp_path / "runtime", bundle), "--json")
    shown = {one["file"].split("-")[0]: one for one in msgspec.json.decode(printed.out)}
    assert shown["numpy"]["left_out"] == 2
    assert {path.name for path in house.iterdir()} == {"requirements.txt", *(one["file"] for one in shown.values())}
    with zipfile.ZipFile(house / shown["numpy"]["file"]) as archive:
        assert "Build: 1edge" in archive.read("numpy-2.4.6.dist-info/WHEEL").decode()
        kept = {name.split("/", 1)[1] for name in archive.namelist() if name.startswith("numpy/")}
        assert kept == {"__init__.py", "LICENSE", "_core.so"}
    assert "onnxruntime===1.21.0.post1+edge1 --hash=sha256:" in (house / "requirements.txt").read_text()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(house), "--target"]
    install += [str(tmp_path / "site"), "--require-hashes", "-r", str(house / "requirements.txt")]
    install += ["--only-binary=:all:", "--platform", "manylinux_2_35_aarch64", "--platform", "manylinux_2_27_aarch64"]
    subprocess.run([*install, "--python-version", "3.11", "--implementation", "cp"], check=True)
    assert (tmp_path / "site" / "onnxruntime" / "capi" / REDUCED_FILE).is_file()
    cli(2, *command)  # the folder is there


def test_a_stock_runtime_must_be_in_the_range(tmp_path: Path, made: dict[str, bytes], index: Index, cli: Cli) -> None:
    bundle = pi_bundle(tmp_path / "a.edge", made["classifier"])
    command = ["wheelhouse", str(bundle), "--target", PI, "--wheel", str(index.sdk), "-o"]
    cli(0, *command, tmp_path / "first")
    made_up_wheel(index.folder, "onnxruntime-1.99.0-cp311-cp311-manylinux_2_27_aarch64.whl")
    assert "found 1.99.0" in cli(6, *command, tmp_path / "second").err
    assert not (tmp_path / "second").exists()
    (index.folder / "onnxruntime-1.99.0-cp311-cp311-manylinux_2_27_aarch64.whl").unlink()
    operators = ("ai.onnx.contrib:Inverse", *Bundle.open(bundle).manifest.operators)
    contrib = pi_bundle(tmp_path / "b.edge", made["classifier"], operators=operators)
    assert "onnxruntime-extensions" in cli(8, *command, tmp_path / "second", contrib).err
    numpy = next(index.folder.glob("numpy*cp311*"))
    with zipfile.ZipFile(numpy, "a") as archive:
        archive.writestr("numpy/../../x", b"")
    assert "lies outside of it" in cli(2, *command, tmp_path / "second").err
    numpy.unlink()
    assert "numpy" in cli(8, *command, tmp_path / "second").err


def test_wheels_for_other_devices_or_bundles_are_refused(tmp_path: Path, made: dict[str, bytes], index: Index) -> None:
    bundle, other = (pi_bundle(tmp_path / f"{name}.edge", model) for name, model in made.items())
    junk = tmp_path / "onnxruntime-1.0-cp311-cp311-manylinux_2_35_aarch64.whl"
    junk.write_bytes(b"junk")

    def refused(error: type[Exception], runtime: Path) -> str:
        house = tmp_path / "house"
        return refusal(error, make_wheelhouse, [bundle], PI, index.sdk, house, replaced=[runtime])

    assert "here has no " in refused(IncompatibleError, reduced_wheel(tmp_path / "other", other))
    assert "cannot be read as a wheel" in refused(UsageError, junk)
    with zipfile.ZipFile(junk, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"onnxruntime/capi/{REDUCED_FILE}", "{}")
    entry = bytearray(junk.read_bytes())
    junk.write_bytes(entry.replace(b"\xab\xae\x05\0", b"\xff" * 4))  # damaged where it is compressed
    assert "cannot be read as a wheel" in refused(UsageError, junk)
    entry[entry.index(b"PK\x01\x02") + 8] |= 1  # it says that it is encrypted
    junk.write_bytes(entry)
    assert "cannot be read as a wheel" in refused(UsageError, junk)
    assert "expected the wheel of onnxruntime" in refused(UsageError, index.sdk)
    for tag, expected in (
        ("cp312-cp312-manylinux_2_35_aarch64", "for cp312, target raspberry_pi_5 has Python 3.11"),
        ("cp311-cp311-manylinux_2_35_x86_64", "for manylinux_2_35_x86_64, target raspberry_pi_5 is aarch64"),
        ("cp311-cp311-manylinux_2_41_aarch64", r"C library 2.41, a device with Python 3.11 (Debian bookworm) has 2.36"),
        ("cp311-cp311-musllinux_1_2_aarch64", "for musllinux_1_2_aarch64, target raspberry_pi_5 is aarch64"),
    ):
        assert expected in refused(UsageError, reduced_wheel(tmp_path, bundle, f"onnxruntime-1.21.0.post1-{tag}.whl"))
    index.sdk.unlink()  # a bundle of another machine is refused before any wheel is read
    asked = ([bundle], "x86_64", index.sdk, tmp_path / "house")
    assert "target x86_64 is x86_64" in refusal(IncompatibleError, make_wheelhouse, *asked)
    (tmp_path / "house").symlink_to("nowhere")
    assert "exists already" in refused(UsageError, junk)


def test_small_packages_are_built(tmp_path: Path, stage: Stage, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch_archive(_requirement: str, name: str, _sha256: str, folder: Path) -> None:
        tree = tmp_path / name
        program(tree / "vendored-meson/meson", "meson.py", "")
        meson = "import os; open('build.ninja', 'w'); os.mkdir('numpy'); open('numpy/__config__.py', 'w')"
        (tree / "vendored-meson/meson/meson.py").write_text(meson)
        subprocess.run(["tar", "-czf", str(folder / name), "-C", str(tmp_path), name], check=True)

    monkeypatch.setattr(sources, "fetch_archive", fetch_archive)
    monkeypatch.setattr(small._Build, "_prove", lambda _build, _wheels, proof: proof.write_bytes(b"[]"))
    stage.compiles("cat opencv_data_config.hpp 2>/dev/null; echo new > cv2.abi3.so; echo new > _core.so")
    built = small.build_small(PI, tmp_path / "small")
    wheels = [built.output / one.file for one in built.wheels]
    for path, library, tag in zip(wheels, ("cv2.abi3.so", "_core.so"), ("cp37-abi3", "cp311-cp311"), strict=True):
        name, version, found = path.name.split("-", 2)
        assert ("+edge" in version, found) == (True, f"{tag}-manylinux_2_35_aarch64.whl")
        with zipfile.ZipFile(path) as archive:
            assert f"Version: {version}\n" in archive.read(f"{name}-{version}.dist-info/METADATA").decode()
            assert archive.read(f"{name}/{library}") == b"new\n"
            assert not [name for name in archive.namelist() if "test" in name or name.endswith(".pyi")]
    log = cache_folder() / "runtime" / "aarch64" / "opencv_python_headless-compile.log"
    assert log.read_text().strip() == "/aarch64/build-opencv_python_headless"  # what OpenCV says of its build
    assert len(small.build_small(PI, tmp_path / "small").remembered) == 7
    other = small.build_small(PI, tmp_path / "other", python="3.13")
    assert other.remembered == tuple(f"{small.OPENCV.name}-{step}" for step in ("configure", "compile"))
    (tmp_path / "pins").write_text("numpy==2.5.5\nopencv-python-headless==4\n")
    named = {"replaced": [other.output / one.file for one in other.wheels], "constraints": tmp_path / "pins"}
    house = {one.file for one in make_wheelhouse([], PI, index.sdk, tmp_path / "house", python="3.13", **named)}
    assert {"onnxruntime-1.31.1-cp313-cp313-manylinux_2_27_aarch64.whl", *(one.file for one in other.wheels)} < house
    pins = (Path(__file__).parents[3] / "constraints.txt").read_text()
    assert all(f"{one.name.replace('_', '-')}=={one.version}" in pins for one in small.PACKAGES)
    assert "aarch64 only" in refusal(UsageError, small.build_small, "x86_64", tmp_path / "small")


def test_pip_is_ended_when_a_source_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    child = "sleep 60 & echo $! > $TMPDIR/../child; mkdir $TMPDIR/x; printf whole > $TMPDIR/x/a-1.tar.gz; wait"
    program(tmp_path, "python", child)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "sha256_of", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sources.fetch_archive("a==1", "a-1.tar.gz", "0" * 64, tmp_path)
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    wait_until(lambda: not state.exists() or state.read_text().split()[2] == "Z", "pip's own child")
    (tmp_path / "a-1.tar.gz").write_bytes(b"wh")
    sources.fetch_archive("a==1", "a-1.tar.gz", hashlib.sha256(b"whole").hexdigest(), tmp_path)
    assert (tmp_path / "a-1.tar.gz").read_bytes() == b"whole"
    program(tmp_path, "python", "echo 'ERROR: no such thing' >&2; exit 1")
    said = refusal(MissingDependencyError, sources.fetch_archive, "b==1", "b-1.tar.gz", "0" * 64, tmp_path)
    assert "the source of b==1 (no such thing)" in said
    program(tmp_path, "python", "exec sleep 60")
    monkeypatch.setattr(sources, "_PIP_TIMEOUT_S", 0.1)
    assert "(it did not end within 0.1 s)" in refusal(MissingDependencyError, sources.fetch_tools, tmp_path)
