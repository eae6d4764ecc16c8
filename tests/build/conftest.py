"""What all tests of the workstation's code share."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from edge_sdk_tools.arm_cost import estimate
from edge_sdk_tools.check import examination, gate
from edge_sdk_tools.check.sandbox import Job, Limits
from edge_sdk_tools.prove import parity


@pytest.fixture(autouse=True)
def _no_counter_and_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds are the same whatever somebody has set up, or built before, on this machine."""
    monkeypatch.setattr(estimate, "find_counter", lambda _folder=None: None)
    monkeypatch.setenv("EDGE_SDK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _examined_in_this_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Examine and measure models here, where a process of its own shows nothing: two a build take most of its time."""
    if request.node.get_closest_marker("sandbox") is None:
        monkeypatch.setattr(gate, "run_limited", _run_here)
        monkeypatch.setattr(parity, "peak_memory", _file_sizes)


def _run_here(module: str, request: bytes, _limits: Limits) -> bytes:
    assert module == examination.__name__
    return msgspec.msgpack.encode(examination.examine_model(msgspec.msgpack.decode(request, type=Job)))


@contextlib.contextmanager
def _file_sizes(models: Sequence[Path], _shipped: Path) -> Iterator[Callable[[], list[float]]]:
    """In place of `peak_memory`: the size of each model's file stands for the memory that it takes."""
    yield lambda: [path.stat().st_size / 1e6 for path in models]
