"""`edge-sdk bench` runs a model as it is told to, and says how that was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from tests.device.variant_bundles import write_variants


@pytest.mark.parametrize(
    ("options", "threads", "spinning"),
    [
        ([], 0, False),
        (["--threads", "3"], 3, False),
        (["--threads", "2", "--spin"], 2, True),
        (["--no-spin"], 0, False),
    ],
)
def test_threads_and_spinning_are_as_given(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], options: list[str], threads: int, spinning: bool
) -> None:
    folder = write_variants(tmp_path / "a.edge")
    assert run(["bench", str(folder), "--rounds", "1", "--json", *options]) == 0
    report = msgspec.json.decode(capsysbinary.readouterr().out)
    promised = Bundle.open(folder).manifest.intra_op_num_threads
    assert (report["threads"], report["spinning"]) == (threads or promised, spinning)


def test_the_table_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_variants(tmp_path / "a.edge")
    assert run(["bench", str(folder), "--rounds", "1", "--threads", "2", "--spin"]) == 0
    assert "(int8, 2 threads that spin), frame 1280x720" in capsys.readouterr().out
