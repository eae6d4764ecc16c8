"""The command: errors become one line and the family's exit code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.cli.root import run
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.publishing import Secret


def test_targets_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets"]) == 0
    assert "raspberry_pi_5        Raspberry Pi 5" in capsys.readouterr().out
    assert run(["targets", "--json"]) == 0
    assert {t["name"] for t in msgspec.json.decode(capsys.readouterr().out)} >= {"arm64", "x86_64"}


_RUN = ["run", "none.edge", "--source", "0"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["nonsense"], 2, "no verb 'nonsense'; expected one of: import,"),
        (["rum"], 2, "no verb 'rum'; did you mean run?"),
        (["sign"], 2, "Missing argument 'BUNDLE'"),
        (["sign", "none.edge", "--key", "none.key"], 2, "none.key: no such key file"),
        (["keygen", "."], 2, ".: expected the name of a file for the key"),
        (["keygen", "/"], 2, "/: expected the name of a file for the key"),
        *(
            (["run", "none.edge", "--source", "0", option, number], 2, option)
            for option in ("--latency-ms", "--duration", "--run-limit", "--cpu-share")
            for number in ("nan", "inf", "-inf", "1e308", "0", "-1", "x")
        ),
        ([*_RUN, "--latency-ms", "0.2"], 2, "--latency-ms is 0.2, expected 1 millisecond or more; was it seconds?"),
        ([*_RUN, "--cpu-share", "9999"], 2, "which this machine has; 0.5 is half a core"),
        (
            [*_RUN, "--run-limit", "5000"],
            2,
            "is 5000.0, expected 600 seconds or less; was it milliseconds?",
        ),
        ([*_RUN, "--trial-seconds", "60000"], 2, "expected 3600 seconds or less; was it milliseconds?"),
        ([*_RUN, "--trial-seconds", "-1"], 2, "--trial-seconds is -1.0, expected 0 seconds or more"),
        (["tune", "none.edge", "--latency-ms", "0.2"], 2, "--latency-ms is 0.2, expected 1 millisecond or more"),
        (["run", "none.edge", "--source", "0", "--device", "\udcff"], 2, "device name '\\udcff'"),
        (["run", "none.edge", "--source", "0", "--camera", "\udcff"], 2, "camera name '\\udcff'"),
        (["run", "none.edge", "--source", "0", "--mqtt", "mqtt://h", "--device", "\udcff"], 2, "device name"),
        (["run", "none.edge", "--source", "0", "--mqtt", "mqtt://h", "--camera", "\udcff"], 2, "camera name"),
        *(
            (["run", "none.edge", "--source", source], 2, "give --source-password-file")
            for source in ("rtsp://b:hunter2@h/x", "rtsp://b:hun/ter2@h", "http://b:hun?ter2@h", "rtsp://:hun#ter2@h")
        ),
        (["run", "none.edge", "--source", "rtsp://b@h:554/x:y"], 2, "none.edge: no such bundle"),
        (["run", "x", "--source", "0", "--source-password-file", "none"], 2, "none: the source's password cannot be"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, expected: str
) -> None:
    assert run(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-sdk: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert "ter2" not in captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: edge-sdk")
    assert all(verb in captured.out for verb in ("keygen", "sign", "targets"))
    assert captured.err == ""


def test_a_broker_password_that_is_no_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_SDK_MQTT_PASSWORD", "hun\udcffter2")
    assert run(["run", "none.edge", "--source", "0", "--mqtt", "mqtt://user@h"]) == 2
    assert capsys.readouterr().err == "edge-sdk: $EDGE_SDK_MQTT_PASSWORD: the password is not UTF-8\n"


def test_settings_do_not_show_their_passwords() -> None:
    settings = PipelineSettings(bundle=Path("b"), source="0", source_password=Secret("hunter2"))
    assert "hunter2" not in repr(settings)


def test_a_limit_of_tuning_without_tuning_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "a.edge", "--source", "0", "--cpu-share", "0.5", "--no-tune"]) == 2
    assert "--cpu-share is a limit that tuning keeps" in capsys.readouterr().err
