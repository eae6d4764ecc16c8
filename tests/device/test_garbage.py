"""No garbage is looked for where there is none."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edge_sdk.garbage import no_collection
from edge_sdk.publishing import load_client


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_what_was_made_inside_is_never_looked_at() -> None:
    before = gc.get_freeze_count()
    with no_collection():
        assert not gc.isenabled()
        kept = [[index] for index in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() - before >= len(kept)


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()


def test_an_error_inside_leaves_it_on() -> None:
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_what_a_stream_loads_again_freezes_nothing() -> None:
    """Each that begins, or takes another's place, asks for it; the one that left is garbage then, and in cycles."""
    load_client()
    frozen = gc.get_freeze_count()
    made_since = [[index] for index in range(1000)]
    load_client()
    assert gc.get_freeze_count() - frozen < len(made_since)
    assert gc.isenabled()
