"""manifest.json: parsed and checked, encoded, and its JSON Schema."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from edge_sdk.errors import BundleError
from edge_sdk.manifest.manifest import SCHEMA_VERSION, Manifest

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        data: the bytes of manifest.json, already verified where keys are trusted.
        where: what to call it in errors.

    Raises:
        BundleError: when it is not JSON, of a newer schema, or promises something impossible.
    """
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise BundleError(f"{where}: not valid JSON: {cause}") from cause
    _check_schema_version(loose, where)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.ValidationError as cause:
        raise BundleError(f"{where}: {cause}") from cause
    _check_names(manifest, where)
    _check_variants(manifest, where)
    _check_tensors(manifest, where)
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON, ending in a line feed."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def manifest_schema() -> bytes:
    """The JSON Schema of manifest.json, as docs/manifest.schema.json holds it."""
    import inspect  # nobody needs it on a device

    schema = msgspec.json.schema(Manifest)
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on.
        definition["description"] = inspect.cleandoc(definition["description"])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _check_schema_version(loose: Any, where: str) -> None:
    version = loose.get("schema_version") if isinstance(loose, dict) else None
    if not isinstance(version, int):
        raise BundleError(f"{where}: schema_version is missing, expected {SCHEMA_VERSION}")
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{where}: schema_version is {version}, expected {SCHEMA_VERSION}; "
            + ("update edge-sdk on this device" if version > SCHEMA_VERSION else "build the bundle again")
        )


def _check_tensors(manifest: Manifest, where: str) -> None:
    """Gray pictures have one channel and coloured ones three, whatever a variant likes."""
    color = manifest.input.color
    for variant in manifest.variants:
        tensor = variant.tensor
        if tensor is not None and (tensor.color == "GRAY") != (color == "GRAY"):
            raise BundleError(f"{where}: {variant.file!r} takes {tensor.color} pictures and input.color is {color}")


def _check_names(manifest: Manifest, where: str) -> None:
    names = [f.name for f in manifest.files]
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or name in (MANIFEST_FILE, SIGNATURE_FILE):
            raise BundleError(f"{where}: file name {name!r} is not allowed, expected a plain name without folders")
    if len(set(names)) != len(names):
        raise BundleError(f"{where}: a file is named twice")
    promised = (name for v in manifest.variants for name in (v.file, v.golden.file))
    for wanted in (manifest.labels, *manifest.libraries, *promised):
        if wanted not in names:
            raise BundleError(f"{where}: {wanted!r} is promised but not among the files")


def _check_variants(manifest: Manifest, where: str) -> None:
    files = [v.file for v in manifest.variants]
    if len(set(files)) != len(files):
        raise BundleError(f"{where}: a variant is there twice")
    first = manifest.variants[0]
    if first.size_wh != manifest.input.size_wh:
        raise BundleError(
            f"{where}: {first.file} has the size {_size(first.size_wh)}, expected input.size_wh, "
            f"{_size(manifest.input.size_wh)}"
        )
    for name in {name for v in manifest.variants for name in v.operators} - {*manifest.operators}:
        raise BundleError(f"{where}: a variant has the operator {name!r}, which operators does not name")


def _size(size_wh: tuple[int, int]) -> str:
    return f"{size_wh[0]}x{size_wh[1]}"
