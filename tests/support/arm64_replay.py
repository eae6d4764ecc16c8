"""Runs on the board and on the workstation alike: `replay.py OUT.npz BUNDLE ...` answers with who ran it, in JSON.

OUT.npz holds, for each bundle, each golden input as the model gets it and the tensors that came out. Imports every
module of edge_sdk first; knows nothing of the tests.
"""

import ctypes
import importlib
import json
import pkgutil
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session

_AT_HWCAP = 16  # <linux/auxvec.h>
_HWCAP_ASIMDDP = 1 << 20  # <asm/hwcap.h> of arm64


def replay(path: Path) -> dict[str, np.ndarray]:
    """The model's input and outputs for each golden picture of a bundle."""
    bundle = Bundle.open(path)
    session = Session.open(bundle)
    prepare = Prepare.of(bundle.manifest)
    tensors: dict[str, np.ndarray] = {}
    for index, (image, _promised) in enumerate(bundle.golden()):
        tensor = prepare.normalise(image)
        key = f"{path}/{index}"
        tensors[f"{key}/input"] = tensor.copy()
        for number, output in enumerate(session.run(tensor)):
            tensors[f"{key}/output_{number}"] = output.copy()
    return tensors


def cpu_parts() -> list[str]:
    """The CPU part numbers in /proc/cpuinfo: 0xd08 is a Cortex-A72, 0xd0b a Cortex-A76."""
    return sorted(set(re.findall(r"^CPU part\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)))


def has_dot_product() -> bool:
    """Whether the kernel reports dot-product instructions; an emulated /proc/cpuinfo is only a file."""
    get = ctypes.CDLL(None).getauxval
    get.restype, get.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return bool(get(_AT_HWCAP) & _HWCAP_ASIMDDP)


def main(out: str, bundles: list[str]) -> None:
    modules = [found.name for found in pkgutil.walk_packages(edge_sdk.__path__, "edge_sdk.")]
    modules.remove("edge_sdk.__main__")
    for module in modules:
        importlib.import_module(module)
    tensors: dict[str, Any] = {}
    for bundle in bundles:
        tensors.update(replay(Path(bundle)))
    np.savez(out, **tensors)
    answer = {
        "machine": platform.machine(),
        "cpu_parts": cpu_parts(),
        "dot_product": platform.machine() == "aarch64" and has_dot_product(),
        "modules": modules,
    }
    print(json.dumps(answer))  # noqa: T201 - this is its one answer


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
