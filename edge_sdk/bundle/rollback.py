"""Rollback protection: refuse a signed bundle that is older than a version that ran here before.

A signature stays valid for ever, so an attacker who can write to a device's disk could put back an old bundle with a
known fault. The state folder keeps, for each bundle name, the newest version that loaded and replayed its golden inputs
here. Only bundles with a verified signature count, because other manifests can state any version. A state folder that
cannot be read or written never stops a device.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import BundleError, OutputError
from edge_sdk.core.files import read_record, state_folder, write_record

_remembering = threading.Lock()  # two streams may prove two versions of one bundle at the same time


class _Newest(msgspec.Struct, frozen=True):
    """A record: the newest version of one bundle that was proved here."""

    version: int


def refuse_older(bundle: Bundle, *, allow_older: bool) -> str:
    """Raise BundleError if a newer version of a signed bundle ran here; where that is allowed, return a line for it."""
    version, name = bundle.manifest.version, bundle.manifest.name
    try:
        newest = _newest(bundle) if bundle.signed else 0
    except OutputError:  # `remember_version` reports it
        newest = 0
    if version >= newest:
        return ""
    if allow_older:
        return (
            f"{bundle.path}: version {version} of {name} is older than {newest}, which ran here; it is allowed to run"
        )
    raise BundleError(
        f"{bundle.path}: version {version} of {name}, expected {newest} or newer: {newest} ran here before; build it "
        "again, or allow older ones with --allow-older ([trust] allow_older = true)"
    )


def remember_version(bundle: Bundle) -> str:
    """Store the version of a signed bundle that was proved here, if it is the newest; return a line if that fails."""
    if not bundle.signed:
        return ""
    version, problem = bundle.manifest.version, ""
    with _remembering:
        try:
            newest = _newest(bundle)
        except OutputError as cause:
            newest, problem = 0, str(cause)
        if version > newest:
            try:
                write_record(_path(bundle), msgspec.json.encode(_Newest(version)))
            except OutputError as cause:
                problem = problem or str(cause)
    if not problem:
        return ""
    return f"which version of {bundle.manifest.name} is the newest is not known, so that any runs: {problem}"


def _newest(bundle: Bundle) -> int:
    """Read the newest version that was proved here; 0 where there is none; raise OutputError."""
    record = read_record(_path(bundle), _Newest)
    return 0 if record is None else record.version


def _path(bundle: Bundle) -> Path:
    return state_folder() / "versions" / f"{bundle.manifest.name}.json"
