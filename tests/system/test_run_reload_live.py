"""SIGHUP at live cameras: each frame that their sources handed out, over all reloads, has its result at the broker."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
import pytest

from edge_sdk.daemon.summary import RunSummary
from tests.support.bundles import copy_bundle
from tests.support.device import Site, assert_increasing
from tests.support.streams import rtsp_server

pytestmark = pytest.mark.system

RELOADS = 20


def test_twenty_at_the_full_rate_of_live_cameras_lose_no_result(tmp_path: Path, cell_bundle: Path) -> None:
    rng = random.Random(5)
    site = Site(tmp_path, cell_bundle, tmp_path)
    bundles = [site.bundle, copy_bundle(site.bundle, tmp_path / "other.edge", 2)]
    site.defaults["latency_ms"] = 5000
    with rtsp_server() as server, site.broker, site.listener:
        site.mqtt["qos"] = 1
        site.cameras = {"door": {"source": server.url()}, "bars": {"source": "pattern:320x240@30"}}
        with site.running("--json") as device:
            for number in range(RELOADS):
                site.cameras["door"]["bundle"] = site.cameras["bars"]["bundle"] = bundles[(number + 1) % 2]
                device.reload(site.text())
                if number < RELOADS / 2:
                    for camera in site.cameras:
                        site.wait_for_version(camera, (number + 1) % 2 + 1)
                else:
                    time.sleep(rng.uniform(0, 0.4))  # some come in the midst of another
            for camera in site.cameras:
                site.wait_for_more(camera, 20)
            site.stop(device)
        summaries = {s.camera: s for s in (msgspec.json.decode(line, type=RunSummary) for line in device.printed)}
        for camera in site.cameras:
            results, summary = site.results(camera), summaries[camera]
            assert_increasing(results)
            assert summary.delivery is not None
            assert summary.delivery.put == summary.delivery.acknowledged == len(results)
            # The source went from hand to hand, and counted: none of its frames was too old for five seconds.
            assert summary.source.delivered == len(results)
            assert len(site.versions(camera)) >= RELOADS / 2
