"""An error of somebody else's code in one line."""

from __future__ import annotations

import pytest

from edge_sdk.core.errors import failure_line, first_line


def _raised(cause: BaseException) -> BaseException:
    try:
        raise cause
    except BaseException as caught:  # noqa: BLE001 - to be shown
        return caught


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo", "one"),
        ("\n  \n one \ntwo", "one"),
        ("[ONNXRuntimeError] : 1 : FAIL : no", "1 : FAIL : no"),
        ("\x1b[31mred\x1b[0m and \x07 rings", "red and \N{REPLACEMENT CHARACTER} rings"),
        ("", "ValueError (test_failure.py:12)"),
        ("\n \n", "ValueError (test_failure.py:12)"),
    ],
    ids=["lines", "blank", "ONNX Runtime", "terminal", "empty", "all blank"],
)
def test_the_first_line_of_an_exception(text: str, expected: str) -> None:
    assert first_line(_raised(ValueError(text))) == expected


def test_an_exception_that_was_never_raised_has_its_type_alone() -> None:
    assert first_line(AssertionError()) == "AssertionError"


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (AssertionError(), "AssertionError (test_failure.py:12)"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("one\ntwo"), "ValueError: one"),
    ],
)
def test_a_bug_says_its_type_once(cause: Exception, expected: str) -> None:
    assert failure_line(_raised(cause)) == f"this is a bug in edge-sdk: {expected}"
