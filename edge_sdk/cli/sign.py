"""`edge-sdk keygen` and `edge-sdk sign`: a key pair, and an Ed25519 signature over a bundle's manifest."""

from __future__ import annotations

import os
from pathlib import Path

import click

from edge_sdk.bundle import signing
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE
from edge_sdk.cli.options import PATH, echo_json
from edge_sdk.core.errors import OutputError


@click.command("keygen")
@click.argument("path", type=PATH, default=Path("edge-sdk.key"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def keygen(path: Path, as_json: bool) -> None:
    """Make a key pair: keep PATH (edge-sdk.key by default) secret, and copy PATH.pub to every device."""
    public = signing.generate_key(path)
    if as_json:
        echo_json({"private_key": str(path), "public_key": str(public)})
        return
    width = len(str(public))
    click.echo(f"{path!s:<{width}}  private, keep it here:     edge-sdk sign NAME.edge --key {path}")
    click.echo(f"{public}  public, for every device:  edge-sdk run NAME.edge --trust {public} ...")


@click.command("sign")
@click.argument("bundle", type=PATH)
@click.option("--key", required=True, type=PATH, help="Private key from `edge-sdk keygen`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def sign_bundle(bundle: Path, key: Path, as_json: bool) -> None:
    """Verify BUNDLE and sign its manifest, which has the name and hash of every other file."""
    private_key = signing.load_private_key(key)
    opened = Bundle.open(bundle)
    signature = signing.sign(opened.manifest_bytes, private_key)
    bundle = bundle.absolute()
    partial = bundle.with_name(f".{bundle.name}.sig-{os.getpid()}")
    try:
        partial.write_bytes(signature)
        partial.replace(bundle / SIGNATURE_FILE)
    except OSError as cause:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{bundle / SIGNATURE_FILE}: cannot be written: {cause.strerror}") from cause
    if as_json:
        echo_json({"bundle": str(bundle), "digest": opened.digest, "signed": True})
        return
    click.echo(f"signed {bundle} (digest {opened.digest[:12]}…)")
