"""A whole run over TLS with passwords and a private key: nothing of them is anywhere that somebody looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.support.broker import WAIT_S, Subscriber, TlsBroker, wait_until
from tests.support.certificates import Authority
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system

_MQTT_WORD, _KEY_WORD = "hunter2-of-mqtt", "swordfish-of-the-key"


class _Site(NamedTuple):
    broker: TlsBroker
    config: Path
    key_file: Path
    devices: Authority


def _site(folder: Path, bundle: Path, days: tuple[float, float] = (-1, 9)) -> _Site:
    devices = Authority(folder, "devices")
    issued = devices.issue("home/pi", password=_KEY_WORD, days=days)
    (folder / "broker").mkdir()
    broker = TlsBroker(folder / "broker", users={"home/pi": _MQTT_WORD, "eye": "w"}, clients_of=devices)
    for name, word in (("mqtt.password", _MQTT_WORD), ("key.password", _KEY_WORD)):
        (folder / name).write_text(word + "\n")
        (folder / name).chmod(0o600)
    config = folder / "config.toml"
    config.write_text(
        f"""version = 1
[device]
name = "pi"
site = "home"
[mqtt]
url = "mqtts://home%2Fpi@localhost:{broker.tls_port}"
password_file = "mqtt.password"
ca_file = "{broker.authority.file}"
cert_file = "{issued.cert_file}"
key_file = "{issued.key_file}"
key_password_file = "key.password"
qos = 1
[[pipelines]]
name = "gate"
source = "pattern:128x128@20"
bundle = "{bundle}"
tune = false
"""
    )
    return _Site(broker, config, issued.key_file, devices)


def _leaks(text: str, key_file: Path) -> list[str]:
    key_lines = [line for line in key_file.read_text().splitlines() if "PRIVATE KEY" not in line]
    return [secret for secret in (_MQTT_WORD, _KEY_WORD, *key_lines) if secret in text]


def test_no_secret_is_in_messages_lines_process_list_or_state(cell_bundle: Path, tmp_path: Path) -> None:
    site = _site(tmp_path, cell_bundle)
    command = [sys.executable, "-m", "edge_sdk", "run", "--config", str(site.config), "--json"]
    with site.broker as broker, Subscriber(broker, username="eye", password="w") as subscriber:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                subscriber.wait_for(lambda _: len(subscriber.messages("/result/gate")) > 5, "results")
                wait_until(lambda: "client_certificate" in _state(subscriber), "the warning")
                seen = (
                    Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
                )
            finally:
                process.terminate()
            out, err = process.communicate(timeout=WAIT_S)
        received = "".join(f"{m.topic} {m.payload!r} {m.user_properties}" for m in subscriber.messages())
    assert process.returncode == 0, err
    assert "this device's certificate ends on" in err
    assert err.count("this device's certificate ends on") == 1  # and not by the connection again
    assert _leaks("\n".join((seen, out, err, received, broker.log)), site.key_file) == []


def _state(subscriber: Subscriber) -> dict[str, str]:
    messages = subscriber.messages("/pi/state")
    found: dict[str, str] = msgspec.json.decode(messages[-1].payload).get("warnings", {}) if messages else {}
    return found


def test_a_check_says_what_would_be_shown_and_for_how_long(cell_bundle: Path, tmp_path: Path) -> None:
    site = _site(tmp_path, cell_bundle)
    site.broker.stop()
    site.key_file.chmod(0o644)
    Authority(tmp_path / "broker", "broker-ca", days=(-1, 20))
    checked = edge_sdk("run", "--config", site.config, "--check")
    text = " ".join(checked.stdout.split())
    assert checked.returncode == 0, checked.stderr
    assert "as home/pi with a password; TLS, by authorities of" in text
    assert f"with the certificate in {tmp_path / 'home-pi.pem'}, valid until 2" in text
    assert "every user can read the private key (mode 0644); chmod 600" in text
    assert "this device's certificate ends on" in text
    assert "broker-ca.pem: the authority authority broker-ca ends on" in text
    assert _leaks(checked.stdout + checked.stderr, site.key_file) == []
    document = msgspec.json.decode(edge_sdk("run", "--config", site.config, "--check", "--json").stdout)
    assert document["found"]["broker"]["cert_file"] == str(tmp_path / "home-pi.pem")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("expired", "this device's certificate expired on"),
        ("mismatch", "not the private key of the certificate in"),
        ("password", "its password is wrong, or it is damaged"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_one_line(
    cell_bundle: Path, tmp_path: Path, what: str, expected: str
) -> None:
    site = _site(tmp_path, cell_bundle, (-9, -1) if what == "expired" else (-1, 90))
    site.broker.stop()
    if what == "mismatch":
        other = site.devices.issue("other", password=_KEY_WORD)
        site.key_file.write_bytes(other.key_file.read_bytes())
    if what == "password":
        (tmp_path / "key.password").write_text("another")
    checked = edge_sdk("run", "--config", site.config, "--check", "-q")
    assert (checked.returncode, len(checked.stderr.splitlines())) == (2, 1)
    assert expected in checked.stderr
    flags = [
        *("run", cell_bundle, "--source", "pattern:128x128@20", "--frames", "1", "--site", "home", "--device", "pi"),
        *("--mqtt", f"mqtts://localhost:{site.broker.tls_port}", "--mqtt-ca-file", site.broker.authority.file),
        *("--mqtt-cert-file", tmp_path / "home-pi.pem", "--mqtt-key-file", site.key_file),
        *("--mqtt-key-password-file", tmp_path / "key.password", "--no-tune"),
    ]
    ran = edge_sdk(*flags)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert expected in ran.stderr
    if what == "expired":  # a service goes on: what it sees is worth more, and a new certificate is taken as it comes
        served = edge_sdk("run", "--config", site.config, "--duration", "2")
        assert "warning: " in served.stderr
        assert served.returncode != 2
    else:
        assert edge_sdk("run", "--config", site.config, "--duration", "2").returncode == 2
