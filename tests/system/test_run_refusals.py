"""`edge-sdk run` says no: bundles, keys, sources, names and passwords, each in one line with its exit code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.cli.root import run
from tests.support.broker import Broker, free_port
from tests.support.bundles import edit_manifest
from tests.support.program import edge_sdk, start_edge_sdk
from tests.support.requester import Requester, running, write_config

pytestmark = pytest.mark.system


def test_a_wrong_password_is_said_in_one_line_without_the_password(
    cell_bundle: Path, video: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong-secret\n")
    with Broker(tmp_path, users={"gate": "right"}) as broker:
        url = broker.url.replace("mqtt://", "mqtt://gate@")
        done = edge_sdk(
            *("run", cell_bundle, "--source", video, "--duration", 2, "--mqtt", url, "--mqtt-password-file", secret),
        )
    assert done.returncode == 1  # none of the results got through
    assert "refused" in done.stderr
    assert "wrong-secret" not in done.stderr + done.stdout


def test_a_trusted_key_is_demanded_where_it_is_given(cell_bundle: Path, cell_pictures: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "signed.edge"
    shutil.copytree(cell_bundle, bundle)
    assert run(["keygen", str(tmp_path / "k")]) == 0
    command = ("run", bundle, "--source", cell_pictures, "--trust", tmp_path / "k.pub")
    refused = edge_sdk(*command)
    assert refused.returncode == 7
    assert "not signed" in refused.stderr
    assert run(["sign", str(bundle), "--key", str(tmp_path / "k")]) == 0
    accepted = edge_sdk(*command)
    assert accepted.returncode == 0
    assert "warning" not in accepted.stderr


def test_a_second_program_of_one_device_is_refused_and_the_first_goes_on(
    cell_bundle: Path, tmp_path: Path, broker: Broker
) -> None:
    path = write_config(tmp_path / "config.toml", broker, cell_bundle)
    with start_edge_sdk("run", "--config", path) as first, Requester(broker) as requester:
        requester.wait_results()
        refused = edge_sdk("run", "--config", path)
        assert refused.returncode == 1
        assert f"another program (process {first.pid}) publishes as device 'pi'" in refused.stderr
        requester.wait_results(5)
        first.kill()  # as a crash does
    with running(path), Requester(broker) as requester:
        requester.wait_results()


def _flip_model(bundle: Path) -> None:
    path = bundle / "model.int8.ort"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "exit_code", "expected"),
    [
        (_flip_model, 7, "model.int8.ort: altered"),
        (lambda b: (b / "labels.txt").unlink(), 7, "labels.txt is missing"),
        (lambda b: (b / "more.txt").write_text("x"), 7, "more.txt is not named by the manifest"),
        (lambda b: edit_manifest(b, schema_version=9), 7, "schema_version is 9, expected 1; update edge-sdk"),
        (
            lambda b: edit_manifest(b, onnxruntime={"minimum": "0.1", "maximum": "0.9"}),
            6,
            "proved with ONNX Runtime 0.1 to 0.9, found",
        ),
        (lambda b: edit_manifest(b, machine="aarch64" if os.uname().machine == "x86_64" else "x86_64"), 6, "built for"),
    ],
)
def test_a_bundle_that_does_not_keep_its_promise_is_refused(
    cell_bundle: Path,
    cell_pictures: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    exit_code: int,
    expected: str,
) -> None:
    bundle = tmp_path / "damaged.edge"
    shutil.copytree(cell_bundle, bundle)
    damage(bundle)
    done = edge_sdk("run", bundle, "--source", cell_pictures, "--quiet")
    assert done.returncode == exit_code
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("source", "exit_code", "expected"),
    [
        ("nowhere.mp4", 1, "nowhere.mp4"),
        ("97", 1, "/dev/video97"),
        ("rtsp://admin:hunter2@127.0.0.1/stream", 2, "give --source-password-file"),
    ],
)
def test_sources_that_do_not_open(cell_bundle: Path, source: str, exit_code: int, expected: str) -> None:
    done = edge_sdk("run", cell_bundle, "--source", source, "--quiet")
    assert done.returncode == exit_code
    assert expected in done.stderr
    assert "hunter2" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_name_that_cannot_be_a_topic_is_refused_at_once(cell_bundle: Path, cell_pictures: Path) -> None:
    broker = f"mqtt://127.0.0.1:{free_port()}"
    for option in ("--camera", "--device"):
        done = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", broker, option, "a/b", "--quiet")
        assert done.returncode == 2
        assert "a/b" in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_source_is_never_overwritten_by_its_annotation(cell_bundle: Path, video: Path) -> None:
    mp4 = video.rename(video.with_suffix(".mp4"))
    before = mp4.read_bytes()
    done = edge_sdk("run", cell_bundle, "--source", mp4, "--annotate", mp4, "--quiet")
    assert done.returncode == 2
    assert "exists already; choose another name" in done.stderr
    assert mp4.read_bytes() == before


def test_a_password_in_the_broker_url_is_refused(cell_bundle: Path, cell_pictures: Path) -> None:
    done = edge_sdk("run", cell_bundle, "--source", cell_pictures, "--mqtt", "mqtt://gate:hunter2@127.0.0.1")
    assert done.returncode == 2
    assert "--mqtt-password-file" in done.stderr
    assert "hunter2" not in done.stderr
