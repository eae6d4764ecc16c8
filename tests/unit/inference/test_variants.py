"""Several models in one bundle: the one that is chosen runs, in its size, and replays its own golden inputs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.core.errors import BundleError, UsageError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from tests.support.bundles import SIDES, edit_manifest, write_variants
from tests.support.program import Cli


@pytest.mark.parametrize("name", list(SIDES))
def test_the_chosen_one_is_opened_with_its_size_and_its_golden_inputs(tmp_path: Path, name: str) -> None:
    whole = Bundle.open(write_variants(tmp_path / "a.edge"))
    for spelled in (name, f"model.{name}.ort"):
        bundle = whole.with_primary(spelled)
        assert bundle.manifest.variants[0].name == name
        assert {v.name for v in bundle.manifest.variants} == set(SIDES)
        assert bundle.digest == whole.digest
        session = Session.open(bundle)
        assert session.input_shape == bundle.manifest.input.tensor_shape == (1, 3, SIDES[name], SIDES[name])
        assert session.replay_golden(bundle, Prepare(bundle.manifest.input)) == 0.0


def test_run_gives_the_chosen_variants_results(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    folder = write_variants(tmp_path / "a.edge")
    image = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "one.png"), image)
    seen = {}
    for chosen in (None, *SIDES):
        flags = ["--variant", chosen] if chosen else []
        assert run(["run", str(folder), "--source", str(tmp_path / "one.png"), "-q", *flags]) == 0
        [line] = capsysbinary.readouterr().out.splitlines()
        classes = msgspec.json.decode(line)["classes"]
        seen[chosen] = {c["label"]: c["confidence"] for c in classes}["cat"]
    assert seen[None] == seen["int8"]
    assert len({round(value, 3) for value in seen.values()}) == len(SIDES)


@pytest.mark.parametrize("verb", [["run", "--quiet", "--source", "one.png"], ["bench", "--rounds", "1"]])
def test_resizing_has_as_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]) -> None:
    before = cv2.getNumThreads()
    folder = write_variants(tmp_path / "a.edge")
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    try:
        for threads in (1, 3):
            edit_manifest(folder, intra_op_num_threads=threads)
            assert run([*verb, str(folder)]) == 0
            assert cv2.getNumThreads() == threads
    finally:
        cv2.setNumThreads(before)


@pytest.mark.parametrize("verb", [["run", "--source", "none.png"], ["bench"]])
def test_an_unknown_name_is_refused(tmp_path: Path, cli: Cli, verb: list[str]) -> None:
    folder = write_variants(tmp_path / "a.edge")
    error = cli(2, *verb, folder, "--variant", "int8.9x9").err.splitlines()[-1]
    assert "has no variant 'int8.9x9', expected one of: int8, int8.8x8, fp32" in error
    with pytest.raises(UsageError, match="has no variant ''"):
        Bundle.open(folder).with_primary("")


def _edit(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    document = msgspec.json.decode((folder / "manifest.json").read_bytes())
    edit(document["variants"])
    edit_manifest(folder, variants=document["variants"])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "golden.int8.8x8.npz").unlink(), "golden.int8.8x8.npz is missing"),
        (lambda f: _edit(f, lambda v: v[2]["golden"].update(file="g")), "'g' is promised but not among the files"),
        (lambda f: _edit(f, lambda v: v.append(v[1])), "a variant is there twice"),
        (lambda f: _edit(f, lambda v: v[0].update(size_wh=[8, 8])), "8x8, expected input.size_wh, 16x16"),
        (lambda f: _edit(f, lambda v: v[1].update(operators=["x:Y"])), "'x:Y', which operators does not name"),
        (lambda f: _edit(f, lambda v: v.clear()), "variants"),
    ],
)
def test_a_wrong_variant_refuses_the_bundle(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    folder = write_variants(tmp_path / "a.edge")
    damage(folder)
    with pytest.raises(BundleError, match=re.escape(expected)):
        Bundle.open(folder)
