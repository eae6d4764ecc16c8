"""The broker of examples/mosquitto, made by the steps of its README as they stand there.

What is another: folders and port of this test, `localhost` for the broker's name, nothing installed and no service of
the machine touched. As root Mosquitto gives up its rights to its own user, as it does where people follow the steps.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.broker import Broker, free_port, require_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "mosquitto"
PASSWORD = "of everybody"
_HOME_ASSISTANT = "## With Home Assistant"
_SUDO = f"""#!/bin/sh
case $1 in
  apt-get|systemctl) exit 0 ;;
  mosquitto_passwd) printf '{PASSWORD}\\n{PASSWORD}\\n' | exec "$@" ;;
  *) exec "$@" ;;
esac
"""


class ExampleBroker(Broker):
    """Runs what the steps left; with a plain listener beside its own, for whoever looks on.

    Args:
        folder: in place of /etc/mosquitto; its own user must be able to go there.

    Attributes:
        tls_port: in place of 8883.
        ca_file: for devices.
    """

    def __init__(self, folder: Path) -> None:
        for needed in ("mosquitto_passwd", "openssl"):
            require_program(needed)
        super().__init__(folder, start=False)
        self._work, self._etc = folder / "work", folder
        self.tls_port, self.ca_file = free_port(), self._work / "ca.pem"
        shutil.copytree(EXAMPLE, self._work)
        (self._work / "sudo").write_text(_SUDO, encoding="utf-8")
        (self._work / "sudo").chmod(0o700)
        self._follow(self._readme().partition(_HOME_ASSISTANT)[0])
        self._finish()
        self.start()

    def take_home_assistant(self) -> None:
        """Follow the steps for it too, and have the running broker read what they changed."""
        self._follow(self._readme().partition(_HOME_ASSISTANT)[2])
        os.kill(self.pid, signal.SIGHUP)

    def toml_of_device(self) -> str:
        """What the README has a device be configured with."""
        block = re.search(r"```toml\n(.*?)```", self._readme(), re.DOTALL)
        assert block is not None
        return block[1].replace("@localhost", f"@localhost:{self.tls_port}")

    def add_user(self, name: str) -> None:
        """As the README's lines do."""
        self._follow(f"```sh\nsudo mosquitto_passwd /etc/mosquitto/passwords {name}\n```")

    def _readme(self) -> str:
        return (EXAMPLE / "README.md").read_text(encoding="utf-8").replace("broker.example", "localhost")

    def _follow(self, text: str) -> None:
        steps = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("/etc/mosquitto", str(self._etc))
        if os.geteuid() != 0:  # all is one user's here
            steps = steps.replace("-o mosquitto -g mosquitto ", "").replace("chown mosquitto:mosquitto", "true")
        path = f"{self._work}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(
            ["/bin/sh", "-e", "-c", steps],
            cwd=self._work,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    def _finish(self) -> None:
        """Give the configuration that was installed this machine's folders and ports."""
        data = self._etc / "data"
        data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(data, "mosquitto", "mosquitto")
        installed = self._etc / "mosquitto.conf"
        text = installed.read_text(encoding="utf-8")
        assert text == (EXAMPLE / "mosquitto.conf").read_text(encoding="utf-8")
        changes = {
            "/etc/mosquitto": str(self._etc),
            "/var/lib/mosquitto": str(data),
            "\nlistener 8883\n": f"\nlistener {self.tls_port} 127.0.0.1\n",
        }
        for theirs, ours in changes.items():
            assert theirs in text
            text = text.replace(theirs, ours)
        installed.write_text(f"{text}\nlistener {self.port} 127.0.0.1\n", encoding="utf-8")


@contextmanager
def example_broker() -> Iterator[ExampleBroker]:
    """In a folder that every user can reach, which no test's own folder is."""
    require_program("mosquitto")
    if os.geteuid() == 0 and "mosquitto" not in {user.pw_name for user in pwd.getpwall()}:
        pytest.skip("Mosquitto was installed without the user that its package makes")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="example-broker-") as name:  # reachable for all
        Path(name).chmod(0o755)
        with ExampleBroker(Path(name)) as broker:
            yield broker
