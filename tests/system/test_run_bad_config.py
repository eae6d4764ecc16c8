"""A configuration that cannot be used: at the start it is refused, and what runs already goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system

_STREAMS = {"gate": HEALTHY, "yard": HEALTHY}
_GATE = 'name = "gate"\n'
_BAD = {
    "an unknown key": (_GATE, f"{_GATE}colour = 1\n", 'pipelines[0] ("gate"): unknown key colour'),
    "a unit": (_GATE, f'{_GATE}open_timeout_s = "300ms"\n', "expected a number of seconds; leave out the unit"),
    "milliseconds for seconds": (
        _GATE,
        f"{_GATE}open_timeout_s = 3000\n",
        "is 3000, expected 60 seconds or less; was it milliseconds?",
    ),
    "two of one name": ('name = "yard"', 'name = "gate"', "pipelines[0] and pipelines[1] are both named 'gate'"),
    "no TOML": ("[device]", "[device", "not valid TOML: "),
    "a newer version": ("version = 1", "version = 2", "version is 2, expected 1; update edge-sdk on this device"),
    "no bundle": ("bundle = ", "# bundle = ", "bundle is missing, expected a NAME.edge folder"),
}


@pytest.mark.parametrize(("before", "after", "expected"), _BAD.values(), ids=_BAD)
def test_a_start_is_refused_with_its_reason(
    before: str, after: str, expected: str, cell_bundle: Path, tmp_path: Path
) -> None:
    path = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    path.write_text(path.read_text().replace(before, after, 1))
    done = edge_sdk("run", "--config", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"edge-sdk: {path}: ")
    assert expected in done.stderr


def test_what_runs_goes_on_until_there_is_one_that_can_be_used(cell_bundle: Path, tmp_path: Path) -> None:
    path = write_at_ease(tmp_path, cell_bundle, _STREAMS)
    good = path.read_text()
    with Device(path) as device:
        device.run_on("gate")
        for before, after, expected in _BAD.values():
            path.write_text(good.replace(before, after, 1))
            device.ask_to_reload()
            device.hear("the configuration is not taken, what runs goes on: ", expected)
            for camera in ("gate", "yard"):
                device.run_on(camera)
        device.limit_files(3)  # no file can be read at present
        device.ask_to_reload()
        device.hear("the configuration is not taken, what runs goes on: ", "cannot be read: Too many open files")
        device.limit_files(1000)
        path.write_text(good.replace('"gate"', '"door"'))
        device.ask_to_reload()
        device.hear("configuration read again: ending: gate; new: door; as before: yard")
        for camera in ("door", "yard"):
            device.run_on(camera)
        assert device.stop() == 0
    seqs = [result["seq"] for result in device.results("yard")]
    assert seqs == sorted(set(seqs))  # its source was never opened again
    assert not device.lines_with("bug")
