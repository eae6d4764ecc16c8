"""A model that is kept while its bundle is verified: the verified bytes, once, and no longer than they are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import BundleError
from tests.device.bundles import write_bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "a.edge")


def _swap_model(bundle: Bundle) -> bytes:
    """Swap it for another one after it was verified; returns what it was."""
    file = bundle.path / bundle.manifest.variants[0].file
    before = file.read_bytes()
    file.write_bytes(bytes(len(before)))
    return before


def test_what_was_verified_is_what_is_read_once(folder: Path) -> None:
    bundle = Bundle.open(folder, keeps_model=True)
    name = bundle.manifest.variants[0].file
    before = _swap_model(bundle)
    led = bundle.led_by(bundle.manifest.variants[0].name)
    assert led.read(name) == before
    for one in (led, bundle):
        with pytest.raises(BundleError, match="altered"):
            one.read(name)


def test_what_is_forgotten_is_read_again(folder: Path) -> None:
    bundle = Bundle.open(folder, keeps_model=True)
    led = bundle.led_by(bundle.manifest.variants[0].name)
    _swap_model(bundle)
    bundle.forget_kept()
    with pytest.raises(BundleError, match="altered"):
        led.read(bundle.manifest.variants[0].file)


def test_an_altered_model_is_refused_where_it_is_kept_too(folder: Path) -> None:
    _swap_model(Bundle.open(folder))
    with pytest.raises(BundleError, match="altered"):
        Bundle.open(folder, keeps_model=True)
