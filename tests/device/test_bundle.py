"""Bundles: verified or refused, never half-valid."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import BundleError, IncompatibleError, UsageError
from edge_sdk.manifest import RuntimeRange, decode_manifest, encode_manifest, manifest_schema
from edge_sdk.signing import generate_key, load_public_key
from tests.device.bundles import FILES, edit_manifest, make_manifest, write_bundle


def test_opens_and_reads_what_was_written(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    assert bundle.manifest == make_manifest()
    assert not bundle.signed
    assert bundle.labels() == ("cat", "dog")
    assert bundle.read("model.int8.ort") == FILES["model.int8.ort"]
    [(image, outputs)] = bundle.golden()
    assert image.shape == (8, 8, 3)
    assert [o.tolist() for o in outputs] == [[[0.25, 0.75]]]


def test_manifest_survives_encoding() -> None:
    manifest = make_manifest()
    assert decode_manifest(encode_manifest(manifest), "here") == manifest


def _unordered(schema: object) -> object:
    """A JSON Schema without the order of its alternatives, which differs between versions of msgspec."""
    if isinstance(schema, dict):
        return {key: _unordered(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return sorted((_unordered(item) for item in schema), key=repr)
    return schema


def test_the_documented_schema_is_the_code_s_and_fits_a_manifest() -> None:
    path = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert _unordered(msgspec.json.decode(path.read_bytes())) == _unordered(msgspec.json.decode(manifest_schema())), (
        "write it again: python -c 'import pathlib; from edge_sdk.manifest import manifest_schema; "
        'pathlib.Path("docs/manifest.schema.json").write_bytes(manifest_schema())\''
    )
    validator = jsonschema.Draft202012Validator(msgspec.json.decode(manifest_schema()))
    document = msgspec.json.decode(encode_manifest(make_manifest()))
    validator.validate(document)
    for wrong in ({"surprise": 1}, {"latency_budget_ms": -1}, {"machine": "armv7l"}):
        assert not validator.is_valid({**document, **wrong}), wrong


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(folder: Path) -> None:
    (folder / "labels.txt").rename(folder.parent / "labels.txt")
    (folder / "labels.txt").symlink_to(folder.parent / "labels.txt")


def _fifo(folder: Path) -> None:
    (folder / "labels.txt").unlink()
    os.mkfifo(folder / "labels.txt")


def _promise_size(folder: Path, size: int) -> None:
    document = msgspec.json.decode((folder / "manifest.json").read_bytes())
    next(f for f in document["files"] if f["name"] == "model.int8.ort")["size"] = size
    edit_manifest(folder, files=document["files"])


def _entry(name: str) -> list[dict[str, object]]:
    return [{"name": name, "size": 1, "sha256": "0" * 64}]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: _flip(f / "model.int8.ort"), "model.int8.ort: altered"),
        (lambda f: (f / "model.int8.ort").write_bytes(b"short"), "has 5 bytes, the manifest promises 18"),
        (lambda f: (f / "model.int8.ort").write_bytes(b"x" * 99), "has 19 bytes, the manifest promises 18"),
        (lambda f: (f / "labels.txt").unlink(), "labels.txt is missing"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json: missing"),
        (lambda f: (f / "extra.bin").write_bytes(b"x"), "extra.bin is not named by the manifest"),
        (lambda f: (f / "extra").mkdir(), "extra is not named by the manifest"),
        (_link, "labels.txt: cannot be read"),
        (_fifo, "labels.txt: not a regular file"),
        (lambda f: (f / "manifest.json").write_bytes(b"{"), "not valid JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe"), "not valid JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"[" * 100_000), "not valid JSON"),
        (lambda f: edit_manifest(f, schema_version=2), "schema_version is 2, expected 1; update edge-sdk"),
        (lambda f: edit_manifest(f, schema_version=0), "schema_version is 0, expected 1; build the bundle again"),
        (lambda f: edit_manifest(f, schema_version=None), "schema_version is missing"),
        (lambda f: edit_manifest(f, surprise=1), "unknown field `surprise`"),
        (lambda f: edit_manifest(f, labels=None), "missing required field `labels`"),
        (lambda f: edit_manifest(f, latency_budget_ms=-1), "latency_budget_ms"),
        (lambda f: edit_manifest(f, files=_entry("../../etc/passwd")), "'../../etc/passwd' is not allowed"),
        (lambda f: edit_manifest(f, files=_entry("/etc/passwd")), "'/etc/passwd' is not allowed"),
        (lambda f: edit_manifest(f, files=_entry("a\nb")), "is not allowed"),
        (lambda f: edit_manifest(f, files=_entry("manifest.json")), "'manifest.json' is not allowed"),
        (lambda f: edit_manifest(f, files=_entry("a") * 2), "named twice"),
        (lambda f: _promise_size(f, 2**40), "has 18 bytes, the manifest promises 1099511627776"),
        (lambda f: _promise_size(f, 2**63), "the manifest promises 9223372036854775808"),
        (lambda f: edit_manifest(f, files=_entry("a")), "'labels.txt' is promised but not among the files"),
    ],
)
def test_anything_wrong_is_refused(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    damage(folder)
    with pytest.raises(BundleError) as caught:
        Bundle.open(folder)
    assert expected in str(caught.value)
    assert str(folder) in str(caught.value)
    assert caught.value.exit_code == 7


def test_no_bundle_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="no such bundle"):
        Bundle.open(tmp_path / "none.edge")
    with pytest.raises(UsageError, match=r"not a bundle, expected a NAME\.edge folder"):
        Bundle.open(str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"not a bundle, expected a NAME\.edge folder"):
        Bundle.open(tmp_path)


def test_what_changes_after_opening_is_noticed(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    _flip(bundle.path / "model.int8.ort")
    with pytest.raises(BundleError, match="altered"):
        bundle.read("model.int8.ort")
    with pytest.raises(BundleError, match="names no file"):
        bundle.read("other")


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    # Among the keywords mypy sees `allow_pickle`, a bool: no array here has that name.
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _with_password(archive: bytes) -> bytes:
    """Set the flag of the first entry in zip's list of entries that says so."""
    flags = archive.index(b"PK\x01\x02") + 8
    return archive[:flags] + b"\x01" + archive[flags + 1 :]


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


_IMAGE, _OUTPUT = np.zeros((8, 8, 3), np.uint8), np.zeros((1, 2), np.float32)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "EOFError"),
        (b"PK nothing", "not the promised golden file"),
        (_npz(image_0=_IMAGE, output_0_0=_OUTPUT)[:-40], "not the promised golden file"),
        (_npy(), "not the promised golden file"),
        (_with_password(_npz(image_0=_IMAGE, output_0_0=_OUTPUT)), "RuntimeError: "),
        (_npz(image_0=_IMAGE), "KeyError"),
        (_npz(output_0_0=_OUTPUT), "KeyError"),
        (_npz(image_0=_IMAGE.astype(np.int32), output_0_0=_OUTPUT), "is int32 (8, 8, 3), expected uint8 (8, 8, 3)"),
        (_npz(image_0=_IMAGE[:4], output_0_0=_OUTPUT), "is uint8 (4, 8, 3), expected uint8 (8, 8, 3)"),
        (_npz(image_0=np.array([{}], object), output_0_0=_OUTPUT), "pickle"),
    ],
)
def test_golden_that_is_not_what_was_promised(tmp_path: Path, data: bytes, expected: str) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", files={**FILES, "golden.npz": data}))
    with pytest.raises(BundleError) as caught:
        bundle.golden()
    assert expected in str(caught.value)
    assert "golden.npz" in str(caught.value)


def test_labels_that_are_not_text(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", files={**FILES, "labels.txt": b"\xff\xfe"}))
    with pytest.raises(BundleError, match="not UTF-8"):
        bundle.labels()


def test_a_signature_by_a_trusted_key_is_demanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    trusted = load_public_key(generate_key(tmp_path / "mine.key"))
    stranger = load_public_key(generate_key(tmp_path / "other.key"))
    with pytest.raises(BundleError, match="not signed"):
        Bundle.open(folder, [trusted])
    assert run(["sign", str(folder), "--key", str(tmp_path / "mine.key")]) == 0
    assert "signed" in capsys.readouterr().out
    assert Bundle.open(folder, [stranger, trusted]).signed
    with pytest.raises(BundleError, match="not by a trusted key"):
        Bundle.open(folder, [stranger])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_wrong_signature_is_refused_before_anything_is_parsed(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    trusted = load_public_key(generate_key(tmp_path / "mine.key"))
    run(["sign", str(folder), "--key", str(tmp_path / "mine.key")])
    (folder / "manifest.json").write_bytes(b"{ this would not parse")
    with pytest.raises(BundleError, match="altered after signing"):
        Bundle.open(folder, [trusted])
    for junk in (b"", b"x" * 64, b"x" * 10_000):
        (folder / "manifest.sig").write_bytes(junk)
        with pytest.raises(BundleError, match="not by a trusted key"):
            Bundle.open(folder, [trusted])


def test_signing_again_keeps_one_signature(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    generate_key(tmp_path / "a.key")
    public = load_public_key(generate_key(tmp_path / "b.key"))
    assert run(["sign", str(folder), "--key", str(tmp_path / "a.key")]) == 0
    assert run(["sign", str(folder), "--key", str(tmp_path / "b.key")]) == 0
    assert Bundle.open(folder, [public]).signed


@pytest.mark.parametrize(
    ("version", "admitted"),
    [
        ("1.20.1", True),
        ("1.31.1", True),
        ("1.31.9", True),
        ("1.23.2+cu12", True),
        ("1.20.0", False),
        ("1.32.0", False),
        ("2.0", False),
    ],
)
def test_runtime_range(tmp_path: Path, version: str, admitted: bool) -> None:
    assert RuntimeRange("1.20.1", "1.31.1").admits(version) is admitted
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    if admitted:
        bundle.check_device("x86_64", version)
    else:
        with pytest.raises(IncompatibleError, match=f"1.20.1 to 1.31.1, found {version}") as caught:
            bundle.check_device("x86_64", version)
        assert caught.value.exit_code == 6


def test_another_machine_is_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge"))
    with pytest.raises(IncompatibleError, match=r"built for x86_64 .* this machine is aarch64"):
        bundle.check_device("aarch64", "1.31.1")


def test_json_output_of_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    assert run(["keygen", str(tmp_path / "k"), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["public_key"] == str(tmp_path / "k.pub")
    assert run(["sign", str(folder), "--key", str(tmp_path / "k"), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["digest"] == Bundle.open(folder).digest
