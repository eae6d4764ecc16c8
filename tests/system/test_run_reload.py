"""SIGHUP while results go out: none is lost, none comes twice, and what did not change is left alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.signing import generate_key
from tests.support.broker import Subscriber, wait_until
from tests.support.bundles import copy_bundle, replace_bundle
from tests.support.device import (
    FILM,
    FOLDER,
    Site,
    assert_film_then_pictures,
    assert_increasing,
    assert_whole,
    write_sources,
)
from tests.support.subscribers import documents

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def site(tmp_path: Path, cell_bundle: Path, sources: Path) -> Iterator[Site]:
    site = Site(tmp_path, cell_bundle, sources)
    with site.broker, site.listener:
        yield site


def _longest_pause_s(results: list[dict[str, Any]]) -> float:
    times = [datetime.fromisoformat(result["captured_at"]).timestamp() for result in results]
    return max(after - before for before, after in itertools.pairwise(times))


@pytest.mark.smoke
def test_what_changes_takes_over_and_what_does_not_goes_on(site: Site) -> None:
    site.cameras["folder"] = {"source": site.sources / "pictures"}
    with site.running() as device:
        assert "as before: film, bars, folder" in device.reload()
        site.cameras["film"]["latency_ms"] = 700
        told = len(site.listener.messages("/state"))
        assert "changing: film; as before: bars, folder" in device.reload(site.text())
        wait_until(lambda: len(site.listener.messages("/state")) > told, "the state of who goes on with the film")
        replace_bundle(site.bundle, 2)
        assert "changing: film, bars, folder" in device.reload()
        for camera in site.cameras:
            site.wait_for_version(camera, 2)
        site.cameras["folder"]["bundle"] = copy_bundle(site.bundle, site.folder / "other.edge", 3)
        assert "changing: folder; as before: film, bars" in device.reload(site.text())
        site.wait_for_version("folder", 3)
        site.cameras["yard"] = {"source": "pattern:320x240@10"}
        assert "new: yard; as before: film, bars, folder" in device.reload(site.text())
        site.wait_for_more("yard")
        site.wait_for_cameras("bars", "film", "folder", "yard")
        del site.cameras["yard"]
        assert "ending: yard; as before: film, bars, folder" in device.reload(site.text())
        site.wait_for_cameras("bars", "film", "folder")
        site.stop(device)
    assert_whole(site.results("film"), FILM)
    assert_whole(site.results("folder"), FOLDER)
    assert (site.versions("film"), site.versions("folder"), site.versions("bars")) == ([1, 2], [1, 2, 3], [1, 2])
    assert_increasing(site.results("bars"))
    assert_increasing(site.results("yard"))
    assert _longest_pause_s(site.results("bars")) < 5  # only a guard: a model loads and is tried meanwhile


def test_another_name_and_another_source(site: Site) -> None:
    with site.running() as device:
        site.cameras["lines"] = site.cameras.pop("bars")
        assert "ending: bars; new: lines; as before: film" in device.reload(site.text())
        site.wait_for_more("lines")
        site.wait_for_cameras("film", "lines")
        ended = len(site.results("bars"))
        site.cameras["film"] = {"source": site.sources / "pictures"}
        assert "changing: film; as before: lines" in device.reload(site.text())
        device.hear("pictures is open")
        site.wait_for_more("film")
        site.stop(device)
    assert len(site.results("bars")) == ended
    for camera in ("bars", "film", "lines"):
        assert_increasing(site.results(camera))
    assert_film_then_pictures(site.results("film"))


def test_another_name_of_the_device(site: Site) -> None:
    with site.running() as device:
        site.name = "pi-2"
        assert "all streams change" in device.reload(site.text())
        wait_until(lambda: bool(site.listener.messages("/pi-2/result/film")), "results of the new name")
        site.wait_for_more("bars")
        assert device.stop() == 0, device.said
    for name in ("pi", "pi-2"):
        said = [d["status"] for d in documents(site.listener.messages(f"/{name}/status"))]
        assert (said.count("offline"), said[-1]) == (1, "offline")
    assert_whole(site.results("film"), FILM)
    assert_increasing(site.results("bars"))


def test_another_broker_gets_what_one_that_is_gone_did_not(site: Site) -> None:
    site.cameras["film"] = {"source": "pattern:320x240@10"}  # nothing overflows while there is no broker
    with site.running() as device:
        gone = {camera: site.results(camera) for camera in site.cameras}
        site.broker.kill()
        device.hear("connection lost")
        time.sleep(0.5)
        other = site.another_broker("other")
        site.mqtt["url"] = other.url
        reloaded_at = datetime.now(timezone.utc)
        with other, Subscriber(other) as site.listener:
            assert "all streams change" in device.reload(site.text())
            for camera in site.cameras:
                site.wait_for_more(camera, 20)
            site.stop(device)
            for camera in site.cameras:
                results = site.results(camera)
                assert_increasing(results)
                assert results[0]["seq"] > gone[camera][-1]["seq"]
                assert datetime.fromisoformat(results[0]["captured_at"]) < reloaded_at


def test_numbers_go_on_where_the_connection_and_the_source_are_others(site: Site) -> None:
    with site.running() as device:
        site.cameras["film"] = {"source": site.sources / "pictures"}
        site.cameras["yard"] = site.cameras.pop("bars")
        site.mqtt["qos"] = 1
        assert "all streams change" in device.reload(site.text())
        device.hear("pictures is open")
        site.wait_for_more("film")
        site.wait_for_cameras("film", "yard")
        assert device.stop() == 0
    assert len({result["run_id"] for camera in ("film", "bars", "yard") for result in site.results(camera)}) == 1
    assert_film_then_pictures(site.results("film"))


def _broken(site: Site) -> Iterator[tuple[str, str]]:
    """A file, and what the journal says of it."""
    good = site.text()
    yield good + "[[[", "the configuration is not taken, what runs goes on"
    yield good + "colour = 3\n", "not taken, what runs goes on"
    yield good + '[[pipelines]]\nname = "film"\nsource = "pattern"\n', "not taken, what runs goes on"
    runs_on = "film: the new settings cannot run, what ran goes on: "
    film = dict(site.cameras["film"])
    site.cameras["film"] = {**film, "bundle": site.folder / "none.edge"}
    yield site.text(), runs_on
    altered = copy_bundle(site.bundle, site.folder / "altered.edge", 2)
    (altered / "labels.txt").write_text("cat\n")
    site.cameras["film"]["bundle"] = altered
    yield site.text(), runs_on
    site.mqtt["url"] = "mqtt://127.0.0.1:1"
    yield site.text(), "not taken, what runs goes on"
    site.cameras["film"], site.mqtt["url"] = film, site.broker.url
    site.keys = [generate_key(site.folder / "other.key")]
    yield site.text(), runs_on
    site.keys = [site.folder / "none.pub"]
    yield site.text(), runs_on
    site.keys = []


def test_what_cannot_run_is_said_and_what_ran_goes_on(site: Site) -> None:
    with site.running() as device:
        said = len(site.statuses())
        for text, expected in _broken(site):
            already = len(device.lines_with(expected))
            device.reload(text)
            device.hear(expected, count=already + 1)
            for camera in site.cameras:
                site.wait_for_more(camera)
        assert len(site.statuses()) == said
        replace_bundle(site.bundle, 2)
        device.reload(site.text())
        site.wait_for_version("film", 2)
        site.wait_for_version("bars", 2)
        site.stop(device)
    assert_whole(site.results("film"), FILM)
    assert_increasing(site.results("bars"))


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.4])
def test_ten_in_a_row(site: Site, pause_s: float) -> None:
    bundles = [copy_bundle(site.bundle, site.folder / f"{number}.edge", number) for number in (2, 3)]
    with site.running() as device:
        for number in range(10):
            site.cameras["film"]["bundle"] = bundles[number % 2]
            device.ask_to_reload(site.text())
            time.sleep(pause_s)
        site.wait_for_version("film", 3)
        device.reload()
        site.wait_for_more("film", 200)
        assert site.versions("film")[-1] == 3
        site.stop(device)
    assert_whole(site.results("film"), FILM)
    assert_increasing(site.results("bars"))
    assert site.versions("bars") == [1]


@pytest.mark.parametrize("after", ["no trusted key", "is open"])
def test_during_the_start(site: Site, after: str) -> None:
    with site.start() as device:
        device.hear(after)  # the first bundle is tried, or the second's
        replace_bundle(site.bundle, 2)
        site.cameras["yard"] = site.cameras.pop("bars")
        device.reload(site.text())
        site.wait_for_version("film", 2)
        site.wait_for_version("yard", 2)
        site.wait_for_cameras("film", "yard")
        site.stop(device)
    assert_whole(site.results("film"), FILM)
    assert_increasing(site.results("yard"))


@pytest.mark.parametrize("what", ["nothing", "bundle", "device"])
@pytest.mark.parametrize("pause_s", [0.0, 0.15])
def test_the_end_right_after(site: Site, what: str, pause_s: float) -> None:
    with site.running() as device:
        if what == "bundle":
            replace_bundle(site.bundle, 2)
        elif what == "device":
            site.name = "pi-2"
        device.ask_to_reload(site.text())
        time.sleep(pause_s)
        assert device.stop() == 0, device.said
        wait_until(lambda: site.statuses()[-1][0] == "offline", "the goodbye")
    assert_whole(site.results("film"), FILM)
    assert_increasing(site.results("bars"))


def test_other_names_of_the_device_in_the_midst_of_other_changes(site: Site) -> None:
    """The film goes on from hand to hand, those that never come to run a frame of it between them."""
    bundles = [copy_bundle(site.bundle, site.folder / f"{number}.edge", number) for number in (2, 3)]
    with site.running() as device:
        for number in range(10):
            site.cameras["film"]["bundle"] = bundles[number % 2]
            site.name = f"pi-{number // 2 % 2}"
            device.reload(site.text())
            time.sleep(number % 3 * 0.3)
        wait_until(lambda: bool(site.listener.messages("/pi-0/result/film")), "results of the last name")
        site.wait_for_version("film", 3)
        assert device.stop() == 0, device.said
    assert_whole(site.results("film"), FILM)


@pytest.mark.long
def test_thirty_leave_nothing(site: Site) -> None:
    """No thread, no descriptor: of cameras that come and go, of bundles and names that change."""
    bundle = copy_bundle(site.bundle, site.folder / "other.edge", 2)
    site.cameras["film"] = {"source": "pattern:320x240@30"}  # the machine has no rest beside the film
    site.defaults["latency_ms"] = 5000  # no second model is loaded beside one that is late
    with site.running() as device:

        def change(number: int) -> None:
            site.cameras.pop("yard", None)
            if number % 3 == 1:
                site.cameras["yard"] = {"source": "pattern:320x240@30"}
            site.cameras["film"]["bundle"] = bundle if number % 2 else site.bundle
            site.cameras["bars"]["latency_ms"] = 6000 + number
            site.name = "pi-2" if number % 6 > 3 else "pi"
            device.reload(site.text())
            time.sleep(0.2)  # some changes come in the midst of another
            for camera in site.cameras:
                site.wait_for_more(camera, 2)

        for number in range(7):
            change(number)
        time.sleep(1)
        threads, descriptors = device.threads(), device.descriptors()
        for number in range(7, 31):
            change(number)
        wait_until(lambda: device.threads() <= threads, f"{threads} threads again, not {device.threads()}")
        wait_until(lambda: device.descriptors() <= descriptors, f"{descriptors} files open again")
        assert device.stop() == 0, device.said
    for camera in site.cameras:
        assert_increasing(site.results(camera))


def test_what_is_said_of_a_camera_that_never_ran_goes_with_it(site: Site) -> None:
    def warned() -> dict[str, str]:
        warnings: dict[str, str] = documents(site.listener.messages("/state"))[-1].get("warnings", {})
        return warnings

    with site.running() as device:
        site.cameras["yard"] = {"source": "pattern", "bundle": site.folder / "none.edge"}
        device.reload(site.text())
        wait_until(lambda: "none.edge" in warned().get("camera/yard", ""), "a warning")
        del site.cameras["yard"]
        device.reload(site.text())
        wait_until(lambda: "camera/yard" not in warned(), "an end of the warning")
        site.stop(device)
