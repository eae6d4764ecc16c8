"""`edge-sdk inspect`: show a bundle's manifest, the time of its operators, and the graph as it runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Variant
from edge_sdk.cli.options import PATH, echo_json, logging_to_standard_error
from edge_sdk.core.errors import EdgeError, printable
from edge_sdk.core.files import state_folder
from edge_sdk.inference.inspection import Inspection, ProfiledRun, inspect_bundle, profile_bundle, write_graph
from edge_sdk.inference.runtime import check_device
from edge_sdk.inference.trial import prove_here
from edge_sdk.tuning.candidates import figures
from edge_sdk.tuning.tuning import Record, Records, TunedMachine

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
@click.option("--trust", multiple=True, type=PATH, help="Public key; demands a signature. Repeatable.")
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
    is_reducible = found.machine == "aarch64" and all(one.file.endswith(".ort") for one in found.variants)
    reduced = ", or a reduced one that was built for it" if is_reducible else ""
    click.echo(printable(f"{found.name} {found.version}, {built} ({found.machine})"))
    for name, text in (
        ("task", f"{found.task}, decoder {found.decoder}, {found.labels} labels"),
        ("budget", f"{found.latency_budget_ms:g} ms from capture to outbox"),
        ("runs with", f"ONNX Runtime {found.onnxruntime[0]} to {found.onnxruntime[1]}{reduced}"),
        ("wants", _wishes(found)),
        ("runtime", f"{found.runtime}, installed here"),
        ("here", found.refusal or "nothing speaks against it"),
        ("operators", ", ".join(found.custom_operators) or None),
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
    click.echo("\nvariants, the promised one first")
    sizes = {file.name: file.size for file in found.files}
    for one in found.variants:
        click.echo(f"  {one.name:<16}{_variant(one, sizes[one.file])}")
    click.echo("\nfiles")
    for file in found.files:
        click.echo(f"  {file.size:>12,}  {file.sha256[:12]}…  {file.name}")


def _wishes(found: Inspection) -> str:
    providers = ", then ".join(p.removesuffix("ExecutionProvider") for p in found.providers)
    threads = "1 thread" if found.intra_op_num_threads == 1 else f"{found.intra_op_num_threads} threads"
    return f"{providers}; {threads}{', spinning' if found.allow_spinning else ''}; {found.memory_mb} MiB of memory"


def _variant(one: Variant, size: int) -> str:
    width, height = one.size_wh
    tensor = f" {one.tensor.dtype} {one.tensor.layout}" if one.tensor else ""
    parts = [f"{one.precision}, {width}x{height}{tensor}", f"{size / 2**20:.2f} MiB"]
    if one.quality is not None:
        parts.append(f"{one.quality.metric} {one.quality.value:.3f} (FP32 {one.quality.fp32:.3f})")
    if one.agreement is not None:
        parts.append(f"agrees with FP32 {one.agreement.value:.3f}")
    if one.integer_mac_share is not None:
        parts.append(f"{one.integer_mac_share:.0%} in integers")
    parts.append(f"{one.host_latency_ms:.3g} ms where it was built")
    if one.estimate is not None:
        parts.append(f"about {one.estimate.latency_ms:.3g} ms on a {one.estimate.core}")
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
