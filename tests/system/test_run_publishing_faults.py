"""`edge-sdk run` through an ACL, a limit, certificates, a full disk and want of descriptors: what it says, and the end.

What is lost, and what is not, is looked at by the numbers of its events.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.configs import Table
from tests.support.device import Device, full_disk, own_folders, write_blinking_config
from tests.support.faults import Fault, expired_certificate, wrong_authority
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system


def _events(subscriber: Subscriber) -> list[dict[str, Any]]:
    return [msgspec.json.decode(message.payload) for message in subscriber.messages("event/gate")]


def _are_whole(subscriber: Subscriber) -> bool:
    """Whether no event is missing between the first and the last."""
    seqs = list(dict.fromkeys(event["seq"] for event in _events(subscriber)))
    return seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_an_acl_that_allows_too_little(cell_bundle: Path, blinking_video: Path, tmp_path: Path) -> None:
    ours = "edge/v1/default/pi"
    acl = ["topic read #", f"topic readwrite {ours}/status", f"topic readwrite {ours}/state"]
    with Broker(tmp_path, acl=acl) as broker, Subscriber(broker) as subscriber:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "publish.results": {"qos": 1}}
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, **tables)
        with Device(config, environment=own_folders(tmp_path)) as device:
            device.hear(
                f"did not take a message on {ours}/result/gate: Not authorized; its ACL must let this device write "
                f"below {ours}/"
            )
            device.hear(
                "warning: broker 127.0.0.1",
                f"the broker does not take events of {ours}/event/gate: Not authorized",
                "they wait and are tried again, allow this device to write it in the broker's ACL",
            )
            (tmp_path / "acl").write_text("topic readwrite #\n")
            os.kill(broker.pid, signal.SIGHUP)
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) > 2, "results")
            assert len(device.lines_with("did not take a message on")) == 1
            assert device.stop() == 0
        assert _are_whole(subscriber)


def test_a_run_of_which_the_broker_took_nothing_fails(cell_bundle: Path, tmp_path: Path) -> None:
    acl = ["topic readwrite edge/v1/default/pi/status", "topic readwrite edge/v1/default/pi/state"]
    with Broker(tmp_path, acl=acl) as broker:
        run = ("run", cell_bundle, "--source", "pattern:320x240@20", "--mqtt", broker.url, "--device", "pi")
        done = edge_sdk(*run, "--no-tune", "--frames", 5, "--best-effort", "--mqtt-qos", 1)
        assert done.returncode == 1, done.stderr
        assert "edge-sdk: 5 of 5 results did not reach the broker; the broker did not take a message on " in done.stderr


def test_a_picture_above_the_brokers_limit(cell_bundle: Path, blinking_video: Path, tmp_path: Path) -> None:
    with Broker(tmp_path, config=["max_packet_size 2000"]) as broker, Subscriber(broker) as subscriber:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "publish.snapshots": {"on": "event", "quality": 95}}
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, **tables)
        with Device(config, environment=own_folders(tmp_path)) as device:
            device.hear("warning: ", "a message (snapshot) of ", "raise that there (max_packet_size)")
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            file = tmp_path / "mosquitto.conf"
            file.write_text(file.read_text().replace("max_packet_size 2000", "max_packet_size 200000"))
            broker.restart()
            subscriber.wait_for(lambda _: bool(subscriber.messages("snapshot/gate")), "a picture")
            assert len(device.lines_with("a message (snapshot) of ")) == 1
            assert device.stop() == 0


@pytest.mark.parametrize("fault_in", [wrong_authority, expired_certificate])
def test_a_broker_that_is_not_trusted(
    cell_bundle: Path,
    blinking_video: Path,
    tmp_path: Path,
    fault_in: Callable[[Path], AbstractContextManager[Fault]],
) -> None:
    """It is asked again after a minute at most; that it works again then is in test_publishing_faults."""
    with fault_in(tmp_path) as fault:
        assert fault.config is not None
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, mqtt=fault.config)
        with Device(config, environment=own_folders(tmp_path)) as device:
            device.hear("broker localhost:", ": not connected: ", fault.said, "trying again")
            assert device.stop() == 0


def test_a_full_disk_for_events(cell_bundle: Path, blinking_video: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with Broker(tmp_path, start=False) as broker:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "outbox": {"folder": disk / "events"}}
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, **tables)
        with (
            full_disk(disk) as mounts,
            Device(config, before=mounts.within, environment=own_folders(tmp_path)) as device,
        ):
            device.hear("warning: events wait in memory only: ", "; free some space on this disk")
            mounts.path(disk / "fill").unlink()
            device.hear("over: events wait in memory only: ")
            device.process.kill()  # now they are on disk
            device.end()
            broker.start()
            with (
                Subscriber(broker) as subscriber,
                Device(config, before=mounts.within, environment=own_folders(tmp_path)) as after,
            ):
                subscriber.wait_for(lambda _: len(_runs(subscriber)) == 2, "events of both")
                assert after.stop() == 0
                first_run = [event for event in _events(subscriber) if event["run_id"] == _runs(subscriber)[0]]
        assert len(device.lines_with("events wait in memory only")) == 2
    seqs = list(dict.fromkeys(event["seq"] for event in first_run))
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert len(seqs) > 2


def _runs(subscriber: Subscriber) -> list[str]:
    return list(dict.fromkeys(event["run_id"] for event in _events(subscriber)))


def test_events_while_no_descriptor_is_left(cell_bundle: Path, blinking_video: Path, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Subscriber(broker) as subscriber:
        config = write_blinking_config(tmp_path, cell_bundle, blinking_video, mqtt={"url": broker.url})
        with Device(config, environment=own_folders(tmp_path)) as device:
            subscriber.wait_for(lambda _: len(_events(subscriber)) > 2, "events")
            device.limit_files(3)
            broker.stop()
            device.hear("not reachable (Too many open files; let this process open more: LimitNOFILE=", "trying again")
            before = len(_events(subscriber))
            broker.start()
            device.hear("files that this process may open are open", "raise it (LimitNOFILE= of the unit, or prlimit")
            device.limit_files(1000)
            subscriber.wait_for(lambda _: len(_events(subscriber)) > before + 8, "events of meanwhile")
            assert device.stop() == 0
        wait_until(lambda: _are_whole(subscriber), "all events")
