"""Real streams with few pictures: none is thrown away for a newer one that does not come."""

from __future__ import annotations

from contextlib import closing

import pytest

from edge_sdk.camera import SourceOptions, open_source
from edge_sdk.frame import Frame
from tests.system.streams import StreamServer, http_server

pytestmark = pytest.mark.system


def _first(server: StreamServer, path: str, within_s: float) -> Frame | None:
    with closing(open_source(server.url(path), options=SourceOptions(read_timeout_s=12), waits=True)) as source:
        return source.latest(within_s)


@pytest.mark.parametrize("path", ["/snapshot", "/one", "/slow"])
def test_an_only_picture_that_came_while_the_stream_opened_is_delivered(path: str) -> None:
    """0.3 s after it was asked for, and then the end, or none for eight seconds: each came never, or after those."""
    with http_server() as server:
        assert _first(server, path, 5) is not None
