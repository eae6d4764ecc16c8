"""The configuration file: what it says becomes what a daemon runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.config import PASSWORD_KEYS, Config, Defaults, PipelineConfig, read_config
from edge_sdk.daemon.configured import run_settings_of
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.errors import ConfigError
from edge_sdk.publishing import default_device
from edge_sdk.source_options import SourceOptions
from tests.device.configs import STREAM, write_config


def _settings(folder: Path, text: str = STREAM) -> RunSettings:
    return run_settings_of(read_config(write_config(folder, text)))


def test_what_is_not_said_is_as_the_daemon_has_it(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    stream = PipelineSettings(camera="gate", source="0", bundle=tmp_path / "a.edge")
    assert settings == RunSettings(device=default_device(), pipelines=(stream,), waits=True)


def test_what_is_said_becomes_a_setting(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    settings = _settings(
        tmp_path,
        """
        [device]
        name = "pi"
        site = "home"
        [mqtt]
        url = "mqtts://edge@broker:1234"
        password_file = "pw"
        ca_file = "ca.pem"
        prefix = "x/y"
        qos = 1
        protocol = "3.1.1"
        [trust]
        keys = ["a.pub", "/b.pub"]
        [[pipelines]]
        name = "gate"
        source = "rtsp://viewer@h/x"
        password_file = "pw"
        size_wh = [640, 480]
        fps = 15
        pixel_format = "YUYV"
        transport = "udp"
        bundle = "/b.edge"
        latency_ms = 200
        variant = "int8"
        cpu_share = 0.5
        tune = true
        best_effort = true
        run_limit_s = 10
        trial_s = 0
        every_frame = true
        """,
    )
    mqtt, (stream,) = settings.mqtt, settings.pipelines
    assert settings.device == "pi"
    assert mqtt is not None
    assert mqtt.password is not None
    assert (mqtt.host, mqtt.port, mqtt.tls, mqtt.username, mqtt.password.reveal()) == (
        *("broker", 1234, True, "edge", "hunter2"),
    )
    assert (mqtt.ca_file, mqtt.qos, mqtt.protocol) == (tmp_path / "ca.pem", 1, "3.1.1")
    assert mqtt.topics.result("gate") == "x/y/home/pi/result/gate"
    assert stream.source_password is not None
    assert stream.source_password.reveal() == "hunter2"
    assert msgspec.structs.replace(stream, source_password=None) == PipelineSettings(
        camera="gate",
        source="rtsp://viewer@h/x",
        source_options=SourceOptions(size_wh=(640, 480), fps=15, pixel_format="YUYV", transport="udp"),
        bundle=Path("/b.edge"),
        trusted_keys=(tmp_path / "a.pub", Path("/b.pub")),
        latency_ms=200,
        variant="int8",
        cpu_share=0.5,
        best_effort=True,
        run_limit_s=10,
        trial_s=0,
        every_frame=True,
    )
    assert "hunter2" not in repr(settings)


def test_every_setting_has_a_key_and_every_key_a_setting() -> None:
    keys = {*PipelineConfig.__struct_fields__} - {*PASSWORD_KEYS} - {"name"}
    settings = {*PipelineSettings.__struct_fields__, *SourceOptions.__struct_fields__}
    # A test run's own, the file's as a whole, and what has another name there.
    of_the_whole = {"trusted_keys", "events", "snapshots"}
    assert settings - keys == {"frames", "annotate", "source_options", "source_password", "camera", *of_the_whole}
    assert keys - settings == set()


def test_defaults_are_for_streams_that_say_nothing_else(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        """
        [defaults]
        bundle = "d.edge"
        size_wh = [640, 480]
        tune = false
        fps = 5
        [[pipelines]]
        name = "a"
        source = "0"
        [[pipelines]]
        name = "A"  # another topic
        source = "1"
        bundle = "a.edge"
        size_wh = [320, 240]
        tune = true
        """,
    )
    first, second = settings.pipelines
    assert (first.bundle, first.tune, first.source_options) == (
        *(tmp_path / "d.edge", False, SourceOptions(size_wh=(640, 480), fps=5)),
    )
    assert (second.bundle, second.tune, second.source_options) == (
        *(tmp_path / "a.edge", True, SourceOptions(size_wh=(320, 240), fps=5)),
    )


@pytest.mark.parametrize(
    ("source", "timeout_s", "keys"),
    [
        ("0", None, "fps = 0.5"),
        ("/dev/video0", "6", "fps = 0.2"),
        ("picamera2", None, "fps = 0.2\nread_timeout_s = 6"),
        ("pattern:@5", None, "fps = 0.2"),
        ("rtsp://h/x", None, "fps = 0.2"),
        ("walk.mp4", None, "fps = 0.2"),
    ],
)
def test_slow_rates_that_a_source_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, timeout_s: str | None, keys: str
) -> None:
    if timeout_s is None:
        monkeypatch.delenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", timeout_s)
    read_config(write_config(tmp_path, STREAM.replace('"0"', f'"{source}"') + keys + "\n"))


def test_a_limit_of_tuning_by_default_is_refused_for_a_stream_that_does_not_tune(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[defaults]\ncpu_share = 0.5\n" + STREAM + "tune = false\n")
    with pytest.raises(ConfigError, match="cpu_share is a limit that tuning keeps"):
        read_config(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("0", "0"),
        ("/dev/video0", "/dev/video0"),
        ("rtsp://h/x", "rtsp://h/x"),
        ("clips/a.mp4", "FOLDER/clips/a.mp4"),
        ("../pictures", "FOLDER/../pictures"),
    ],
)
def test_files_are_relative_to_the_configuration(tmp_path: Path, source: str, expected: str) -> None:
    settings = _settings(tmp_path, STREAM.replace('"0"', f'"{source}"'))
    assert settings.pipelines[0].source == expected.replace("FOLDER", str(tmp_path))


def test_marks_and_line_ends_of_other_systems_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + f"version = 1\n{STREAM}".replace("\n", "\r\n").encode())
    assert read_config(path).pipelines[0].name == "gate"


def test_what_a_file_does_not_say_can_be_told_from_what_it_says(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, "[defaults]\ntune = false\n" + STREAM))
    assert isinstance(config, Config)
    assert config.defaults == Defaults(tune=False)
    assert config.pipelines[0].tune is False
    assert config.pipelines[0].fps is msgspec.UNSET
