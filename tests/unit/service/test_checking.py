"""A run that is looked at before it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_sdk.config.schema import ThenConfig
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.service.check import Checked, check_run
from edge_sdk.service.settings import PipelineSettings, RunSettings
from tests.support.bundles import for_here, make_manifest, write_bundle

MQTT = MqttSettings(host="h", port=1, device="pi")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "a.edge", for_here(make_manifest()))


def _check(*pipelines: PipelineSettings, **others: Any) -> Checked:
    return check_run(RunSettings(device="pi", pipelines=pipelines, **others))


def _stream(bundle: Path, source: str = "pattern", **changes: Any) -> PipelineSettings:
    return PipelineSettings(source=source, bundle=bundle, **changes)


def _said(checked: Checked) -> list[tuple[int, str]]:
    return [(problem.exit_code, problem.text) for problem in checked.all_problems()]


def test_sources(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, expected in (
        (f"{tmp_path}/empty", f"{tmp_path}/empty: no image in this folder, expected .jpg,"),
        (f"{tmp_path}/none.mp4", f"{tmp_path}/none.mp4: no such file or folder, expected a V4L2 index"),
        ("0097", "/dev/video97: no such device; is the camera connected?"),
    ):
        checked = _check(_stream(bundle, source))
        ((code, text),) = _said(checked)
        assert (code, checked.exit_code, text[: len(expected)]) == (1, 1, expected)


def test_a_password_without_a_user_and_a_name_that_is_no_topic(bundle: Path) -> None:
    said = _said(_check(_stream(bundle, "rtsp://h/x", source_password=Secret("hunter2"), camera="a/b", variant="fp64")))
    for (code, text), expected in zip(said, ("camera name 'a/b'", "a password, but no user name", "fp64"), strict=True):
        assert code == 2
        assert expected in text
    assert "hunter2" not in str(said)


def test_events_of_labels_that_the_bundle_has_and_of_one_that_it_has_not(bundle: Path) -> None:
    rules = (EventRule(labels=("dog",)), EventRule(labels=("cat", "fox")))
    checked = _check(_stream(bundle, events=rules, snapshots=SnapshotSettings(on="event")), mqtt=MQTT)
    no_label = "'fox' is no label of tiny, so nothing is told of it; expected one of 'cat', 'dog'"
    assert _said(checked) == [(2, f"[[events]] labels: {no_label}")]
    [pipeline], [silent] = checked.pipelines, _check(_stream(bundle), mqtt=MQTT).pipelines
    topics = [f"edge/v1/default/pi/{kind}/camera" for kind in ("event", "snapshot")]
    assert str(checked.outbox).endswith("/outbox/events-default-pi.sqlite")
    assert [pipeline.events, pipeline.event_topic, pipeline.snapshot_topic] == [("dog", "cat", "fox"), *topics]
    assert (silent.events, silent.event_topic, silent.snapshot_topic) == ((), None, None)


def test_a_second_bundle_that_cannot_be_used_is_named(bundle: Path, cell_bundle: Path, tmp_path: Path) -> None:
    def said(first: Path, **then: Any) -> list[tuple[int, str]]:
        return _said(_check(_stream(first, then=ThenConfig(**then))))

    assert said(cell_bundle, bundle=bundle, labels=("red",)) == []
    for problem, expected in (
        (said(cell_bundle, bundle=tmp_path / "none.edge"), f"then.bundle: {tmp_path}/none.edge: no such bundle"),
        (said(cell_bundle, bundle=bundle, labels=("rde",)), "then.labels: 'rde' is no label of cells; did you mean"),
        (said(bundle, bundle=bundle), "then: a second model runs on the objects of a detector, and tiny is for"),
    ):
        assert [(code, text[: len(expected)]) for code, text in problem] == [(2, expected)]


def test_a_key_that_is_missing_hides_no_bundle_that_is(tmp_path: Path, bundle: Path) -> None:
    paths = (bundle, tmp_path / "none.edge")
    streams = [_stream(path, camera=path.stem, trusted_keys=(tmp_path / "none.pub",)) for path in paths]
    (_, key), (_, missing) = _said(_check(*streams))
    assert "none.pub" in key
    assert "none.edge: no such bundle" in missing


_MAKE_IT = "no such folder; make it, or mount the disk that has it"


def test_a_file_of_a_cameras_authorities_that_is_missing(bundle: Path, tmp_path: Path) -> None:
    said = _said(_check(_stream(bundle, "rtsps://h/x", tls_ca_file=tmp_path / "ca.pem")))
    assert said == [(2, f"{tmp_path}/ca.pem (tls_ca_file) cannot be read: No such file or directory")]


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
    outbox = OutboxSettings(folder=tmp_path / folder)
    checked = _check(_stream(bundle, events=(EventRule(labels=("dog",)),)), mqtt=MQTT, outbox=outbox)
    assert _said(checked) == ([(2, complaint.replace("FOLDER", str(tmp_path)))] if complaint else [])
    assert (checked.outbox is None) is bool(complaint)
    assert not (tmp_path / "new").exists()
    assert _said(_check(_stream(bundle), mqtt=MQTT, outbox=outbox)) == []


def test_a_label_for_home_assistant_that_no_bundle_has(bundle: Path, tmp_path: Path) -> None:
    def said(*labels: str, others: Sequence[PipelineSettings] = (), **settings: Any) -> list[tuple[int, str]]:
        home = HomeAssistantSettings(labels=labels, **settings)
        return _said(_check(_stream(bundle), *others, mqtt=MQTT, home_assistant=home))

    no_label = "is no label of a bundle here, so it has no entity;"
    assert said("dog", "dgo", "zebra") == [
        (2, f"home_assistant.labels: 'dgo' {no_label} did you mean 'dog'?"),
        (2, f"home_assistant.labels: 'zebra' {no_label} expected one of 'cat', 'dog'"),
    ]
    unknown = _stream(tmp_path / "none.edge", camera="other")
    assert len(said("zebra", others=[unknown])) == 1  # of that bundle, which may have it
    assert said("zebra", is_enabled=False) == []  # taken back
