"""Describe a bundle from its manifest, and measure its operators on this machine.

A bundle that does not run here can be inspected, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE, FileEntry, Variant
from edge_sdk.core.errors import EdgeError, IncompatibleError, OutputError, UsageError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.profile import Profile, profile_of
from edge_sdk.inference.runtime import Providers, check_device, described_runtime, onnxruntime_version
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings

_WARM_UP_RUNS = 3
_OWN_DOMAINS = ("ai.onnx:", "ai.onnx.ml:", "com.microsoft:", "com.microsoft.nchwc:", "com.ms.internal.nhwc:")


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a bundle, as `edge-sdk inspect` shows it.

    Attributes:
        signature: `verified` by a trusted key; `unverified` if there is a signature but no key was given; else `none`.
        custom_operators: `domain:name` of the first variant's operators that ONNX Runtime itself does not have.
        runtime: the ONNX Runtime installed here, in words.
        refusal: why it does not run here; None if no reason is known.
        fallback_reason: why it contains FP32; None if it contains INT8.
    """

    name: str
    version: int
    created_at: str
    target: str
    machine: str
    task: str
    decoder: str
    digest: str
    signature: Literal["verified", "unverified", "none"]
    labels: int
    libraries: tuple[str, ...]
    custom_operators: tuple[str, ...]
    latency_budget_ms: float
    onnxruntime: tuple[str, str]
    providers: tuple[str, ...]
    intra_op_num_threads: int
    allow_spinning: bool
    memory_mb: int
    runtime: str
    refusal: str | None
    fallback_reason: str | None
    distillation: str | None
    variants: tuple[Variant, ...]
    files: tuple[FileEntry, ...]


class ProfiledRun(msgspec.Struct, frozen=True):
    """The profile of one run of a bundle's primary variant on this machine."""

    variant: str
    onnxruntime: str
    providers: Providers
    profile: Profile


def inspect_bundle(bundle: Bundle) -> Inspection:
    """Describe a verified bundle."""
    manifest = bundle.manifest
    is_signed = (bundle.path / SIGNATURE_FILE).exists()
    shared = {name: getattr(manifest, name) for name in Inspection.__struct_fields__ if hasattr(manifest, name)}
    own = {
        "digest": bundle.digest,
        "signature": "verified" if bundle.signed else "unverified" if is_signed else "none",
        "labels": len(bundle.labels()),
        "custom_operators": tuple(o for o in manifest.variants[0].operators if not o.startswith(_OWN_DOMAINS)),
        "onnxruntime": (manifest.onnxruntime.minimum, manifest.onnxruntime.maximum),
        "runtime": described_runtime(),
        "refusal": _refusal(bundle),
        "distillation": manifest.distillation.line if manifest.distillation else None,
    }
    return Inspection(**(shared | own))


def profile_bundle(bundle: Bundle, runs: int = 50) -> ProfiledRun:
    """Profile runs of the first variant on its golden inputs, with the bundle's settings."""
    check_device(bundle)
    manifest = bundle.manifest
    prepare = Prepare.of(manifest)
    images = [image for image, _ in bundle.golden()]
    with tempfile.TemporaryDirectory(prefix="edge-sdk-profile-") as folder:
        settings = msgspec.structs.replace(SessionSettings.of(manifest), profile_prefix=str(Path(folder) / "profile"))
        session = Session.open(bundle, settings)
        session.replay_golden(bundle, prepare)
        for run in range(_WARM_UP_RUNS + runs):
            session.run(prepare.normalise(images[run % len(images)]))
        events = session.stop_profile()
    profile = profile_of(events, warm_up=len(images) + _WARM_UP_RUNS)
    return ProfiledRun(manifest.variants[0].name, onnxruntime_version(), session.providers, profile)


def write_graph(bundle: Bundle, path: Path) -> None:
    """Write the graph of the first variant, as ONNX Runtime runs it here, to a new file that ends in .onnx."""
    if path.suffix != ".onnx":
        raise UsageError(f"{path}: expected the name of a file that ends in .onnx")
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path}: exists already; choose another name, a graph is never overwritten")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            part = Path(folder) / path.name
            Session.open(bundle, msgspec.structs.replace(SessionSettings.of(bundle.manifest), graph_file=str(part)))
            if not part.exists():
                raise IncompatibleError(
                    f"{path}: ONNX Runtime {onnxruntime_version()} writes no graphs; install one that is not reduced"
                )
            part.rename(path)
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror or cause}") from cause


def _refusal(bundle: Bundle) -> str | None:
    try:
        check_device(bundle)
    except EdgeError as cause:
        return str(cause).removeprefix(f"{bundle.path}: ")
    return None
