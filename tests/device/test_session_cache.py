"""SessionCache: what is loaded is not loaded again, what is in use is never dropped."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import IncompatibleError
from edge_sdk.frame import Classification, Frame
from edge_sdk.session import SessionCache, SessionSettings
from edge_sdk.stages import Stages
from tests.device import tiny
from tests.device.bundles import write_bundle
from tests.device.troubled import SIDE, open_real_bundle

MODEL = tiny.classifier(classes=2)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_real_bundle(tmp_path / "a.edge", MODEL)


def _settings(threads: int) -> SessionSettings:
    return SessionSettings(intra_op_num_threads=threads)


def _frame(seed: int) -> Frame:
    image = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Frame(image, time.monotonic_ns(), 0.0, 0, "camera")


def test_the_same_model_is_loaded_once_and_shared(bundle: Bundle) -> None:
    cache = SessionCache()
    first, second = cache.open(bundle), cache.open(Bundle.open(bundle.path))
    assert first is not second
    assert first.inference is second.inference
    assert cache.open(bundle, _settings(2)).inference is not first.inference
    assert len(cache) == 2


def test_the_least_recently_used_one_goes(bundle: Bundle) -> None:
    cache = SessionCache(most=2)
    loaded = {threads: id(cache.open(bundle, _settings(threads)).inference) for threads in (1, 2)}
    keeps = cache.open(bundle, _settings(1)).inference  # used again; ONNX Runtime's session lives, none of ours does
    cache.open(bundle, _settings(3))
    assert len(cache) == 2
    assert cache.open(bundle, _settings(1)).inference is keeps
    assert id(keeps) == loaded[1]


def test_what_is_in_use_stays(bundle: Bundle) -> None:
    cache = SessionCache(most=1)
    used = cache.open(bundle, _settings(1))
    for threads in (2, 3, 4):
        cache.open(bundle, _settings(threads))
    assert cache.open(bundle, _settings(1)).inference is used.inference
    del used
    cache.open(bundle, _settings(2))
    cache.open(bundle, _settings(3))
    assert len(cache) == 1


def test_stages_that_come_back_replay_nothing(bundle: Bundle) -> None:
    cache = SessionCache()
    first = Stages.open(bundle, cache=cache)
    assert first.session.is_proved
    (bundle.path / "golden.npz").unlink()  # whoever replays golden now fails
    second = Stages.open(bundle, cache=cache)
    assert second.session.inference is first.session.inference
    assert second.prepare is not first.prepare
    results = [stages(_frame(1)) for stages in (first, second)]
    assert all(isinstance(result, Classification) for result in results)
    assert np.array_equal(results[0].confidences, results[1].confidences)  # type: ignore[union-attr]


def test_several_cameras_share_one_model(bundle: Bundle) -> None:
    cache = SessionCache()
    alone = Stages.open(bundle)
    expected = [alone(_frame(seed)).confidences for seed in range(8)]  # type: ignore[union-attr]

    def watch(camera: int) -> bool:
        stages = Stages.open(bundle, cache=cache)
        seeds = [(camera + step) % 8 for step in range(200)]
        return all(np.array_equal(stages(_frame(s)).confidences, expected[s]) for s in seeds)  # type: ignore[union-attr]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(watch, range(4)))
    assert len(cache) == 1


class _Watched(Bundle):
    """A bundle that notes how often it is read, and whose reader waits for others."""

    def __init__(self, opened: Bundle, others: Barrier) -> None:
        super().__init__(opened.path, opened.manifest, opened.manifest_bytes, signed=opened.signed)
        self._others = others
        self.reads = 0

    def read(self, name: str) -> bytes:
        self.reads += 1
        self._others.wait(10)
        return super().read(name)


def test_different_models_load_at_the_same_time(tmp_path: Path, bundle: Bundle) -> None:
    both = Barrier(2)
    other = open_real_bundle(tmp_path / "b.edge", tiny.classifier(classes=3))
    cache = SessionCache()
    with ThreadPoolExecutor(2) as threads:
        opened = list(threads.map(cache.open, [_Watched(bundle, both), _Watched(other, both)]))
    assert opened[0].inference is not opened[1].inference
    assert len(cache) == 2


def test_one_model_that_two_want_at_once_is_loaded_once(bundle: Bundle) -> None:
    alone = Barrier(1)
    wanted = [_Watched(bundle, alone) for _ in range(8)]
    cache = SessionCache()
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(cache.open, wanted))
    assert sum(w.reads for w in wanted) == 1
    assert len({id(session.inference) for session in opened}) == 1


def test_what_cannot_be_loaded_is_not_kept(tmp_path: Path) -> None:
    broken = Bundle.open(write_bundle(tmp_path / "broken.edge"))
    cache = SessionCache()
    for _ in range(2):
        with pytest.raises(IncompatibleError, match="cannot load it"):
            cache.open(broken)
    assert len(cache) == 0
