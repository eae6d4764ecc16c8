"""Instructions and memory of one network on ARM cores, by engine: ONNX Runtime stock and reduced, ncnn, LiteRT.

Run as `python -m benchmarks.experiments.arm_engines SIDE FILE ...`. Files are wheels of a reduced runtime, and the same
network for each engine: `.ort`, `.tflite`, `.param` with its `.bin`. SIDE is that of the input, which a `.param` does
not say. Each runs on the emulated boards of `edge-sdk arm-cost`, on one thread, from Python with numpy. The call from
Python is counted. Memory is of a second emulation, in which nothing is counted. ncnn uses half floats if told to.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from edge_sdk_tools.arm_cost.counter import CPUS, Counter, count_classes
from edge_sdk_tools.arm_cost.installation import fetch_wheels, platforms, set_up
from edge_sdk_tools.packages import last_words, run_program
from edge_sdk_tools.runtime.prove import PEAK, board_with, run_python

MODULES = {".ort": "onnxruntime", ".param": "ncnn", ".tflite": "ai_edge_litert.interpreter"}
WHEELS = {
    ".param": ("ncnn==1.0.20261020",),
    ".tflite": ("ai-edge-litert==2.3.0", "backports.strenum", "flatbuffers", "protobuf", "typing_extensions", "tqdm"),
}
PHASES = ("import", "load", "first", "next")
TIME_LIMIT_S = 1200.0
GUEST = """
import ctypes, gc, importlib, os, sys
import numpy
module, model, record, side, halves = sys.argv[1:]

def load_onnxruntime():
    options = engine.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = engine.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    [spec] = session.get_inputs()
    kind = {"tensor(uint8)": "uint8", "tensor(int8)": "int8"}.get(spec.type, "float32")
    return spec.shape, kind, lambda x: session.run(None, {spec.name: x})

def load_litert():
    net = engine.Interpreter(model, num_threads=1)
    net.allocate_tensors()
    [spec], [out] = net.get_input_details(), net.get_output_details()
    def run(x):
        net.set_tensor(spec["index"], x)
        net.invoke()
        return net.get_tensor(out["index"])
    return spec["shape"], spec["dtype"], run

def load_ncnn():
    net = engine.Net()
    net.opt.num_threads = 1
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = bool(halves)
    net.load_param(model)
    net.load_model(model.removesuffix("param") + "bin")
    def run(x):
        extractor = net.create_extractor()
        extractor.input("in0", engine.Mat(x))
        return numpy.array(extractor.extract("out0")[1])
    return (3, int(side), int(side)), "float32", run

load = {"onnxruntime": load_onnxruntime, "ncnn": load_ncnn}.get(module, load_litert)
system_call = ctypes.CDLL(None).syscall

def phase(name, do):
    gc.collect()
    gc.disable()
    system_call(ctypes.c_long(0x5ED6E0))
    result = do()
    system_call(ctypes.c_long(0x5ED6E1))
    if os.path.exists(record):
        os.rename(record, record + name)
    return result

random = numpy.random.default_rng(0)
before = peak_kib()
engine = phase("import", lambda: importlib.import_module(module))
shape, kind, run = phase("load", load)
scale = 1 if numpy.dtype(kind) == "float32" else 100
x = (random.random(shape, "float32") * scale).astype(kind)
phase("first", lambda: run(x))
phase("next", lambda: run(x))
print(peak_kib() - before)
"""


def main(side: str, *names: str) -> None:
    """Count and print one row a model, core and engine."""
    files = [Path(name).absolute() for name in names]
    counter = set_up()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        boards = {".ort": {f"ONNX Runtime {counter.recipe.onnxruntime}": counter}}
        for wheel in (file for file in files if file.suffix == ".whl"):
            engine = f"ONNX Runtime {wheel.name.split('-')[1]}"
            boards[".ort"][engine] = board_with(counter, [wheel], folder / wheel.stem)
        for suffix, wanted in WHEELS.items():
            wheels = folder / f"wheels{suffix}"
            fetch_wheels([*wanted, "--no-deps"], counter.recipe.python, platforms("aarch64"), wheels)
            board = board_with(counter, sorted(wheels.iterdir()), folder / f"board{suffix}")
            boards[suffix] = {wanted[0].replace("==", " "): board}
        for suffix, board in ((suffix, board) for suffix, some in boards.items() for board in some.values()):
            run_python(board, CPUS[0], f"import {MODULES[suffix]}")  # leaves bytecode, as an installation does
        print(f"| model, million instructions | core | engine | {' | '.join(PHASES)} | MB |\n{'|---' * 8}|")
        for model in (file for file in files if file.suffix in MODULES):
            for core, (engine, board) in itertools.product(CPUS, boards[model.suffix].items()):
                for halves in ("", "half") if model.suffix == ".param" and core == "cortex-a76" else ("",):
                    cells = _measure(board, core, model, folder / "counts", side, halves)
                    name = f"{model.parent.name}/{model.name}"
                    print(f"| {name} | {core} | {engine} {halves} | {' | '.join(cells)} |", flush=True)


def _measure(board: Counter, core: str, model: Path, record: Path, side: str, halves: str) -> list[str]:
    """Return million instructions of each phase, and the highest memory above Python with numpy in MB of 1e6 bytes."""
    arguments = ["-c", PEAK + GUEST, MODULES[model.suffix], str(model), str(record), side, halves]
    for command in (board.board_python(core, record), board.board_python(core)):
        done = run_program([*command, *arguments], timeout_s=TIME_LIMIT_S, cwd="/", env=board.environment)
        if done.returncode:
            return [f"ended with {done.returncode}: {last_words(done.stderr)}"]
    counts = [sum(count_classes(Path(f"{record}{name}").read_bytes()).values()) / 1e6 for name in PHASES]
    return [*(f"{count:.1f}" for count in counts), f"{int(done.stdout.split()[-1]) * 1024 / 1e6:.0f}"]


if __name__ == "__main__":
    main(*sys.argv[1:])
