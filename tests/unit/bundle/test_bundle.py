"""Bundles: verified or refused, never half-valid; signed by keys that are made once, and the model that is kept."""

import contextlib
import hashlib
import os
import platform
import re
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import TensorProto

from edge_sdk.bundle import model_file
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import OPERATORS_FILE, ReducedRuntime, decode_manifest, encode_manifest, manifest_schema
from edge_sdk.bundle.model_file import DATA_LOCATION, EXTERNAL_DATA, PATHS, Damaged, fields, length_field
from edge_sdk.bundle.signing import generate_key, load_private_key, load_public_key, sign
from edge_sdk.core.errors import BundleError, ConfigError, IncompatibleError, OutputError, SessionError, UsageError
from edge_sdk.core.files import write_record
from edge_sdk.inference import trial
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk.inference.trial import refuse_older, remember_version
from tests.support import models as tiny
from tests.support.bundles import FILES, edit_manifest, golden_file, make_manifest, write_bundle, write_graded
from tests.support.logs import refusal
from tests.support.program import Cli
from tests.support.service import open_descriptors


def test_opens_and_reads_what_was_written(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    assert (bundle.manifest, bundle.signed, bundle.labels()) == (make_manifest(), False, ("cat", "dog"))
    assert bundle.read("model.int8.ort") == FILES["model.int8.ort"]
    [(image, outputs)] = bundle.golden()
    assert (image.shape, [o.tolist() for o in outputs]) == ((8, 8, 3), [[[0.25, 0.75]]])


def test_the_schema_fits_a_manifest() -> None:
    validator = jsonschema.Draft202012Validator(msgspec.json.decode(manifest_schema()))
    manifest = make_manifest()
    assert decode_manifest(encode_manifest(manifest), "here") == manifest
    document = msgspec.json.decode(encode_manifest(manifest))
    validator.validate(document)
    for wrong in ({"surprise": 1}, {"latency_budget_ms": -1}, {"machine": "armv7l"}):
        assert not validator.is_valid({**document, **wrong}), wrong


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


_ENTRY: dict[str, object] = {"name": "a", "size": 1, "sha256": "0" * 64}
_TWO_OUTPUTS = {"anchors": [[[81, 82]], [[10, 14]]], "scale_xy": [1.05]}


def _replace(folder: Path, make: Callable[[Path], object]) -> None:
    """Have something else in the place of the labels, which lie beside the bundle from then on."""
    path = (folder / "labels.txt").rename(folder.parent / "labels.txt")
    make(folder / path.name)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: _flip(f / "model.int8.ort"), "model.int8.ort: altered"),
        (lambda f: (f / "model.int8.ort").write_bytes(b"short"), "has 5 bytes, the manifest promises 18"),
        (lambda f: (f / "labels.txt").unlink(), "labels.txt is missing"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json: missing"),
        (lambda f: (f / "extra.bin").write_bytes(b"x"), "extra.bin is not named by the manifest"),
        (lambda f: _replace(f, lambda path: path.symlink_to("../labels.txt")), "labels.txt: cannot be read"),
        (lambda f: _replace(f, os.mkfifo), "labels.txt: cannot be read: it is a pipe, expected"),
        (lambda f: (f / "manifest.json").write_bytes(b"[" * 100_000), "not valid JSON"),
        (lambda f: edit_manifest(f, schema_version=2), "schema_version is 2, expected 1; update edge-sdk"),
        (lambda f: edit_manifest(f, surprise=1), "unknown key surprise; known keys: "),
        (lambda f: edit_manifest(f, decoder="yolov8"), "decoder: 'yolov8' is not for classification"),
        (
            lambda f: edit_manifest(f, task="detection", decoder="yolov4", detection=_TWO_OUTPUTS),
            "detection.scale_xy: expected as many numbers as",
        ),
        (lambda f: edit_manifest(f, files=[{**_ENTRY, "name": "../../etc/passwd"}]), "'../../etc/passwd' is not allo"),
        (lambda f: edit_manifest(f, files=[_ENTRY, _ENTRY]), "named twice"),
        (lambda f: edit_manifest(f, files=[{**_ENTRY, "name": name, "size": 2**63} for name in FILES]), "ses 92233720"),
        (lambda f: edit_manifest(f, files=[_ENTRY]), "'labels.txt' is promised but not among the files"),
    ],
)
def test_anything_wrong_is_refused(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    damage(folder)
    before = open_descriptors()
    said = refusal(BundleError, Bundle.open, folder)
    assert open_descriptors() == before
    assert expected in said
    assert str(folder) in said


def test_no_bundle_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, expected in (("none.edge", "no such bundle"), ("file", "not a bundle, expected"), (".", "not a bundle")):
        assert expected in refusal(UsageError, Bundle.open, tmp_path / name)


def test_what_changes_after_opening_is_noticed(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    _flip(bundle.path / "model.int8.ort")
    assert "altered" in refusal(BundleError, bundle.read, "model.int8.ort")
    assert "names no file" in refusal(BundleError, bundle.read, "other")


_IMAGE, _OUTPUT = np.zeros((8, 8, 3), np.uint8), np.zeros((1, 2), np.float32)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("labels.txt", b"\xff\xfe", "not UTF-8"),
        ("golden.npz", b"", "EOFError"),
        ("golden.npz", golden_file((_IMAGE, _OUTPUT))[:-40], "not the promised golden file"),
        ("golden.npz", golden_file(), "KeyError"),
        ("golden.npz", golden_file((_IMAGE.astype(np.int32), _OUTPUT)), "is int32 (8, 8, 3), expected uint8 (8, 8, 3)"),
        ("golden.npz", golden_file((np.array([{}], object), _OUTPUT)), "pickle"),
    ],
)
def test_contents_that_are_not_what_was_promised(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", files={**FILES, name: data}))
    said = refusal(BundleError, bundle.labels if name == "labels.txt" else bundle.golden)
    assert expected in said
    assert name in said


def test_a_task_whose_answer_is_no_list_of_classes_leaves_none_out(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    assert Bundle.open(folder).ids_of(["dog"], "labels") == {1}
    edit_manifest(folder, task="text", decoder="ctc")
    said = refusal(UsageError, Bundle.open(folder).ids_of, ["dog"], "labels")
    assert said.startswith("labels: tiny is for text, of which no classes can be left out")


def test_a_signature_by_a_trusted_key_is_demanded(tmp_path: Path, cli: Cli) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    trusted = load_public_key(generate_key(tmp_path / "mine.key"))
    assert stat.S_IMODE((tmp_path / "mine.key").stat().st_mode) == 0o600  # for its owner alone
    stranger = load_public_key(generate_key(tmp_path / "other.key"))
    assert "not signed" in refusal(BundleError, Bundle.open, folder, [trusted])
    assert "signed" in cli(0, "sign", folder, "--key", tmp_path / "mine.key").out
    assert Bundle.open(folder, [stranger, trusted]).signed
    assert "not by a trusted key" in refusal(BundleError, Bundle.open, folder, [stranger])
    cli(0, "sign", folder, "--key", tmp_path / "other.key")  # in place of the first one
    assert Bundle.open(folder, [stranger]).signed
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_wrong_signature_is_refused_before_anything_is_parsed(tmp_path: Path, cli: Cli) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    trusted = load_public_key(generate_key(tmp_path / "mine.key"))
    cli(0, "sign", folder, "--key", tmp_path / "mine.key")
    (folder / "manifest.json").write_bytes(b"{ this would not parse")
    assert "altered after signing" in refusal(BundleError, Bundle.open, folder, [trusted])
    for junk in (b"", b"x" * 64, b"x" * 10_000):
        (folder / "manifest.sig").write_bytes(junk)
        assert "not by a trusted key" in refusal(BundleError, Bundle.open, folder, [trusted])


def test_another_runtime_or_machine_is_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    for version in ("1.20.1", "1.31.9", "1.23.2+cu12"):
        bundle.check_device("x86_64", version)
    for version in ("1.20.0", "1.32.0", "2.0"):
        said = refusal(IncompatibleError, bundle.check_device, "x86_64", version)
        assert f"1.20.1 to 1.31.1, found {version}" in said
    said = refusal(IncompatibleError, bundle.check_device, "aarch64", "1.31.1")
    assert re.search("built for x86_64 .* this machine is aarch64", said)


def test_a_reduced_runtime_runs_what_it_was_built_for(tmp_path: Path) -> None:
    files = FILES | {OPERATORS_FILE: b"ai.onnx;11;Conv\n"}
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", make_manifest(files), files))
    digest = hashlib.sha256(files[OPERATORS_FILE]).hexdigest()
    fits = ReducedRuntime(("ai.onnx:Conv", "ai.onnx:Relu"), (digest,))
    # The version is outside the bundle's range: the runtime's own proof stands for it.
    bundle.check_device("x86_64", "1.19.0.post1", fits)
    files["model.int8.onnx"] = files.pop("model.int8.ort")
    variants = tuple(msgspec.structs.replace(one, file="model.int8.onnx") for one in bundle.manifest.variants)
    manifest = msgspec.structs.replace(make_manifest(files), variants=variants)
    whole = Bundle.open(write_bundle(tmp_path / "b.edge", manifest, files))
    manifest = msgspec.structs.replace(manifest, providers=("OpenVINOExecutionProvider", "CPUExecutionProvider"))
    faster = Bundle.open(write_bundle(tmp_path / "c.edge", manifest, files))
    for opened, machine, reduced, expected in (
        (bundle, "x86_64", ReducedRuntime(("ai.onnx:Relu",), (digest,)), "1.21.0.post1 here has no ai.onnx:Conv; "),
        (bundle, "x86_64", ReducedRuntime(("ai.onnx:Conv",), ("0" * 64,)), "was built for other versions or types"),
        (whole, "x86_64", fits, "does not load model.int8.onnx, which is not in ORT format"),
        (bundle, "aarch64", fits, "this machine is aarch64"),
        (faster, "x86_64", fits, "asks for OpenVINOExecutionProvider, and a reduced ONNX Runtime computes on the CPU"),
    ):
        assert expected in refusal(IncompatibleError, opened.check_device, machine, "1.21.0.post1", reduced)


@pytest.mark.parametrize("existing", ["a.key", "a.key.pub"])
def test_a_key_is_never_overwritten(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    assert "exists already" in refusal(UsageError, generate_key, tmp_path / "a.key")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {existing: "precious"}


def test_a_key_needs_a_folder_and_a_name(tmp_path: Path) -> None:
    assert "cannot be written" in refusal(OutputError, generate_key, tmp_path / "no" / "a.key")
    assert "expected the name of a file for the key" in refusal(UsageError, generate_key, Path())


@pytest.mark.parametrize("room_bytes", [0, 50])  # a private key has 119 bytes
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, room_bytes: int) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, usual[1]))
    try:
        said = refusal(OutputError, generate_key, tmp_path / "a.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert said.startswith(f"{tmp_path / 'a.key'}: cannot be written: ")
    assert list(tmp_path.iterdir()) == []


def test_wrong_key_files(tmp_path: Path) -> None:
    generate_key(tmp_path / "a.key")
    (tmp_path / "junk").write_text("hello")
    other = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ec.key").write_bytes(
        other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    for load, name, expected in (
        (load_private_key, "none", "no such key file"),
        (load_private_key, ".", "cannot be read"),
        (load_private_key, "ec.key", "not an Ed25519 private key"),
        (load_private_key, "a.key.pub", "this is a public key"),
        (load_public_key, "a.key", "this is a private key"),
        (load_public_key, "junk", "not an Ed25519 public key"),
    ):
        assert expected in refusal(ConfigError, load, tmp_path / name)


# A signed bundle that is older than one that ran here is refused, and a state folder that is no use stops nobody.


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of the newest version, on a device on which nothing ran yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "edge-sdk" / "versions" / "tiny.json"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The public key; the private one is beside it."""
    return generate_key(tmp_path / "fleet.key")


def _make(folder: Path, version: int, key: Path) -> Path:
    edit_manifest(folder, version=version)
    signature = sign((folder / "manifest.json").read_bytes(), load_private_key(key.with_suffix("")))
    (folder / "manifest.sig").write_bytes(signature)
    return folder


def _opened(folder: Path, version: int, key: Path) -> Bundle:
    if not folder.exists():
        write_bundle(folder)
    return Bundle.open(_make(folder, version, key), [key])


def _proved(bundle: Bundle) -> list[str]:
    refuse_older(bundle, allow_older=False)
    return [*filter(None, [remember_version(bundle)])]


def test_what_is_allowed_is_said_and_does_not_lower_what_is_remembered(record: Path, tmp_path: Path, key: Path) -> None:
    path = tmp_path / "a.edge"
    _proved(_opened(path, 5, key))
    older = _opened(path, 4, key)
    assert "version 4 of tiny is older than 5" in refuse_older(older, allow_older=True)
    remember_version(older)
    refusal(BundleError, refuse_older, older, allow_older=False)
    assert refuse_older(_opened(path, 5, key), allow_older=True) == ""


def test_the_newer_is_remembered(record: Path, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = (_opened(tmp_path / f"{version}.edge", version, key) for version in (2, 3))
    other = threading.Thread(target=remember_version, args=(newer,))

    def write_later(path: Path, data: bytes) -> None:
        if not other.ident:
            other.start()
            other.join(0.1)
        write_record(path, data)

    monkeypatch.setattr(trial, "write_record", write_later)
    remember_version(older)
    other.join(10)
    assert record.read_bytes() == b'{"version":3}'


def test_a_bundle_whose_signature_nobody_verified_counts_for_nothing(record: Path, tmp_path: Path, key: Path) -> None:
    _opened(tmp_path / "a.edge", 5, key)
    _proved(Bundle.open(tmp_path / "a.edge"))
    assert not record.exists()
    _proved(_opened(tmp_path / "a.edge", 5, key))
    _make(tmp_path / "a.edge", 4, key)
    assert refuse_older(Bundle.open(tmp_path / "a.edge"), allow_older=False) == ""


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.write_bytes(b'{"version": "5"}'), "tiny.json: damaged"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "tiny.json: cannot be read: it is a pipe"),
    ],
)
def test_a_damaged_record_is_said_once_and_replaced(
    record: Path, tmp_path: Path, key: Path, damage: Callable[[Path], object], expected: str
) -> None:
    bundle = _opened(tmp_path / "a.edge", 5, key)
    _proved(bundle)
    damage(record)
    [line] = _proved(bundle)
    assert line.startswith("the newest version of tiny is not known, so any version runs: ")
    assert expected in line
    assert _proved(bundle) == []
    refusal(BundleError, refuse_older, _opened(tmp_path / "a.edge", 4, key), allow_older=False)


def test_a_state_folder_that_is_none_stops_nobody(record: Path, tmp_path: Path, key: Path) -> None:
    (tmp_path / "edge-sdk").write_text("in the way")
    [line] = _proved(_opened(tmp_path / "a.edge", 5, key))
    assert "so any version runs: " in line
    assert _proved(_opened(tmp_path / "a.edge", 4, key))


def test_a_run_refuses_an_older_one_unless_it_is_allowed(
    record: Path, tmp_path: Path, key: Path, cell_pictures: Path, cli: Cli
) -> None:
    path = write_graded(tmp_path / "graded.edge")
    command = ["run", path, "--source", cell_pictures, "--trust", key, "--trial-seconds", 0]
    for version, code in ((5, 0), (4, 7)):
        _make(path, version, key)
        said = cli(code, *command).err
    assert said.startswith(f"edge-sdk: {path}: version 4 of tiny, expected 5 or newer")
    said = cli(0, *command, "--allow-older").err
    assert f"warning: {path}: version 4 of tiny is older than 5, which ran here" in said
    cli(7, *command, "--check")


def test_what_does_not_run_here_is_not_the_newest(
    record: Path, tmp_path: Path, key: Path, cell_pictures: Path, cli: Cli
) -> None:
    path = write_graded(tmp_path / "graded.edge")
    edit_manifest(path, onnxruntime={"minimum": "1.0.0", "maximum": "1.1.0"})
    cli(6, "run", _make(path, 9, key), "--source", cell_pictures, "--trust", key)
    assert not record.exists()


# A model chooses no files of the device: what names some is refused before ONNX Runtime sees it.


def _spy() -> onnx.ModelProto:
    """Its answer depends on the bytes of a file that lies in the working directory."""
    proto = tiny.classifier(2)
    [weight] = [weight for weight in proto.graph.initializer if weight.name == "w1"]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="secret.bin")
    return proto


def test_a_bundle_cannot_read_the_files_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    (tmp_path / "secret.bin").write_bytes(np.ones((8, 3, 3, 3), np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    model = _spy().SerializeToString()
    # What it is about: ONNX Runtime itself takes the file.
    assert onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    golden = golden_file((np.zeros((16, 16, 3), np.uint8), np.array([[0.5, 0.5]], np.float32)))
    files = {**FILES, "model.int8.ort": model, "golden.npz": golden}
    manifest = msgspec.structs.replace(make_manifest(files, side=16), machine=platform.machine())
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", manifest, files))
    takes = "takes weights from another file"
    assert f"model.int8.ort: {takes}" in refusal(BundleError, Session.open, bundle)
    assert takes in refusal(BundleError, Session, model, SessionSettings(), "m")
    last = cli(7, "bench", bundle.path).err.splitlines()[-1]
    assert last.startswith("edge-sdk: ")
    assert f"model.int8.ort: {takes}, which no manifest names" in last


@pytest.mark.parametrize(
    ("field", "is_refused"),
    [
        (b"\x70\x80\x00", False),  # data_location: DEFAULT, longer than needed
        (b"\x70\x01", True),
        (b"\x70\x81\x80\x80\x80\x10", True),  # 1 to a parser that keeps 32 bits
        (b"\xf0\x80\x80\x80\x80\x02\x01", True),  # the tag, the same way
        (length_field(13, b""), True),
    ],
)
def test_however_it_is_written(field: bytes, is_refused: bool) -> None:
    """A model whose last weight has one more field, in a second graph that a parser joins to the first."""
    model = tiny.classifier().SerializeToString() + length_field(7, length_field(5, field))
    with pytest.raises((BundleError, SessionError)) if is_refused else contextlib.nullcontext():
        model_file.refuse_other_files(model, "m")


def test_graphs_that_lie_deep_in_each_other_take_no_stack() -> None:
    graph = _spy().graph.SerializeToString()
    for _ in range(3000):
        graph = length_field(1, length_field(5, length_field(6, graph)))
    said = refusal(BundleError, model_file.refuse_other_files, length_field(7, graph), "m")
    assert "takes weights from another file" in said


def _paths(start: Descriptor) -> Iterator[tuple[str, int, str]]:
    todo, seen = [start], {start.name}
    while todo:
        message = todo.pop()
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                yield message.name, field.number, field.message_type.name
                if field.message_type.name not in seen:
                    seen.add(field.message_type.name)
                    todo.append(field.message_type)


def test_no_way_to_a_tensor_is_left_out() -> None:
    edges = list(_paths(onnx.ModelProto.DESCRIPTOR))
    leading = {"TensorProto"}
    while more := {source for source, _, to in edges if to in leading} - leading:
        leading |= more
    wanted = {(source, number, to) for source, number, to in edges if to in leading and source != "TensorProto"}
    assert {(source, number, to) for source, inner in PATHS.items() for number, to in inner.items()} == wanted
    numbers = TensorProto.DESCRIPTOR.fields_by_name
    assert (numbers["external_data"].number, numbers["data_location"].number) == (EXTERNAL_DATA, DATA_LOCATION)


def test_bytes_that_are_no_message() -> None:
    for data in (
        *(b"\x08", b"\x0a\x05ab", b"\x0b", b"\x00\x00", b"\x08" + b"\x80" * 11 + b"\x01", b"\x0d\x01"),
        b"\x88\x80\x80\x80\x10\x00",  # field 1 to a parser that keeps 32 bits of a tag
    ):
        with pytest.raises(Damaged):
            list(fields(data, 0, len(data)))
