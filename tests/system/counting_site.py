"""A device whose cameras count, its broker, and whoever listens there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.device.configs import config_text, write_config
from tests.system.broker import Broker, Subscriber, wait_until
from tests.system.bundles import copy_bundle
from tests.system.counted import counted_in, write_counted_folder, write_counted_video
from tests.system.device import Device, own_folders
from tests.system.publishers import documents

FILM, FOLDER = 240, 40
"""Frames of the film, pictures of the folder; both begin again."""


def write_sources(folder: Path) -> Path:
    """The film and the pictures."""
    write_counted_video(folder / "film.avi", FILM)
    write_counted_folder(folder / "pictures", FOLDER)
    return folder


class Site:
    """A device, its broker, whoever listens there, and what the configuration says.

    Args:
        folder: for everything.
        bundle: is copied.
        sources: where film and pictures are.
    """

    def __init__(self, folder: Path, bundle: Path, sources: Path) -> None:
        self.folder, self.sources = folder, sources
        self.bundle = copy_bundle(bundle, folder / "cells.edge", 1)
        self.broker = self.another_broker("broker")
        self.listener = Subscriber(self.broker)
        self.name, self.keys = "pi", list[Path]()
        self.mqtt: dict[str, object] = {"url": self.broker.url}
        self.defaults: dict[str, object] = {"bundle": self.bundle, "tune": False, "repeat": True}
        self.cameras: dict[str, dict[str, object]] = {
            "film": {"source": sources / "film.avi", "every_frame": True},
            "bars": {"source": "pattern:320x240@20"},
        }

    def another_broker(self, name: str) -> Broker:
        (self.folder / name).mkdir()
        return Broker(self.folder / name, config=["max_queued_messages 0"])

    def text(self) -> str:
        """Of the configuration."""
        trust = {"keys": self.keys} if self.keys else None
        return config_text(
            self.cameras, device={"name": self.name}, mqtt=self.mqtt, trust=trust, defaults=self.defaults
        )

    def start(self, *arguments: str) -> Device:
        """The device, as it begins."""
        return Device(write_config(self.folder, self.text()), *arguments, environment=own_folders(self.folder))

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Device]:
        """The device, once all cameras have results."""
        with self.start(*arguments) as device:
            for camera in self.cameras:
                self.wait_for_more(camera)
            self.wait_for_cameras(*self.cameras)
            yield device

    def results(self, camera: str) -> list[dict[str, Any]]:
        return documents(self.listener.messages(f"/result/{camera}"))

    def versions(self, camera: str) -> list[int]:
        """Of the bundles that answered for it, in turn."""
        return [version for version, _ in itertools.groupby(r["model"]["version"] for r in self.results(camera))]

    def statuses(self) -> list[tuple[str, list[str]]]:
        """What the device said of itself, and of which cameras."""
        return [(d["status"], sorted(d.get("cameras", ()))) for d in documents(self.listener.messages("/status"))]

    def wait_for_more(self, camera: str, count: int = 5) -> None:
        before = len(self.results(camera))
        wait_until(lambda: len(self.results(camera)) >= before + count, f"results of {camera}")

    def wait_for_version(self, camera: str, version: int) -> None:
        wait_until(lambda: self.versions(camera)[-1:] == [version], f"version {version} of {camera}")

    def wait_for_cameras(self, *cameras: str) -> None:
        """In what the device says of itself, and of them."""

        def are_there() -> bool:
            states = documents(self.listener.messages("/state"))
            return self.statuses()[-1] == ("online", sorted(cameras)) and set(states[-1]["cameras"]) == set(cameras)

        wait_until(are_there, f"{cameras} in status and state; {self.statuses()[-1]}")

    def stop(self, device: Device) -> None:
        """As a service manager does; the device says goodbye, once."""
        assert device.stop() == 0, device.said
        wait_until(lambda: self.statuses()[-1][0] == "offline", "the goodbye")
        assert [status for status, _ in self.statuses()].count("offline") == 1
        assert not device.lines_with("Traceback")


def assert_increasing(results: list[dict[str, Any]]) -> None:
    numbers = [result["seq"] for result in results]
    assert numbers == sorted(set(numbers))


def assert_whole(results: list[dict[str, Any]], length: int) -> None:
    """Every frame of a source has its one result, and the result is of that frame."""
    assert [result["seq"] for result in results] == list(range(len(results)))
    assert [counted_in(result) for result in results] == [number % length for number in range(len(results))]


def assert_film_then_pictures(results: list[dict[str, Any]]) -> None:
    """Numbers go on where another source counts from 0; all of both are there."""
    assert [result["seq"] for result in results] == list(range(len(results)))
    counted = [counted_in(result) for result in results]
    change = next(i for i in range(1, len(counted)) if counted[i] == 0 and counted[i - 1] != FILM - 1)
    assert counted[:change] == [number % FILM for number in range(change)]
    assert counted[change:] == [number % FOLDER for number in range(len(counted) - change)]
