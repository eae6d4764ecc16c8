"""Which variant answers, and what runs: in results and in the status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from edge_sdk.publishing import Running, StatusMessage
from tests.device.results import make_detections, make_encoder

_SCHEMA = Path(__file__).parents[2] / "docs" / "status.schema.json"
_RUNNING = Running(variant="int8.320x320", every=1, rung=1, rungs=7, reason="34% of 60 frames were late")


def _decode(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(data)
    return document


def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_decode(_SCHEMA.read_bytes()))


def test_results_name_the_variant_that_made_them_and_a_status_names_none() -> None:
    encoder = make_encoder()
    assert "variant" not in _decode(encoder.encode(make_detections(1)))["model"]
    for variant in ("int8.320x320", "int8"):
        encoder.answers_by(variant)
        assert _decode(encoder.encode(make_detections(1)))["model"]["variant"] == variant
    assert "variant" not in _decode(encoder.encode_status("door", "offline", "lost"))["model"]


def test_a_status_says_what_runs_and_keeps_to_the_schema() -> None:
    data = make_encoder().encode_status("door", "online", running=_RUNNING)
    assert [e.message for e in _validator().iter_errors(_decode(data))] == []
    assert msgspec.json.decode(data, type=StatusMessage).running == _RUNNING


@pytest.mark.parametrize(("key", "value"), [("every", 0), ("rung", -1), ("rungs", 0), ("reason", None)])
def test_the_schema_refuses_other_ways_of_running(key: str, value: object) -> None:
    document = _decode(make_encoder().encode_status("door", "online", running=_RUNNING))
    assert document["running"] == msgspec.to_builtins(_RUNNING)
    document["running"][key] = value
    assert not _validator().is_valid(document)
