"""The programs in README.md and docs/library.md, as they stand there: run on a real bundle, and type-checked."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest

import edge_sdk
from tests.support.broker import Subscriber, TlsBroker
from tests.support.bundles import cell_picture
from tests.support.pictures import write_frames
from tests.support.program import PATIENCE_S
from tests.support.program import edge_sdk as run_edge_sdk
from tests.support.subscribers import documents, statuses

pytestmark = pytest.mark.system

_CHECKOUT = Path(__file__).parents[2]


def _programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (_CHECKOUT / page).read_text(encoding="utf-8"), re.M | re.S)


_README = _programs("README.md")
_LIBRARY = _programs("docs/library.md")
assert len(_LIBRARY) == 9  # each has a test


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cell_bundle: Path) -> Path:
    """What the programs name: a signed bundle and one that was altered, the key, a picture, a second of video."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(cell_bundle, folder / "person.edge")
    assert run_edge_sdk("keygen", folder / "fleet.key").returncode == 0
    assert run_edge_sdk("sign", folder / "person.edge", "--key", folder / "fleet.key").returncode == 0
    shutil.copytree(folder / "person.edge", folder / "altered.edge")
    (folder / "altered.edge" / "labels.txt").write_text("cat\ndog\n")
    cv2.imwrite(str(folder / "street.jpg"), cell_picture(0))
    write_frames(folder / "street.mp4", map(cell_picture, range(20)), 20, "mp4v")
    return folder


def _output_of(program: str, folder: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_program_of_the_readme_finds_what_is_there(folder: Path) -> None:
    [found] = _output_of(_README[0], folder)
    box = r"\[\d+\.0, \d+\.0, \d+\.0, \d+\.0\]"
    assert re.fullmatch(rf"\['(red|blue)', '(red|blue)'\] \[{box}, {box}\]", found)


@pytest.mark.parametrize(
    ("number", "pattern"),
    [
        (0, r"(red|blue) \d+% at \[.+\]\n(red|blue) \d+% at \[.+\]\n(\d+ \['(red|blue)', '(red|blue)'\]\n?)+"),
        (1, r"(\d+ \d+\.\d ms\n)+\d+ \d+\.\d ms"),
        (2, r"(2 found, \d+ ms after the shutter\n)+\d+ on time, \d+ late, \d+ dropped as too old"),
        (5, r"noise 0 \(640, 480\)\n(noise \d \(640, 480\)\n){3}noise 4 \(640, 480\)"),
        (6, r"(?=(.*\n)*front)(?=(.*\n)*back)((front|back) \d+\n)+(front|back) \d+"),
        (7, r"not to be trusted: altered\.edge/labels\.txt: (has|altered).*"),
        (8, r"\w+ \(1, .+\) \[\(1, .+\)\]"),
    ],
)
def test_the_programs_of_the_library_page(folder: Path, number: int, pattern: str) -> None:
    assert re.fullmatch(pattern, "\n".join(_output_of(_LIBRARY[number], folder)))


def test_the_program_about_events_tells_one(folder: Path) -> None:
    program = _LIBRARY[3]
    assert program.count('"person"') == 1
    [line] = _output_of(program.replace('"person"', '"red"'), folder)
    assert re.fullmatch(r"\d{4}-.+\+00:00 gate red appeared \{'after_s': \d+\.\d+\}", line)


def test_the_program_with_a_broker_publishes_what_it_finds(folder: Path, tmp_path: Path) -> None:
    program = _LIBRARY[4]
    assert program.count("gate-1@broker.local") == program.count('"person"') == 1
    (folder / "waiting").mkdir()
    (folder / "broker.password").write_text("open sesame\n")
    (folder / "broker.password").chmod(0o600)
    with TlsBroker(tmp_path, users={"gate-1": "open sesame", "us": "us"}) as broker:
        shutil.copy(broker.authority.file, folder / "broker-ca.pem")
        here = program.replace("broker.local", f"localhost:{broker.tls_port}").replace('"person"', '"red"')
        with Subscriber(broker, username="us", password="us") as subscriber:
            assert _output_of(here, folder) == ["2 events are acknowledged"]
            subscriber.wait_for(lambda _: statuses(subscriber)[-1][:2] == ("offline", "shutdown"), "the goodbye")
            assert [d["kind"] for d in documents(subscriber.messages("/event/gate"))] == ["appeared"]
            [opened] = documents(subscriber.messages("default/gate-1/event/door"))
            assert (opened["kind"], opened["detail"]) == ("door opened", {"badge": 12})
            results = documents(subscriber.messages("/result/gate"))
            assert "red" in {found["label"] for result in results for found in result["detections"]}
            online = [d for d in documents(subscriber.messages("/status")) if d["status"] == "online"][-1]
            assert len({d["run_id"] for d in (online, opened, *results)}) == 1
            assert {"variant": "int8", **online["cameras"]["gate"]} == results[0]["model"]


def test_the_library_page_names_what_is_public_and_nothing_else() -> None:
    table = (_CHECKOUT / "docs/library.md").read_text(encoding="utf-8").partition("## ")[0]
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    named = set(re.findall(r"`(\w+)`", table)) & (set(re.findall(r"`(\w+)`", first_cells)) | {"Result"})
    assert named == set(edge_sdk.__all__) - {"__version__"}


def test_the_attributes_that_the_library_page_promises_are_there(cell_bundle: Path, tmp_path: Path) -> None:
    bundle = edge_sdk.Bundle.open(cell_bundle)
    model = edge_sdk.Model.open(bundle)
    loop = model.loop(SimpleNamespace(ended=True, latest=lambda _timeout_s: None, close=lambda: None))
    with edge_sdk.Publisher.open("mqtt://127.0.0.1:9", outbox=tmp_path) as publisher:
        stats = publisher.stats()
    owners = {
        "Bundle": bundle,
        "Model": model,
        "Loop": loop,
        "Frame": edge_sdk.Frame.of(cell_picture(0)),
        "Event": edge_sdk.Event(kind="door opened"),
        "EventRule": edge_sdk.EventRule(labels=("red",)),
        "PublisherStats": stats,
        "EventStats": stats.events,
        "Tick": edge_sdk.Tick,
        "Session": model.session,
    }
    table = (_CHECKOUT / "docs/library.md").read_text(encoding="utf-8").partition("## Attributes")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.M)
    assert {owner for owner, _ in rows} == set(owners)
    for owner, promised in rows:
        names = [name for name in re.findall(r"`(\w+)(?:\(\))?`", promised) if name not in edge_sdk.__all__]
        assert names
        assert [name for name in names if not hasattr(owners[owner], name)] == []


@pytest.mark.long
def test_the_programs_are_typed(tmp_path: Path) -> None:
    paths = [tmp_path / f"program_{number}.py" for number in range(len(_README) + len(_LIBRARY))]
    for path, program in zip(paths, [*_README, *_LIBRARY], strict=True):
        path.write_text(program)

    def checked(*programs: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mypy", "--strict", *map(str, programs)]
        return subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    done = checked(*paths)
    assert done.returncode == 0, done.stdout + done.stderr
    paths[0].write_text("from edge_sdk import Daemon, Model\nModel.open(7)\n")
    refused = checked(paths[0])
    assert 'Module "edge_sdk" has no attribute "Daemon"' in refused.stdout
    assert 'has incompatible type "int"; expected "Bundle | str | Path"' in refused.stdout
