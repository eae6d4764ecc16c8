"""Counts and estimates of a core that is not here: classes of instructions, setting up a counter, the command."""

import errno
import json
import os
import re
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import BoardEstimate, RuntimeRange
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import (
    EdgeError,
    LatencyGateError,
    MissingDependencyError,
    ModelError,
    OutputError,
    UsageError,
)
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk_tools.arm_cost import installation
from edge_sdk_tools.arm_cost.counter import (
    CORES,
    CPUS,
    Counter,
    Counts,
    board_outputs,
    classes,
    classify,
    count_classes,
    current_recipe,
    find_counter,
)
from edge_sdk_tools.arm_cost.estimate import CYCLES, board_counter, check_latency, estimate, kernels_ms
from edge_sdk_tools.arm_cost.installation import Apt, set_up
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.variants import Request
from edge_sdk_tools.packages import cache_folder
from edge_sdk_tools.prove import parity
from edge_sdk_tools.quantize.convert import float_file
from edge_sdk_tools.search import variant
from tests.support import models as tiny
from tests.support.bundles import make_manifest, write_bundle
from tests.support.logs import refusal
from tests.support.program import Cli
from tests.support.projects import write_project
from tests.support.reports import from_json

ENCODINGS = {  # as an assembler writes them
    "integer": (0x91000400, 0x8B010000, 0x9B017C00),  # add, mul
    "branch": (0x94000001, 0x54000041, 0xB4000040, 0x37000040, 0xD65F03C0),  # bl, b.ne, cbz, tbnz, ret
    "other": (0xD503201F, 0xD4000001, 0xF9800000, 0x04000000),  # nop, svc, prfm, SVE
    "load": (0xF9400000, 0xA9400400, 0xF8200000),  # ldr x0, ldp x0, ldadd x0
    "store": (0xF9000000, 0xA9000400),  # str x0, stp x0
    "vector_load": (0x3DC00000, 0xAD400400, 0x4C407000, 0x4D40C800),  # ldr q0, ldp q0, ld1, ld1r
    "vector_store": (0x3D800000, 0x4C007000),  # str q0, st1
    "scalar_float": (0x1E212800,),  # fadd s0
    "fmla": (0x4E21CC00, 0x4F811000, 0x0E410C00),  # fmla v0.4s, v0.4s by element, v0.4h
    "vector_float": (0x4E21D400, 0x4F819000, 0x4E21D800),  # fadd v0.4s, fmul by element, scvtf
    "sdot": (0x4E819400, 0x4F81E000),  # sdot, sdot by element
    "udot": (0x6E819400, 0x6F81E000),  # udot, udot by element
    "mixed_dot": (0x4E819C00, 0x4E81A400),  # usdot, smmla
    "smlal": (0x0E618000, 0x2E21C000, 0x0F412000, 0x4EA19C00),  # smlal, umull, smlal by element, mul v0.4s
    "vector_integer": (0x4EA18400, 0x4EA11C20, 0x0F08A400),  # add v0.4s, mov v0.16b, sshll
    "permute": (0x4F000400, 0x4E040C00, 0x4E813800, 0x6E014000),  # movi, dup, zip1, ext
}


def test_an_instruction_belongs_to_its_class() -> None:
    for expected, words in ENCODINGS.items():
        assert {classes()[found] for found in classify(np.array(words, np.uint32))} == {expected}


def block(runs: int, *words: int) -> bytes:
    return struct.pack(f"=QI{len(words)}I", runs, len(words), *words)


def counted(cpu: str = "cortex-a76", **found: int) -> Counts:
    by_class = {name: found.get(name, 0) for name in classes()}
    return Counts("model.ort", cpu, "1.31.1", sum(by_class.values()), by_class)


def test_a_record_is_summed_by_class() -> None:
    record = block(3, 0x4E819400, 0xF9400000, 0x54000041) + block(2**33, 0x4E819400)
    by_class = count_classes(record)
    assert list(by_class) == list(classes())
    assert {k: v for k, v in by_class.items() if v} == {"sdot": 3 + 2**33, "load": 3, "branch": 3}


def test_a_record_that_is_cut_short_is_refused_and_an_empty_one_counts_nothing() -> None:
    assert set(count_classes(b"").values()) == {0}
    for length in (3, 4, 12, 14, 16):
        assert "cut short" in refusal(ValueError, count_classes, block(3, 0x4E819400, 0xF9400000)[:length])


def test_floats_take_other_cycles_than_integers_and_an_estimate_says_that_it_is_one() -> None:
    assert set(CPUS) == {core.model for core in CORES} == set(CYCLES)
    for number, cpu, cycles in ((5, "cortex-a76", 0.57 / 2.4), (4, "cortex-a72", 1.33 / 1.8)):
        estimated = estimate(counted(cpu, fmla=10**6), load_target(f"raspberry_pi_{number}"))
        assert (estimated.core, estimated.latency_ms) == (cpu, pytest.approx(cycles))
        assert "estimated, not measured" in estimated.method


def test_without_a_clock_or_a_known_core_there_is_no_estimate() -> None:
    assert estimate(counted(), msgspec.structs.replace(load_target("raspberry_pi_5"), clock_mhz=0)) is None
    jetson = msgspec.structs.replace(load_target("jetson_orin_nano"), clock_mhz=1500)
    assert jetson.cpu not in CYCLES
    assert estimate(counted(jetson.cpu), jetson) is None
    for board in ("raspberry_pi_4", "arm64"):
        assert estimate(counted(), load_target(board)) is None


STEPS = ("_add_emulator", "_add_system", "_add_wheels", "_add_plugin", "try_out")

# A stand-in for the emulator: writes six million sdot, as the plugin would, and ends as it is told to.
EMULATOR = """\
#!/bin/sh
for argument; do case "$argument" in *counts=*) out=${{argument#*counts=}};; esac; done
printf '\\200\\215\\133\\000\\000\\000\\000\\000\\001\\000\\000\\000\\000\\224\\201\\116' > "$out"
{last}
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)


def steps_that_do(
    monkeypatch: pytest.MonkeyPatch, did: list[str], failing: str = "", error: Exception | None = None
) -> None:
    """Replace the steps by ones that only leave a file; one of them may fail after that."""

    def step(name: str) -> Callable[..., None]:
        def act(counter: Counter, *_: object) -> None:
            did.append(name)
            (counter.folder / name).touch()
            if name == failing and error is not None:
                raise error

        return act

    for name in STEPS:
        monkeypatch.setattr(Counter if name == "try_out" else installation, name, step(name))


def kept_counter(folder: Path, last: str) -> Counter:
    """A counter whose emulator is a stand-in."""
    recipe = current_recipe()
    counter = Counter(folder / "arm-cost" / recipe.key, recipe)
    counter.folder.mkdir(parents=True, exist_ok=True)
    counter.emulator.write_text(EMULATOR.format(last=last))
    counter.emulator.chmod(stat.S_IRWXU)
    counter.record.touch()
    return counter


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    told: list[tuple[str, int, int]] = []
    steps_that_do(monkeypatch, did)
    assert find_counter(tmp_path) is None
    counter = set_up(tmp_path, lambda *step: told.append(step))
    assert (told[0], told[-1]) == (("emulator", 0, 1), ("trial", 1, 1))
    assert [path.name for path in (tmp_path / "arm-cost").iterdir()] == [counter.recipe.key]
    assert set_up(tmp_path).folder == find_counter(tmp_path).folder == counter.folder
    assert did == list(STEPS)
    other = set_up(tmp_path, python="3.13")
    assert find_counter(tmp_path, "3.13").board_python("cortex-a72")[-1] == f"{other.system}/usr/bin/python3.13"


@pytest.mark.parametrize("failing", STEPS)
def test_failing_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    for error, expected, text in (
        (MissingDependencyError("no network"), MissingDependencyError, "no network"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OutputError, "cannot be set up: No space left on device"),
    ):
        did: list[str] = []
        steps_that_do(monkeypatch, did, failing, error)
        if expected is OutputError:  # on a full disk downloads go too
            (tmp_path / "arm-cost" / "downloads").mkdir(parents=True, exist_ok=True)
        assert text in refusal(expected, set_up, tmp_path)
        assert (did[-1], list((tmp_path / "arm-cost").iterdir()), find_counter(tmp_path)) == (failing, [], None)
    steps_that_do(monkeypatch, [])
    assert set_up(tmp_path).record.is_file()


def test_what_was_abandoned_is_removed_or_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_that_do(monkeypatch, [])
    place = tmp_path / "arm-cost"
    for name in (".making-killed/counter", current_recipe().key, "downloads/wheels"):
        (place / name).mkdir(parents=True)
    counter = set_up(tmp_path)
    assert [path.name for path in place.iterdir()] == [counter.recipe.key]
    assert counter.record.is_file()


def test_a_missing_program_is_named(tmp_path: Path, programs: Path) -> None:
    needed = ("apt-get", "dpkg-deb", "tar", "cc")
    for missing in needed:
        for name in needed:
            program(programs, name)
        (programs / missing).unlink()
        with pytest.raises(MissingDependencyError, match=missing):
            set_up(tmp_path / "cache")
        assert not (tmp_path / "cache").exists()


def test_apt_that_fetches_nothing_gives_its_last_words_without_passwords(tmp_path: Path, programs: Path) -> None:
    for name in ("dpkg-deb", "tar"):
        program(programs, name)
    program(programs, "apt-get", "echo 'E: Failed to fetch http://me:secret@host/x' >&2; exit 100")
    apt = Apt("arm64", tmp_path / "state", tmp_path / "archives")
    said = refusal(MissingDependencyError, apt.download, ["python3.11"])
    assert "python3.11 (E: Failed to fetch http://host/x)" in said
    said = refusal(MissingDependencyError, apt.fetch, ["download", "libx-dev"], tmp_path)
    assert "apt-get download libx-dev failed (E: Failed to fetch http://host/x)" in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_plugin_compiles_without_a_warning(tmp_path: Path) -> None:
    cc = tmp_path / "strict"
    program(tmp_path, "strict", 'exec cc -Wall -Wextra -Werror "$@"')
    counter = Counter(tmp_path, current_recipe())
    installation._add_plugin(counter, str(cc))
    assert counter.plugin.is_file()


def test_what_goes_wrong_in_the_emulator_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, model = tmp_path / "tmp", tmp_path / "m.onnx"
    scratch.mkdir()
    model.touch()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for last, error, expected in (
        ("echo one >&2; echo 'no kernel' >&2; exit 3", ModelError, "m.onnx: ONNX Runtime on an emulated .* no kernel"),
        ("kill -SEGV $$", EdgeError, "m.onnx: the emulator of cortex-a76 died of SIGSEGV: it said nothing"),
        ("echo gone >&2; exit 127", EdgeError, "m.onnx: the emulator of cortex-a76 ended with 127: gone"),
        ("exec sleep 600", EdgeError, r"m.onnx: not counted within 0\.3 s"),
    ):
        limit_s = 0.3 if "sleep" in last else 60
        said = refusal(error, kept_counter(tmp_path, last).count, model, "cortex-a76", time_limit_s=limit_s)
        assert re.search(expected, said)
        assert list(scratch.iterdir()) == []


def test_only_models_and_known_cores_are_counted(tmp_path: Path) -> None:
    counter = kept_counter(tmp_path, "exit 0")
    for name in ("model.toml", "model.onnx"):
        (tmp_path / name).touch()
    for name, cpu, expected in (
        ("none.onnx", "cortex-a76", "no such file"),
        ("model.toml", "cortex-a76", "not a model, expected an .onnx or .ort file"),
    ):
        assert expected in refusal(UsageError, counter.count, tmp_path / name, cpu)


def test_a_counter_that_counts_nothing_fails_its_trial(tmp_path: Path) -> None:
    assert "has ONNX Runtime '0.1'" in refusal(EdgeError, kept_counter(tmp_path, "printf 0.1").try_out)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a,b.onnx"  # a comma separates the emulator's own options
    path.touch()
    return path


def test_a_table_and_an_estimate_that_says_so(model: Path, cli: Cli) -> None:
    kept_counter(cache_folder(), "printf 1.31.1")
    out = " ".join(cli(0, "arm-cost", "count", model, "--target", "raspberry_pi_5").out.split())
    assert "a,b.onnx on an emulated cortex-a76, ONNX Runtime 1.31.1, one thread" in out
    assert re.search(r"all │ 6\.00 │ 100\.0%", out)
    assert "estimate for raspberry_pi_5: 1.5 ms [1.1 to 2], at 2400 MHz and 0.59 cycles an instruction" in out
    assert out.endswith("not measured on a board")
    said = json.loads(cli(0, "arm-cost", "count", model, "--target", "raspberry_pi_4", "--json").out)
    assert (said["target"], said["counts"]["total"]) == ("raspberry_pi_4", 6_000_000)
    assert said["estimate"]["latency_ms"] == pytest.approx(6 * 0.84 / 1.8)


def test_what_cannot_be_counted_is_refused(model: Path, cli: Cli) -> None:
    for target, code, expected in (
        ("jetson_orin_nano", 2, "what can be counted is cortex-a72"),
        ("arm64", 2, "no core of its own"),
        ("raspberry_pi_5", 8, "nothing is set up to count with; run `edge-sdk arm-cost setup`"),
    ):
        captured = cli(code, "arm-cost", "count", model, "--target", target)
        assert (captured.out, expected in captured.err) == ("", True)
    assert list(cache_folder().iterdir()) == []


@pytest.mark.parametrize(("machine", "code"), [("aarch64", 0), ("x86_64", 6)])
def test_of_a_bundle_its_model_is_counted_if_the_board_could_run_it(
    tmp_path: Path, cli: Cli, machine: str, code: int
) -> None:
    kept_counter(cache_folder(), "printf 1.31.1")
    versions = RuntimeRange(minimum="1.20.1", maximum=onnxruntime_version())
    manifest = msgspec.structs.replace(make_manifest(), machine=machine, onnxruntime=versions)
    bundle = write_bundle(tmp_path / "tiny.edge", manifest)
    captured = cli(code, "arm-cost", "count", bundle, "--target", "raspberry_pi_5", "--json")
    if code:
        assert "built for x86_64" in captured.err
    else:
        assert json.loads(captured.out)["counts"]["model"] == "model.int8.ort"


# The board that is not here: an estimate in the bundle and the report, a gate that only fails what is clear.


class _Fixed:
    def __init__(self, million: float, fault: EdgeError | None = None, *, fp32_times: float = 3) -> None:
        self.million, self.fault, self.fp32_times = million, fault, fp32_times
        self.environment = dict(os.environ)
        self.key = "fixed"

    def board_python(self, _cpu: str) -> list[str]:
        """This machine's own stands for the board's."""
        return [sys.executable]

    def count(self, model: Path, cpu: str, *, time_limit_s: float) -> Counts:
        if self.fault is not None:
            raise self.fault
        assert time_limit_s > 0
        return counted(cpu, sdot=round(self.million * (1 if model.suffix == ".ort" else self.fp32_times) * 1e6))


def _use(monkeypatch: pytest.MonkeyPatch, counter: _Fixed) -> None:
    monkeypatch.setattr("edge_sdk_tools.arm_cost.estimate.find_counter", lambda: cast("Counter", counter))


def test_an_estimate_is_promised_and_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    _use(monkeypatch, _Fixed(60))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    printed = cli(0, "build", model, "--target", "raspberry_pi_5", "-o", bundle)
    assert "estimate for cortex-a76, one thread: 60 million instructions, " in printed.out
    promised = Bundle.open(bundle).manifest.variants[0].estimate
    assert promised.million_instructions == 60
    assert (promised.low_ms * 1.35, promised.high_ms / 1.35) == pytest.approx((promised.latency_ms,) * 2)
    ledger = from_json((bundle / "report.json").read_bytes())
    assert ledger.boards == (promised,)
    arm = ledger.steps[-1]
    assert (arm.kind, arm.what, arm.left_out) == ("arm", "the same file on an emulated cortex-a76", "")
    assert (arm.outputs.against, arm.outputs.images, arm.outputs.identical) == ("ort", 3, True)
    assert "not a bit of its outputs differs, on 3 images" in (bundle / "report.html").read_text()


def test_the_board_s_counts_decide_whether_int8_gains_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """This machine says that INT8 is twice as fast; the board says that it takes 1.25 times as long."""
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: [10.0, 20.0])
    _use(monkeypatch, _Fixed(60, fp32_times=0.8))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    out = " ".join(cli(0, "build", model, "--target", "raspberry_pi_5", "-o", bundle).out.split())
    assert "THE BUNDLE CARRIES FP32" in out
    assert "FP32 11.8 ms on one thread of cortex-a76, 1.25 times as long, by counted instructions: it gains" in out


@pytest.mark.parametrize(
    ("target", "int8_ms", "carried", "factor"),
    [
        ("raspberry_pi_5", {"cortex-a76": 9.0}, "int8", "on cortex-a76: by the cost of its kernels, INT8 takes 0.90"),
        ("raspberry_pi_zero_2w", {"cortex-a72": 10.2}, "fp32",
         "on cortex-a53: by the cost of its kernels, INT8 takes 1.02"),
        # A family of cores: it must be faster on both.
        ("arm64", {"cortex-a72": 7.0, "cortex-a76": 12.0}, "fp32",
         "on cortex-a76: by the cost of its kernels, INT8 takes 1.20"),
    ],
)  # fmt: skip
def test_without_a_counter_the_cost_of_kernels_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, int8_ms: dict[str, float], carried: str, factor: str
) -> None:
    """This machine says that INT8 takes half the time."""
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: [10.0, 20.0])
    monkeypatch.setattr(
        variant, "kernels_ms", lambda model, _proto, _target, core: int8_ms[core] if "carried" in model.name else 10.0
    )
    built = build(write_project(tmp_path), target, tmp_path / "a.edge")
    assert built.precision == carried
    assert [line for line in built.warnings if factor in line]
    if carried == "fp32":
        assert "by the cost of its kernels, not counted: it gains nothing" in built.fallback_reason


def _layer(weight: tuple[int, ...], channels: int, size: int, stride: int) -> onnx.ModelProto:
    group, pads, made = channels // weight[1], [weight[2] // 2] * 4, size // stride
    text = f"y = Conv<group={group}, strides=[{stride},{stride}], pads={pads}>(images, w)"
    weights = {"w": np.ones(weight, np.float32)}
    return tiny.parsed(text, {"y": [1, weight[0], made, made]}, weights, shape=[1, channels, size, size])


def test_a_kernel_costs_what_was_counted(tmp_path: Path) -> None:
    target = load_target("raspberry_pi_4")
    for weight, channels, size, stride, counted_millions in (
        ((144, 24, 1, 1), 24, 56, 1, 4.67),
        ((32, 3, 3, 3), 3, 224, 2, 7.05),
        ((144, 1, 3, 3), 144, 56, 1, 6.82),
        ((96, 1, 3, 3), 96, 112, 2, 21.68),
    ):
        folder, model = tmp_path / str(counted_millions), _layer(weight, channels, size, stride)
        folder.mkdir()
        onnx.save(model, folder / "layer.onnx")
        file = float_file(folder / "layer.onnx", target, folder).model
        took_ms = kernels_ms(file, model, target, "cortex-a72")
        assert took_ms * 1e-3 * 1800e6 / 1.33 == pytest.approx(counted_millions * 1e6, rel=0.2)


def test_a_budget_that_the_board_clearly_cannot_keep_fails_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    _use(monkeypatch, _Fixed(100_000))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    said = cli(4, "build", model, "--target", "raspberry_pi_4", "-o", bundle).err.splitlines()[-1]
    assert re.search(r"one inference takes an estimated .* raise \[budget\] latency_ms", said)
    assert not bundle.exists()


def test_what_all_threads_and_the_worst_error_might_save_is_no_failure() -> None:
    target = load_target("raspberry_pi_5")
    assert target.intra_op_num_threads == 2
    check_latency(None, target, 100)
    check_latency(BoardEstimate("cortex-a76", 900.0, 270, 200, 365), target, 100)
    with pytest.raises(LatencyGateError, match="so 2 threads cannot keep the budget of 100 ms"):
        check_latency(BoardEstimate("cortex-a76", 900.0, 271, 201, 366), target, 100)


def test_an_emulator_that_fails_says_nothing_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    model = write_project(tmp_path)
    for code, fault in ((0, EdgeError("the emulator died")), (2, ModelError("cannot run it on a cortex-a76"))):
        _use(monkeypatch, _Fixed(1, fault))
        cli(code, "build", model, "--target", "raspberry_pi_5", "-o", tmp_path / f"{code}.edge")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("x86_64", ""),
        ("raspberry_pi_zero_2w", "not run: nothing here emulates "),
        ("raspberry_pi_5", "not run: `edge-sdk arm-cost setup` installs an emulator"),
    ],
)
def test_where_nothing_is_counted_nothing_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, reason: str
) -> None:
    if target != "raspberry_pi_5":
        _use(monkeypatch, _Fixed(1))
        assert board_counter(load_target(target), tiny.classifier()) is None
    assert build(write_project(tmp_path), target, tmp_path / "a.edge").boards == ()
    assert Bundle.open(tmp_path / "a.edge").manifest.variants[0].estimate is None
    steps = from_json((tmp_path / "a.edge" / "report.json").read_bytes()).steps
    arm = [(step.left_out.startswith(reason), step.outputs) for step in steps if step.kind == "arm"]
    assert arm == [(True, None)] * bool(reason)


class _BySize(_Fixed):
    """A counter for which other sizes than the first cost far more."""

    def count(self, model: Path, cpu: str, *, time_limit_s: float) -> Counts:
        self.million = 100_000 if "32x32" in str(model) else 60
        return super().count(model, cpu, time_limit_s=time_limit_s)


def test_a_further_model_over_the_budget_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_project(tmp_path)
    _use(monkeypatch, _Fixed(60))
    build(model, "raspberry_pi_4", tmp_path / "a.edge", variants=Request(sizes=((32, 32),)))
    estimates = [v.estimate for v in Bundle.open(tmp_path / "a.edge").manifest.variants]
    assert [e.million_instructions for e in estimates if e] == [60, 60]
    _use(monkeypatch, _BySize(60))
    report = build(model, "raspberry_pi_4", tmp_path / "b.edge", variants=Request(sizes=((32, 32),)))
    assert [v.name for v in Bundle.open(tmp_path / "b.edge").manifest.variants] == ["int8"]
    assert report.variants[1].problem is not None
    assert "cannot keep the budget" in report.variants[1].problem


@pytest.mark.parametrize("relative", [False, True])
def test_a_board_says_what_its_python_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", "." if relative else str(tmp_path))
    onnx.save(tiny.classifier(), "model.onnx")
    tensors = [np.full((1, 3, 16, 16), value, np.float32) for value in (0.1, 0.5, 0.9)]
    session = ort.InferenceSession("model.onnx")
    counter = cast("Counter", _Fixed(1))
    with board_outputs(counter, Path("model.onnx"), "cortex-a76", tensors, 60) as finish:
        outputs = finish()
    for (got,), tensor in zip(outputs, tensors, strict=True):
        np.testing.assert_array_equal(got, session.run(None, {"images": tensor})[0])
    with board_outputs(counter, Path("model.onnx"), "cortex-a76", tensors, 0) as finish:
        assert len(finish()) == 1
    Path("junk.onnx").write_bytes(b"junk")
    with board_outputs(counter, Path("junk.onnx"), "cortex-a76", tensors, 60) as finish:
        assert "an emulated cortex-a76 ended with 3: " in refusal(EdgeError, finish)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junk.onnx", "model.onnx"]
