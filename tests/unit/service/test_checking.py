"""A run that is looked at before it runs."""

import platform
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.config.schema import ThenConfig
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.service.check import Checked, check_run
from edge_sdk.service.settings import PipelineSettings, RunSettings
from tests.support.bundles import make_manifest, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    manifest = msgspec.structs.replace(make_manifest(), machine=platform.machine())
    version = onnxruntime_version()
    span = msgspec.structs.replace(manifest.onnxruntime, minimum=version, maximum=version)
    return write_bundle(tmp_path / "a.edge", msgspec.structs.replace(manifest, onnxruntime=span))


def _check(
    *pipelines: PipelineSettings,
    mqtt: MqttSettings | None = None,
    home_assistant: HomeAssistantSettings | None = None,
    outbox: OutboxSettings | None = None,
) -> Checked:
    waiting = outbox or OutboxSettings()
    return check_run(
        RunSettings(device="pi", pipelines=pipelines, mqtt=mqtt, home_assistant=home_assistant, outbox=waiting)
    )


def _said(checked: Checked) -> list[tuple[int, str]]:
    return [(problem.exit_code, problem.text) for problem in checked.all_problems()]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("FOLDER/empty", "FOLDER/empty: no image in this folder, expected .jpg,"),
        ("FOLDER/none.mp4", "FOLDER/none.mp4: no such file or folder, expected a V4L2 index"),
        ("0097", "/dev/video97: no such device; is the camera connected?"),
        ("ftp://h/x", "ftp://h/x: this kind of URL is not supported"),
    ],
)
def test_sources(bundle: Path, tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    checked = _check(PipelineSettings(source=source.replace("FOLDER", str(tmp_path)), bundle=bundle))
    ((code, text),) = _said(checked)
    assert (code, checked.exit_code) == (1, 1)
    assert text.startswith(expected.replace("FOLDER", str(tmp_path)))


def test_a_password_without_a_user_and_a_name_that_is_no_topic(bundle: Path) -> None:
    stream = PipelineSettings(
        source="rtsp://h/x", source_password=Secret("hunter2"), bundle=bundle, camera="a/b", variant="fp64"
    )
    said = _said(_check(stream))
    assert [code for code, _ in said] == [2, 2, 2]
    assert "camera name 'a/b'" in said[0][1]
    assert "a password, but no user name" in said[1][1]
    assert "fp64" in said[2][1]
    assert "hunter2" not in str(said)


def test_events_of_labels_that_the_bundle_has_and_of_one_that_it_has_not(bundle: Path) -> None:
    rules = (EventRule(labels=("dog",)), EventRule(labels=("cat", "fox")))
    stream = PipelineSettings(source="pattern", bundle=bundle, events=rules, snapshots=SnapshotSettings(on="event"))
    checked = _check(stream, mqtt=MqttSettings(host="h", port=1, device="pi"))
    ((code, text),) = _said(checked)
    assert (code, text) == (
        2,
        "[[events]] labels: 'fox' is no label of tiny, so nothing is told of it; expected one of 'cat', 'dog'",
    )
    [pipeline] = checked.pipelines
    assert pipeline.events == ("dog", "cat", "fox")
    topics = (pipeline.event_topic, pipeline.snapshot_topic)
    assert topics == ("edge/v1/default/pi/event/camera", "edge/v1/default/pi/snapshot/camera")
    [silent] = _check(PipelineSettings(source="pattern", bundle=bundle), mqtt=MqttSettings(host="h", port=1)).pipelines
    assert str(checked.outbox).endswith("/outbox/events-default-pi.sqlite")
    assert (silent.events, silent.event_topic, silent.snapshot_topic) == ((), None, None)


def test_a_second_bundle_that_cannot_be_used_is_named(bundle: Path, cell_bundle: Path, tmp_path: Path) -> None:
    def said(first: Path, **then: Any) -> list[tuple[int, str]]:
        return _said(_check(PipelineSettings(source="pattern", bundle=first, then=ThenConfig(**then))))

    assert said(cell_bundle, bundle=bundle, labels=("red",)) == []
    for problem, expected in (
        (said(cell_bundle, bundle=tmp_path / "none.edge"), f"then.bundle: {tmp_path}/none.edge: no such bundle"),
        (said(cell_bundle, bundle=bundle, labels=("rde",)), "then.labels: 'rde' is no label of cells; did you mean"),
        (said(bundle, bundle=bundle), "then: a second model runs on the objects of a detector, and tiny is for"),
    ):
        ((code, text),) = problem
        assert (code, text[: len(expected)]) == (2, expected)


def test_a_key_that_is_missing_hides_no_bundle_that_is(tmp_path: Path, bundle: Path) -> None:
    keys = (tmp_path / "none.pub",)
    streams = [
        PipelineSettings(source="pattern", bundle=path, camera=path.stem, trusted_keys=keys)
        for path in (bundle, tmp_path / "none.edge")
    ]
    said = [text for _, text in _said(_check(*streams))]
    assert len(said) == 2
    assert "none.pub" in said[0]
    assert "none.edge: no such bundle" in said[1]


_MAKE_IT = "no such folder; make it, or mount the disk that has it"


def test_a_file_of_a_cameras_authorities_that_is_missing(bundle: Path, tmp_path: Path) -> None:
    options = tmp_path / "ca.pem"
    stream = PipelineSettings(source="rtsps://h/x", bundle=bundle, tls_ca_file=options)
    assert _said(_check(stream)) == [(2, f"{tmp_path}/ca.pem (tls_ca_file) cannot be read: No such file or directory")]


@pytest.mark.parametrize(
    ("folder", "complaint"),
    [
        ("", ""),
        ("new", ""),
        ("file", "outbox.folder: FOLDER/file is a file, name a folder"),
        ("file/new/newer", f"outbox.folder: FOLDER/file/new: {_MAKE_IT}"),
        ("unmounted", f"outbox.folder: FOLDER/unmounted: {_MAKE_IT}"),
    ],
)
def test_a_folder_in_which_events_cannot_wait(bundle: Path, tmp_path: Path, folder: str, complaint: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "unmounted").symlink_to(tmp_path / "nowhere")
    rules = (EventRule(labels=("dog",)),)
    outbox, mqtt = OutboxSettings(folder=tmp_path / folder), MqttSettings(host="h", port=1, device="pi")
    checked = _check(PipelineSettings(source="pattern", bundle=bundle, events=rules), mqtt=mqtt, outbox=outbox)
    assert _said(checked) == ([(2, complaint.replace("FOLDER", str(tmp_path)))] if complaint else [])
    assert (checked.outbox is None) is bool(complaint)
    assert not (tmp_path / "new").exists()
    without_events = _check(PipelineSettings(source="pattern", bundle=bundle), mqtt=mqtt, outbox=outbox)
    assert _said(without_events) == []


def test_a_label_for_home_assistant_that_no_bundle_has(bundle: Path, tmp_path: Path) -> None:
    home = HomeAssistantSettings(labels=("dog", "dgo", "zebra"))
    mqtt = MqttSettings(host="h", port=1, device="pi")
    stream = PipelineSettings(source="pattern", bundle=bundle)
    assert _said(_check(stream, mqtt=mqtt, home_assistant=home)) == [
        (2, "home_assistant.labels: 'dgo' is no label of a bundle here, so it has no entity; did you mean 'dog'?"),
        (
            2,
            "home_assistant.labels: 'zebra' is no label of a bundle here, so it has no entity; "
            "expected one of 'cat', 'dog'",
        ),
    ]
    unknown = PipelineSettings(source="pattern", bundle=tmp_path / "none.edge", camera="other")
    assert len(_said(_check(stream, unknown, mqtt=mqtt, home_assistant=home))) == 1  # it may have them
    taken_back = HomeAssistantSettings(labels=("zebra",), is_enabled=False)
    assert _said(_check(stream, mqtt=mqtt, home_assistant=taken_back)) == []
