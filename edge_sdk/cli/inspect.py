"""`edge-sdk inspect`: show a bundle's manifest, the time of its operators, and the graph as it runs.

A bundle that does not run here can be inspected, too.
"""

from __future__ import annotations

import platform
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

import click
import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE, FileEntry, Variant
from edge_sdk.bundle.target import CPU
from edge_sdk.cli.options import PATH, echo_json, logging_to_standard_error
from edge_sdk.core.errors import EdgeError, IncompatibleError, OutputError, UsageError, printable
from edge_sdk.core.files import check_new_file, state_folder
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.profile import Profile, profile_of
from edge_sdk.inference.runtime import (
    Providers,
    SessionSettings,
    check_device,
    described_runtime,
    onnxruntime_version,
    shortfalls_here,
)
from edge_sdk.inference.session import Session
from edge_sdk.inference.trial import check_here, prove_here
from edge_sdk.tuning.candidates import figures
from edge_sdk.tuning.tuning import Record, Records, TunedMachine

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
    check_new_file(path)
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
        check_here(bundle)
    except EdgeError as cause:
        return str(cause).removeprefix(f"{bundle.path}: ")
    return None


_TOP = 10
_BAR = 24
_SIGNATURES = {
    "verified": "by a trusted key",
    "unverified": "there is one, not checked (--trust KEY.pub)",
    "none": "none",
}


@click.command("inspect")
@click.argument("bundle", type=PATH)
@click.option("--variant", metavar="NAME", help="Another of the bundle's models, such as int8.320x320 or fp32.")
@click.option("--trust", multiple=True, type=PATH, help="Public key; requires a signature by it. Repeatable.")
@click.option("--profile", "with_profile", is_flag=True, help="Run the golden inputs and show where the time goes.")
@click.option("--runs", type=click.IntRange(min=1, max=10_000), default=50, show_default=True, help="With --profile.")
@click.option("--graph", type=PATH, help="Write the graph as it runs here to a new .onnx file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    bundle: Path,
    variant: str | None,
    trust: tuple[Path, ...],
    with_profile: bool,
    runs: int,
    graph: Path | None,
    as_json: bool,
) -> None:
    """Show what BUNDLE is and promises, and where its time goes here."""
    opened = Bundle.open(bundle, trust)
    if variant is not None:
        opened = opened.with_primary(variant)
    inspection = inspect_bundle(opened)
    tuned = _tuned(opened)
    if graph is not None or with_profile:
        check_device(opened)
        with logging_to_standard_error():
            prove_here(opened)
    if graph is not None:
        write_graph(opened, graph)
    profiled = profile_bundle(opened, runs) if with_profile else None
    if as_json:
        graph_file = str(graph) if graph else None
        found = {"bundle": inspection, "tuned": tuned, "run": profiled, "graph": graph_file}
        echo_json(found)
        return
    _show(inspection, tuned)
    if profiled is not None:
        _show_profile(profiled)
    if graph is not None:
        click.echo(f"\nthe graph as it runs here is in {graph}")


def _tuned(bundle: Bundle) -> list[Record]:
    """Return the tuning records with which `edge-sdk run` starts on this machine in place of the bundle's settings."""
    try:
        return Records(state_folder() / "tuning").known(bundle, TunedMachine.here())
    except EdgeError:  # there is no state folder that could hold records
        return []


def _show(found: Inspection, tuned: list[Record]) -> None:
    built = f"built {found.created_at} for {found.target}"  # a manifest may have any text in both
    is_reducible = found.providers == (CPU,) and all(one.file.endswith(".ort") for one in found.variants)
    reduced = ", or a reduced one that was built for it" if is_reducible else ""
    click.echo(printable(f"{found.name} {found.version}, {built} ({found.machine})"))
    for name, text in (
        ("task", f"{found.task}, decoder {found.decoder}, {found.labels} labels"),
        ("budget", f"{found.latency_budget_ms:g} ms from capture to outbox"),
        ("runs with", f"ONNX Runtime {' to '.join(dict.fromkeys(found.onnxruntime))}{reduced}"),
        ("settings", _settings(found)),
        ("runtime", f"{found.runtime}, installed here"),
        (
            "here",
            found.refusal or "; ".join(shortfalls_here(found.providers)) or "compatible with this machine",
        ),
        ("custom ops", ", ".join(found.custom_operators) or None),
        ("libraries", ", ".join(found.libraries) or None),
        ("signature", _SIGNATURES[found.signature]),
        ("digest", found.digest),
        ("fallback", found.fallback_reason),
        ("teacher", found.distillation),
    ):
        if text is not None:
            click.echo(printable(f"{name:<10}  {text}"))
    for record in tuned:
        wish, outcome = record.request, record.tuned
        click.echo(
            f"{'tuned':<10}  camera {wish.camera}, {outcome.fps:g} frames a second, {wish.limits.budget_ms:g} ms: "
            f"{outcome.chosen.candidate} ({figures(outcome.chosen)})"
        )
    click.echo("\nvariants, the default first")
    sizes = {file.name: file.size for file in found.files}
    for one in found.variants:
        click.echo(f"  {one.name:<16}{_variant(one, sizes[one.file])}")
    if all(one.estimate is None for one in found.variants) and found.machine != platform.machine():
        there = f"these times are not the device's ({found.target}): `edge-sdk bench` tells there"
        click.echo(printable(f"{there}, or for a Raspberry Pi 4 or 5 a build after `edge-sdk arm-cost setup`"))
    click.echo("\nfiles")
    for file in found.files:
        click.echo(f"  {file.size:>12,}  {file.sha256[:12]}…  {file.name}")


def _settings(found: Inspection) -> str:
    providers = ", then ".join(p.removesuffix("ExecutionProvider") for p in found.providers)
    threads = "1 thread" if found.intra_op_num_threads == 1 else f"{found.intra_op_num_threads} threads"
    spins = ", spinning" if found.allow_spinning else ""
    return f"{providers}; {threads}{spins}; a board with {found.memory_mb} MiB of memory"


def _variant(one: Variant, size: int) -> str:
    width, height = one.size_wh
    tensor = f" {one.tensor.dtype} {one.tensor.layout}" if one.tensor else ""
    parts = [f"{one.precision}, {width}x{height}{tensor}", f"{size / 1e6:.2f} MB"]
    if one.quality is not None:
        parts.append(f"{one.quality.metric} {one.quality.value:.3f} (FP32 {one.quality.fp32:.3f})")
    if one.agreement is not None:
        parts.append(f"agreement with FP32 {one.agreement.value:.3f}")
    if one.integer_mac_share is not None:
        parts.append(f"{one.integer_mac_share:.0%} of the quantized MACs in integer kernels")
    parts.append(f"{one.host_latency_ms:.3g} ms on the workstation that built it")
    if one.estimate is not None:
        parts.append(f"estimated {one.estimate.low_ms:.0f} to {one.estimate.high_ms:.0f} ms on a {one.estimate.core}")
    return ", ".join(parts)


def _show_profile(run: ProfiledRun) -> None:
    profile = run.profile
    nodes = Counter(node.provider for node in profile.nodes)
    click.echo(
        f"\n{run.variant} here: {profile.run_ms:.3f} ms a run (median of {profile.runs}, being profiled), "
        f"ONNX Runtime {run.onnxruntime}"
    )
    click.echo("nodes on " + ", ".join(f"{_short(provider)}: {count}" for provider, count in nodes.items()))
    for line in run.providers.shortfalls():
        click.echo(f"warning: {line}")
    width = max(len(o.operator) for o in profile.operators) + 2
    click.echo(f"\n{'operator':<{width}}{'on':<8}{'nodes':>6}{'ms':>10}{'share':>8}")
    for operator in profile.operators:
        click.echo(
            f"{operator.operator:<{width}}{_short(operator.provider):<8}{operator.nodes:>6}{operator.ms:>10.3f}"
            f"{operator.share:>8.1%}  {'█' * round(_BAR * operator.share)}".rstrip()
        )
    width = max(len(node.operator) for node in profile.nodes[:_TOP]) + 2
    click.echo(f"\nthe slowest of {len(profile.nodes)} nodes")
    for node in profile.nodes[:_TOP]:
        name = node.node or "(no name)"
        click.echo(f"{node.operator:<{width}}{_short(node.provider):<8}{node.ms:>10.3f}{node.share:>8.1%}  {name}")


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider") or "?"
