"""The wire format, the schemas of all messages, and what a device says of itself, after a break too."""

import re
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import jsonschema
import msgspec
import numpy as np
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import edge_sdk.messages.schema
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.frame import Classification, Detections
from edge_sdk.messages.commands import ControlState
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import (
    MESSAGES,
    CameraHealth,
    EventMessage,
    Identity,
    Message,
    Running,
    SeenMessage,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
    read_boot_id,
)
from edge_sdk.publishing.client import message_properties, publish_options
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.tasks.entry import ModelRef
from edge_sdk.tasks.spec import ClassificationSpec
from tests.support.bundles import make_manifest, write_bundle
from tests.support.connections import FakeLink, door_over, has_connected, put, until
from tests.support.results import (
    IDENTITY,
    MODEL,
    make_classification,
    make_detections,
    make_encoder,
    make_frame,
    make_segmentation,
)


def _boxes(*rows: tuple[float, float, float, float, float, int]) -> Detections:
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(make_frame(), 0, table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def test_every_field_of_a_detection_message() -> None:
    encoder = make_encoder(Identity("pi", "boot", "run"), clock_ns=lambda: 5_041_237_999)
    frame = make_frame(seq=7, captured_ns=5_000_000_000, captured_at=1_700_000_000.1234)
    result = Detections(
        frame, 12_345_678, np.array([[0.04, 12.34, 640.0, 479.96]], np.float32), np.array([0.87654], np.float32),
        np.array([1]),
    )  # fmt: skip
    who = {"schema": 1, "stream": "result", "device": "pi", "camera": "door", "boot_id": "boot", "run_id": "run"}
    of_frame = {"seq": 7, "captured_at": "2023-11-14T22:13:20.123000Z", "frame": {"width": 640, "height": 480}}
    took = {"age_ms": 41.237, "infer_ms": 12.345, "model": MODEL_JSON}
    found = [{"label": "dog", "class_id": 1, "confidence": 0.8765, "box_xyxy": [0.0, 12.3, 640.0, 480.0]}]
    expected = {"task": "detection", **who, **of_frame, **took, "detections": found}
    assert msgspec.json.decode(encoder.encode(result)) == expected


def test_a_segmentation_message_has_the_largest_first_and_no_share_of_nothing() -> None:
    document = msgspec.json.decode(make_encoder().encode(make_segmentation([0.25004, 0.6, 0.0, 0.00004, 0.14996])))
    assert (document["task"], document["infer_ms"], "classes" in document) == ("segmentation", 1.0, False)
    assert document["segments"] == [
        {"label": "dog", "class_id": 1, "share": 0.6},
        {"label": "cat", "class_id": 0, "share": 0.25},
        {"label": "class_4", "class_id": 4, "share": 0.15},
    ]


NAN, INF = float("nan"), float("inf")


def test_what_is_not_finite_is_left_out() -> None:
    good = (1.0, 2.0, 3.0, 4.0, 0.5, 1)
    for bad in ((NAN, 0, 1, 1, 0.5, 0), (0, 3e38, -INF, 1, 0.5, 0), (0, 0, 1, 1, NAN, 0)):
        with np.errstate(all="raise"):
            data = make_encoder().encode(_boxes(good, bad, good))
        assert b"null" not in data
        assert [d["box_xyxy"] for d in msgspec.json.decode(data)["detections"]] == [[1, 2, 3, 4]] * 2
    result = Classification(make_frame(), 0, np.array([NAN, 0.25], np.float32), np.array([0, 1]))
    expected = [{"label": "dog", "class_id": 1, "confidence": 0.25}]
    assert msgspec.json.decode(make_encoder().encode(result))["classes"] == expected


@pytest.mark.parametrize("count", [0, 64, 65, 500])
def test_any_number_of_detections(count: int) -> None:
    result = make_detections(count)
    items = msgspec.json.decode(make_encoder().encode(result))["detections"]
    assert [item["box_xyxy"] for item in items] == np.round(result.xyxy.astype(np.float64), 1).tolist()
    assert [item["confidence"] for item in items] == [round(float(each), 4) for each in result.confidence]


def _example() -> bytes:
    return (DOCS / "payload.md").read_bytes().split(b"```json\n")[1].split(b"```")[0]


def test_results_keep_to_the_schema_and_are_read_back() -> None:
    results = [make_detections(20), make_detections(0), make_classification([0, -1, 5]), make_segmentation([0.3, 0.7])]
    results.append(msgspec.structs.replace(make_detections(5), then=(None, *results[:4])))
    for data in [*(make_encoder().encode(result) for result in results), _example()]:
        assert [e.message for e in _validator("result").iter_errors(msgspec.json.decode(data))] == []
        assert msgspec.json.decode(data, type=MESSAGES["result"].type).schema == 1


def test_results_name_the_variant_that_made_them() -> None:
    encoder = make_encoder()
    assert "variant" not in msgspec.json.decode(encoder.encode(make_detections(1)))["model"]
    for variant in ("int8.320x320", "int8"):
        encoder.answers_by(variant)
        assert msgspec.json.decode(encoder.encode(make_detections(1)))["model"]["variant"] == variant
    assert encoder.model.variant is msgspec.UNSET


@pytest.mark.parametrize(
    ("task", "decoder", "expected"), [("classification", "softmax", "cat"), ("segmentation", "argmax", "dog")]
)
def test_only_a_classifier_s_ids_omit_the_background(tmp_path: Path, task: Any, decoder: Any, expected: str) -> None:
    manifest = msgspec.structs.replace(
        make_manifest(), task=task, decoder=decoder, classification=ClassificationSpec(background_class=True)
    )
    bundle = Bundle.open(write_bundle(tmp_path / "tiny.edge", manifest))
    result = make_segmentation([0.0, 1.0]) if task == "segmentation" else make_classification([-1])
    document = msgspec.json.decode(ResultEncoder.for_bundle(bundle, IDENTITY).encode(result))
    assert document["model"] == {"name": "tiny", "version": 1, "sha256": bundle.digest, "variant": "int8"}
    assert (document.get("segments") or document["classes"])[0]["label"] == expected


DOCS = Path(__file__).parents[3] / "docs"
NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)
WHO = Identity("pi", "boot", "run")
_SETTINGS = MqttSettings(host="127.0.0.1", port=1883, device="pi")


def _device_state() -> DeviceState:
    state = DeviceState(WHO, {"edge-sdk": "1.2"}, RetainedPublisher(_SETTINGS.topics))
    door = state.join("door", MODEL)
    state.join("gate", MODEL)
    controls = ControlState(paused=True, confidence=0.5, max_fps=0)
    running = Running(variant="int8.320x320", every=1, level=1, levels=7, reason="34% of 60 frames were late")
    state.update(door, source="lost", trouble="connection refused", since=NOW, running=running, controls=controls)
    state.warn(door, "hung", "a run did not finish")
    state.warn_of_device("disk", "12 MB are free")
    return state


def _telemetry() -> TelemetryMessage:
    return TelemetryMessage(
        **msgspec.structs.asdict(WHO), at=NOW, uptime_s=17.0, temperature_c=-3.5, throttled=["under-voltage"],
        memory_free_mb=411.5, memory_rss_mb=131.0, disk_free_mb=0.0, cpu_share=1.63, load1=0.0, open_files=41,
        cameras={"door": CameraHealth(fps=14.9, age_p50_ms=61.4, results=1841, dropped=0, reopenings=2)},
    )  # fmt: skip


def _examples(stream: str) -> list[bytes]:
    """The examples of one stream in docs/payload.md, with the models that they abbreviate."""
    text = (DOCS / "payload.md").read_bytes()
    mine = re.findall(rb'^\{.*"stream":"%b".*$' % stream.encode(), text, re.M)
    assert mine
    return [line.replace(b"{...}", msgspec.json.encode(MODEL)) for line in mine]


def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(msgspec.json.decode((DOCS / f"{name}.schema.json").read_bytes()))


_WHO = msgspec.structs.asdict(WHO)
EXAMPLES: list[tuple[str, type, list[bytes]]] = [
    ("status", StatusMessage, [_device_state().online(), _device_state().offline("shutdown")]),
    ("state", StateMessage, [DeviceState(WHO, {}, RetainedPublisher(_SETTINGS.topics)).state()]),
    ("telemetry", TelemetryMessage, [*map(msgspec.json.encode, (_telemetry(), TelemetryMessage(**_WHO, at=NOW)))]),
    ("seen", SeenMessage, [msgspec.json.encode(SeenMessage(**_WHO, camera="door", label="shut"))]),
]


@pytest.mark.parametrize(("name", "kind", "messages"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_messages_keep_to_their_schema_and_are_read_back(name: str, kind: type, messages: list[bytes]) -> None:
    for data in [*messages, *_examples(name)]:
        document = msgspec.json.decode(data)
        assert [e.message for e in _validator(name).iter_errors(document)] == []
        assert b"null" not in data
        read = msgspec.json.decode(data, type=StatusMessage | StateMessage | TelemetryMessage | SeenMessage)
        assert type(read) is kind
        assert msgspec.json.decode(msgspec.json.encode(read)) == document


def test_every_field_is_explained() -> None:
    text = (DOCS / "payload.md").read_text()
    kinds = (EventMessage, StateMessage, StatusMessage, TelemetryMessage, SeenMessage, ControlState)
    for kind in (*kinds, edge_sdk.messages.schema.CameraState, CameraHealth):
        for field in msgspec.structs.fields(kind):
            assert f"{field.encode_name}`" in text, f"{kind.__name__}.{field.encode_name}"


def test_every_start_of_the_program_has_its_own_run_id_and_the_boot_id_of_this_boot() -> None:
    first, second = Identity("pi"), Identity("pi")
    assert uuid.UUID(first.run_id) != uuid.UUID(second.run_id)
    assert first.boot_id == second.boot_id or not Path("/proc/sys/kernel/random/boot_id").exists()
    assert str(uuid.UUID(read_boot_id())) == read_boot_id() or not Path("/proc/sys/kernel/random/boot_id").exists()


def _unpacked(packed: bytes) -> Any:
    properties = Properties(PacketTypes.PUBLISH)
    properties.unpack(packed)
    return properties


def test_a_message_bears_what_is_documented_and_no_topic_alias() -> None:
    """A broker that has restarted answers an alias that it does not know with an endless protocol error."""
    ways = publish_options(_SETTINGS, is_v5=True)
    for kind, way in ways.items():
        assert way.properties is not None
        names = set(_unpacked(way.properties.of(Message("topic", b"", seq=7)).pack()).json())
        assert {"TopicAlias", "UserProperty"} & names == {"UserProperty"}, kind
        assert ("MessageExpiryInterval" in names) == (kind not in {"status", "state", "seen", "discovery"}), kind
    assert ways["response"].properties is not None
    usual = set(_unpacked(ways["response"].properties.pack()).json())
    assert {*message_properties("response", expiry_s=60, CorrelationData=b"1").json()} == usual | {"CorrelationData"}


def test_a_message_that_a_broker_may_have_had_before_says_so_and_the_next_one_does_not() -> None:
    way = publish_options(_SETTINGS, is_v5=True)["event"]
    assert way.properties is not None
    for seq, more in ((7, {"is_repeated": True}), (8, {})):
        sent = _unpacked(way.properties.of(Message("topic", b"", seq=seq, **more)).pack()).UserProperty[2:]
        assert sent == [("seq", str(seq)), ("repeated", "1")][: 1 + len(more)]


# What a device publishes of itself: status, state of its cameras, and warnings, also after a reconnection.


OTHER = ModelRef("other", 1, "1" * 64)
SINCE = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)
MODEL_JSON = {"name": "tiny", "version": 3, "sha256": "0" * 64}


def _running(reason: str) -> Running:
    return Running(variant="int8", every=1, level=0, levels=2, reason=reason)


def _last(link: FakeLink) -> dict[str, Any]:
    return link.cameras()[-1] if link.cameras() else {}


@pytest.fixture(autouse=True)
def _what_a_device_says_goes_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a burst is gathered, the tests of notices show by a manual clock."""
    monkeypatch.setattr("edge_sdk.publishing.retained._EVERY_S", 0.05)


def test_what_is_said_of_a_camera_is_in_the_state_now_and_after_a_break() -> None:
    first, second = FakeLink(), FakeLink()
    publisher, door = door_over(first, second)
    until(lambda: bool(first.cameras()))
    door.warn("hung", "a run came to no end")
    door.warn("not_finite", "nothing is known")
    door.warn("hung", "")
    door.report(running=_running("start"))
    door.report(source="lost", trouble="connection refused", since=SINCE)
    until(lambda: _last(first)["door"].get("source") == "lost")
    first.drop("gone")
    until(lambda: bool(second.cameras()))
    publisher.close()
    expected = {
        "source": "lost",
        "trouble": "connection refused",
        "since": "2026-03-02T09:15:04Z",
        "running": {"variant": "int8", "every": 1, "level": 0, "levels": 2, "reason": "start"},
        "warnings": {"not_finite": "nothing is known"},
    }
    assert first.cameras()[0] == {"door": {}}
    assert first.cameras()[-1] == second.cameras()[0] == {"door": expected}
    assert [kind for kind, _ in second.published] == ["status", "state", "status"]
    assert second.contents() == ["online", "offline"]


def test_what_is_said_right_before_the_offline_message_is_said() -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    gate = publisher.stream("gate", make_encoder())
    until(lambda: "gate" in _last(link))
    door.report(running=_running("first"))
    door.report(running=_running("last"))
    gate.close()
    publisher.close()
    assert _last(link)["door"]["running"]["reason"] == "last"
    assert "gate" not in _last(link)
    assert (link.published[-1][0], link.contents()[-1]) == ("status", "offline")


def test_a_camera_that_leaves_is_gone_and_its_results_arrive() -> None:
    link = FakeLink(window=4, answers=False)
    publisher, door = door_over(link)
    gate = publisher.stream("gate", make_encoder())
    until(has_connected(publisher, 1))
    put(gate, *range(10))
    gate.close()
    gate.close()
    put(gate, 10)
    link.answers = True
    until(lambda: _last(link) == {"door": {}})
    until(lambda: link.documents("status")[-1]["cameras"] == {"door": MODEL_JSON})
    put(door, 1)
    publisher.close()
    results = [(d["camera"], d["seq"]) for d in link.documents("result")]  # cameras take turns
    assert sorted(results) == [("door", 1), *(("gate", seq) for seq in range(10))]


@pytest.mark.parametrize("how", ["another model", "close and again"])
def test_a_stream_takes_a_camera_over_and_nothing_is_lost(how: Literal["another model", "close and again"]) -> None:
    link = FakeLink(answers=False)
    publisher, before = door_over(link)
    before.report(source="opened", since=SINCE)
    before.warn("hung", "of the old model")
    put(before, *range(5))
    if how == "close and again":
        before.close()
    after = publisher.stream("door", make_encoder(model=OTHER))
    put(before, 90)
    before.warn("late", "nobody listens")
    before.close()
    put(after, *range(5))  # its source counts from 0
    link.answers = True
    until(lambda: publisher.stats().sent == 10)
    until(lambda: link.documents("status")[-1]["cameras"].get("door", {}).get("name") == "other")
    source = "opened" if how == "another model" else None

    def is_over() -> bool:
        door = _last(link).get("door")
        return door is not None and "warnings" not in door and door.get("source") == source

    until(is_over)
    publisher.close()
    results = link.documents("result")
    expected = [(number, "tiny" if number < 5 else "other") for number in range(10)]
    assert [(d["seq"], d["model"]["name"]) for d in results] == expected
    assert len({d["run_id"] for d in results}) == 1
    assert (after.stats().put, after.stats().sent) == (10, 10)


def test_a_connection_that_holds_is_looked_at_once_a_day() -> None:
    said = list[str]()
    state = DeviceState(IDENTITY, {}, RetainedPublisher(_SETTINGS.topics))
    link, doubts = FakeLink(), PublishWarnings(state, said.append)
    doubts.begin(link)
    for line, days, shown in (("ends soon", 0, ""), ("ends soon", 1, "ends soon"), ("", 0, "ends soon"), ("", 1, "")):
        link.doubtful = {"broker_certificate": line}
        doubts._look_at -= days * 86400
        doubts.look_daily(link)
        assert msgspec.json.decode(state.state()).get("warnings", {}).get("broker_certificate", "") == shown
    assert said == ["ends soon"]
