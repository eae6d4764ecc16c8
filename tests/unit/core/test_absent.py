"""Where a test is skipped for what a machine lacks, and where it fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.absent import not_allowed, not_installed


@pytest.mark.parametrize(
    ("say", "environment", "is_failure"),
    [
        (not_installed, {}, False),
        (not_installed, {"CI": "true"}, True),
        (not_allowed, {"CI": "true"}, False),  # one that is not root is one all the same
        (not_allowed, {"CI": "true", "EDGE_SDK_REQUIRE": "rights"}, True),
    ],
)
def test_what_is_absent(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None], environment: dict[str, str], is_failure: bool
) -> None:
    for name in ("CI", "EDGE_SDK_REQUIRE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception if is_failure else pytest.skip.Exception, match="no broker"):
        say("no broker")
