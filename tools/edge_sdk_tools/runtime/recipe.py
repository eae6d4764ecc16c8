"""How ONNX Runtime is made small: the machines, our patches by version, CMake's settings, and its dependencies.

A patch is a regular expression, its replacement, and how often it must be found: a source that is not as published, or
that was patched before, is refused. What no patch is needed for is set from outside: the optimisation of the kernels
by a file that CMake includes (`HOOK`), the dependencies by folders (`DEPENDENCIES`, `HEADERS`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from edge_sdk.core.errors import UsageError
from edge_sdk_tools.arm_cost.counter import CPUS


class Machine(NamedTuple):
    """What depends on the kind of machine that a runtime is for.

    Attributes:
        triplet: Debian's name of it in programs, folders of headers and extension modules of Python.
        architecture: its name in Debian's packages.
        package: Debian's package of the compiler.
        cores: on which the proof runs; `is_emulated` tells whether they are emulated, or this machine itself.
    """

    triplet: str
    architecture: str
    package: str
    cores: tuple[str, ...]
    is_emulated: bool

    @property
    def compiler(self) -> str:
        """Prefix of the compiler's programs and of binutils'."""
        return f"{self.triplet}-"

    @property
    def compilers(self) -> dict[str, str]:
        """The compiler, and Debian's package that has it."""
        return {f"{self.compiler}g++": self.package}


MACHINES = {
    "aarch64": Machine("aarch64-linux-gnu", "arm64", "g++-aarch64-linux-gnu", CPUS, is_emulated=True),
    "x86_64": Machine("x86_64-linux-gnu", "amd64", "g++", ("x86_64",), is_emulated=False),
}
"""Machines by their name in targets, in CMake and in the platform tags of wheels."""


class Patch(NamedTuple):
    """One change of a file of the source tree, and what it does in a few words.

    `pattern` and `replacement` are as `re.sub` takes them, with `^` at every line and `.` for line ends too. The
    pattern must be found so many `times`.
    """

    name: str
    file: str
    pattern: str
    replacement: str
    times: int


_SCHEMA = "onnxruntime/python/onnxruntime_pybind_schema.cc"
_SOFTMAX = "onnxruntime/core/mlas/lib/softmax_kernel_neon_fp16.cpp"
_ELEMENTWISE = "onnxruntime/core/providers/cpu/math/element_wise_ops.cc"
_PROPAGATING = """\
template <typename A, typename B>
auto propagating_{name}(const Eigen::ArrayBase<A>& a, const Eigen::ArrayBase<B>& b) {{
  using T = typename A::Scalar;
  return a.binaryExpr(b.derived(), Eigen::internal::scalar_{name}_op<T, T, Eigen::PropagateNaN>());
}}
template <typename A>
auto propagating_{name}(const Eigen::ArrayBase<A>& a, const typename A::Scalar& b) {{
  return propagating_{name}(a, A::PlainObject::Constant(a.rows(), a.cols(), b));
}}
"""

PATCHES: dict[str, tuple[Patch, ...]] = {
    "1.21.0": (
        Patch(
            "the Python package is put together by edge-sdk, not by copies of files that a distribution leaves out",
            "cmake/onnxruntime_python.cmake",
            r"^file\(GLOB onnxruntime_backend_srcs",
            r"return()\n\g<0>",
            1,
        ),
        Patch(
            "the library does not name folders of the machine that built it",
            "cmake/CMakeLists.txt",
            r"^string\(APPEND ORT_BUILD_INFO \", cmake cxx flags: \$\{CMAKE_CXX_FLAGS\}\"\)\n",
            "",
            1,
        ),
        Patch(
            "a minimal build has no schemas that Python could list",
            _SCHEMA,
            r'^  m\.def\(\n      "get_all_operator_schema".*?(?=^  m\.def\(\n      "get_all_opkernel_def")',
            "#if !defined(ORT_MINIMAL_BUILD)\n\\g<0>#endif\n",
            1,
        ),
        Patch(
            "nor the classes that describe a schema",
            _SCHEMA,
            r"^void addOpSchemaSubmodule\(py::module& m\) \{\n(.*?)^\}\n(?=\}  // namespace python)",
            "void addOpSchemaSubmodule([[maybe_unused]] py::module& m) {\n"
            "#if !defined(ORT_MINIMAL_BUILD)\n\\1#endif\n}\n",
            1,
        ),
        # Initialised when the library is loaded, they run FP16 instructions, which a Cortex-A72 does not have.
        Patch(
            "FP16 constants of the softmax are made when they are used",
            _SOFTMAX,
            r"^const (Mlas\w+Constants<float16x[48]_t>) (\w+) = \{(.*?)\n\};",
            r"static \1 \2() { return {\3\n}; }",
            4,
        ),
        Patch(
            "FP16 constants of the softmax are called", _SOFTMAX, r"return (\w+ConstantsFp16x[48]);", r"return \1();", 4
        ),
        Patch(
            "the plan of memory compares shapes first, and the sizes of types only where those are equal",
            "onnxruntime/core/framework/allocation_planner.cc",
            r"^    const auto& ptype1 = arg1\.Type\(\);$",
            r"    if (!SameShape(shape1, shape2)) return false;\n\g<0>",
            1,
        ),
        # Without these two, no model with an Add, Mul or the like of floats gets a runtime from Debian's sources.
        Patch(
            "minima and maxima that propagate NaN are functions, because Eigen 3.4.0 has no such methods",
            _ELEMENTWISE,
            r"^namespace onnxruntime \{\n",
            "\\g<0>" + "".join(_PROPAGATING.format(name=name) for name in ("min", "max")),
            1,
        ),
        Patch(
            "minima and maxima call those functions",
            _ELEMENTWISE,
            r"([\w.<>()]+)\.template (min|max)<Eigen::PropagateNaN>\((.*?)\);$",
            r"propagating_\2(\1, \3);",
            14,
        ),
        # Kernels for AVX2 alone add U8S8 products in 16 bits, which saturate: full-range weights give wrong sums.
        *(
            Patch(
                "a minimal build uses the kernels for AVX-512 and VNNI too",
                f"onnxruntime/core/mlas/lib/{name}.cpp",
                r"^#if !defined\(ORT_MINIMAL_BUILD\)$",
                "#if 1",
                1,
            )
            for name in ("platform", "convsym")
        ),
    )
}
"""Patches by the version of ONNX Runtime; a version that is not here was never built and is refused."""


def patched_files(tree: Path, version: str) -> dict[Path, str]:
    """Return the text of each changed file; refuse a source of an unknown version, or that is not as published."""
    if version not in PATCHES:
        known = ", ".join(PATCHES)
        raise UsageError(f"ONNX Runtime {version}: no reduced runtime was ever built of it; known: {known}")
    changed = dict[Path, str]()
    for patch in PATCHES[version]:
        path = tree / patch.file
        try:
            before = changed.get(path) or path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as cause:
            raise UsageError(f"{path} is missing, expected the source of ONNX Runtime {version}") from cause
        after, found = re.subn(patch.pattern, patch.replacement, before, flags=re.MULTILINE | re.DOTALL)
        if found != patch.times:
            raise UsageError(
                f"{path}: its place to patch is there {found} times, expected {patch.times} ({patch.name}); "
                f"this is not the source of ONNX Runtime {version} as it was published"
            )
        changed[path] = after
    return changed


def apply_patches(tree: Path, version: str) -> None:
    """Patch a source tree in place."""
    for path, text in patched_files(tree, version).items():
        path.write_text(text, encoding="utf-8")


class Dependency(NamedTuple):
    """A library that ONNX Runtime is built with: its name as CMake's FetchContent calls it, in lower case.

    `package` is Debian's source package, or the binary package of a library that consists of headers alone. `licence`
    is an SPDX identifier. `folder` has such headers inside the unpacked package, and `target` is what brings them in
    CMake; it is empty where CMake takes the folder itself.
    """

    name: str
    package: str
    licence: str
    folder: str = ""
    target: str = ""


DEPENDENCIES = (
    Dependency("abseil_cpp", "abseil", "Apache-2.0"),
    Dependency("re2", "re2", "BSD-3-Clause"),
    Dependency("protobuf", "protobuf", "BSD-3-Clause"),
    Dependency("flatbuffers", "flatbuffers", "Apache-2.0"),
    Dependency("onnx", "onnx", "Apache-2.0"),
)
HEADERS = (
    Dependency("date", "libhowardhinnant-date-dev", "MIT", "usr/include", "date::date"),
    Dependency("mp11", "libboost1.83-dev", "BSL-1.0", "usr/include", "Boost::mp11"),
    Dependency("nlohmann_json", "nlohmann-json3-dev", "MIT", "usr/include", "nlohmann_json::nlohmann_json"),
    Dependency("gsl", "libmsgsl-dev", "MIT", "usr/include", "Microsoft.GSL::GSL"),
    Dependency("eigen", "libeigen3-dev", "MPL-2.0", "usr/include/eigen3", "Eigen3::Eigen"),
    Dependency("pybind11_project", "pybind11-dev", "BSD-3-Clause", "usr/include", "pybind11::module"),
    Dependency("safeint", "libsafeint-dev", "MIT", "usr/include/safeint"),
)
_UNUSED = "utf8_range"  # protobuf has it from this version's successor on; CMake wants a folder of that name

PROTOC = "3.21"
"""Version of the compiler for protobuf's files that goes with the library in DEPENDENCIES."""


def write_stubs(folder: Path, packages: dict[str, Path]) -> dict[str, Path]:
    """Write CMake projects for libraries of headers, `packages` by name; return the folder by FetchContent's name."""
    found = {}
    for header in HEADERS:
        name = header.name
        found[name] = packages[name] / header.folder
        if header.target:
            project = (
                f"add_library(edge_sdk_{name} INTERFACE)\n"
                f'target_include_directories(edge_sdk_{name} INTERFACE "{found[name]}")\n'
                f"add_library({header.target} ALIAS edge_sdk_{name})\n"
            )
            found[name] = _write_project(folder / name, project)
    return {**found, _UNUSED: _write_project(folder / _UNUSED, f"add_library({_UNUSED} INTERFACE)\n")}


def _write_project(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(text)
    return folder


FLAGS = {
    "CMAKE_BUILD_TYPE": "MinSizeRel",
    "onnxruntime_MINIMAL_BUILD": "ON",
    "onnxruntime_EXTENDED_MINIMAL_BUILD": "ON",
    "onnxruntime_REDUCED_OPS_BUILD": "ON",
    "onnxruntime_DISABLE_ML_OPS": "ON",
    "onnxruntime_DISABLE_EXCEPTIONS": "OFF",
    "onnxruntime_DISABLE_RTTI": "OFF",
    # Without it, dot products and i8mm are found through the kernel's hwcap, and what an x86 has through cpuid.
    "onnxruntime_ENABLE_CPUINFO": "OFF",
    "onnxruntime_ENABLE_PYTHON": "ON",
    "onnxruntime_ENABLE_DLPACK": "OFF",
    "onnxruntime_BUILD_UNIT_TESTS": "OFF",
    "onnxruntime_BUILD_SHARED_LIB": "OFF",
    "onnxruntime_DEV_MODE": "OFF",
    "FLATBUFFERS_BUILD_FLATC": "OFF",
    "protobuf_WITH_ZLIB": "OFF",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}
"""Definitions for CMake that decide what is built."""

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {compiler}gcc)
set(CMAKE_CXX_COMPILER {compiler}g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
"""

UNNEEDED = "unneeded.txt"
"""File in the folder of objects with the source files that are not compiled, one a line."""

# Everything is compiled for size but the kernels: DequantizeLinear alone would be several times slower, the tables,
# QuickGelu and Slice of a YOLOX-nano took 8 % more instructions, and the sums of weights a sixth of a load on x86_64.
# Reading headers is half of the compiler's time, hence those that are compiled once. ccache does not keep what is
# compiled with them; told to, it returned an object whose macro had changed. The module alone sees Python's headers, so
# that all other objects do for every Python. CMake's own Python::NumPy is there for the Python that runs it only.
HOOK = """\
add_library(Python::NumPy INTERFACE IMPORTED)
target_include_directories(Python::NumPy INTERFACE
  "${Python_INCLUDE_DIR}" "${Python_INCLUDE_DIR}/.." "${Python_NumPy_INCLUDE_DIR}")
function(edge_sdk_settings)
  target_compile_options(onnxruntime_mlas PRIVATE -O3)
  set_source_files_properties("${ONNXRUNTIME_ROOT}/core/providers/cpu/quantization/quantize_linear.cc"
    "${ONNXRUNTIME_ROOT}/core/providers/cpu/quantization/qlinearconv.cc"
    "${ONNXRUNTIME_ROOT}/contrib_ops/cpu/quantization/qlinear_lookup_table.cc"
    "${ONNXRUNTIME_ROOT}/contrib_ops/cpu/activations.cc"
    "${ONNXRUNTIME_ROOT}/core/providers/cpu/tensor/slice.cc"
    TARGET_DIRECTORY onnxruntime_providers PROPERTIES COMPILE_OPTIONS -O3)
  set(listed "${CMAKE_BINARY_DIR}/unneeded.txt")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${listed}")
  file(STRINGS "${listed}" unneeded)
  get_target_property(sources onnxruntime_providers SOURCES)
  list(REMOVE_ITEM sources ${unneeded})
  set_target_properties(onnxruntime_providers PROPERTIES SOURCES "${sources}")
  foreach(library framework optimizer providers session)
    target_precompile_headers(onnxruntime_${library} PRIVATE "${ONNXRUNTIME_ROOT}/core/providers/common.h")
  endforeach()
endfunction()
cmake_language(DEFER CALL edge_sdk_settings)
"""

_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_REGISTERED = re.compile(r"BuildKernelCreateInfo<[^>]*?\bk(Onnx|MS)Domain\b[^>]*?,\s*(\w+)\)>")
_DOMAINS = {"Onnx": "ai.onnx", "MS": "com.microsoft"}
_REGISTERS = re.compile(r"\b(?:ONNX|REG|REGISTER)_\w*\(")
_KERNELS = ("core/providers/cpu", "contrib_ops/cpu")
_GENERATED = ("cpu_execution_provider.cc", "cpu_contrib_kernels.cc")


def registered(folder: Path) -> set[str]:
    """Return `domain:name` of the operators that the files of registration in `folder` still have."""
    texts = (_COMMENT.sub("", path.read_text(encoding="utf-8")) for path in folder.rglob("*.cc"))
    return {f"{_DOMAINS[domain]}:{name}" for text in texts for domain, name in _REGISTERED.findall(text)}


def unneeded_sources(root: Path, operators: Iterable[str]) -> set[Path]:
    """Return the files of kernels in a source that name none of the operators, and register others.

    They are two thirds of the time to compile. Where another file calls one of them, the linked library lacks a symbol;
    `defining` finds the file then.
    """
    named = re.compile(rf"\b(?:{'|'.join(name.split(':')[1] for name in operators)})\b")
    found = set()
    for path in (path for part in _KERNELS for path in (root / "onnxruntime" / part).rglob("*.cc")):
        text = path.read_text(encoding="utf-8")
        if path.name not in _GENERATED and _REGISTERS.search(text) and not named.search(text):
            found.add(path)
    return found


def defining(symbols: Iterable[str], files: Iterable[Path]) -> set[Path]:
    """Return those of the files that seem to define one of the symbols, C++ names as `nm -C` writes them."""
    names = {_unqualified(symbol) for symbol in symbols}
    named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names))
    return {path for path in files if named.search(path.read_text(encoding="utf-8"))}


def _unqualified(symbol: str) -> str:
    """Return `A::b` of `onnxruntime::A::b(int) const`, and `A` of `vtable for onnxruntime::A`."""
    plain = re.sub(r"<[^<>]*>", "", symbol.split("(")[0].split(" for ")[-1])
    parts = plain.removeprefix("onnxruntime::").split("::")
    return "::".join(parts[-2:] if parts[-2:-1] and parts[-2][:1].isupper() else parts[-1:])


def recipe_digest() -> str:
    """Return a digest of everything here that decides what is built."""
    parts = (PATCHES, DEPENDENCIES, HEADERS, FLAGS, TOOLCHAIN, HOOK)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
