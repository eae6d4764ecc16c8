"""`python tools/documents.py [--check]`: write the documents in docs/ that the code defines, or compare them.

They are the JSON Schemas of the configuration, the manifest, the report and every message, and docs/asyncapi.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncapi import asyncapi_document
from edge_sdk.bundle.manifest import manifest_schema
from edge_sdk.config.schema import config_schema
from edge_sdk.messages.schema import MESSAGES, message_schema
from edge_sdk_tools.report.schema import report_schema

_DOCS = Path(__file__).parent.parent / "docs"


def documents() -> dict[str, bytes]:
    """Return the content of every generated document, by file name."""
    with_schema = [kind for kind, spec in MESSAGES.items() if spec.type is not None and spec.topic]
    return {
        "config.schema.json": config_schema(),
        "manifest.schema.json": manifest_schema(),
        "report.schema.json": report_schema(),
        "asyncapi.json": asyncapi_document(),
        **{f"{kind}.schema.json": message_schema(kind) for kind in with_schema},
    }


def main() -> None:
    """Write the documents; with `--check` only compare, and end with 1 where one differs."""
    written = documents()
    if "--check" not in sys.argv[1:]:
        for name, content in written.items():
            (_DOCS / name).write_bytes(content)
        return
    differ = [n for n, content in written.items() if not (_DOCS / n).is_file() or (_DOCS / n).read_bytes() != content]
    if differ:
        sys.exit(f"docs/: out of date: {', '.join(differ)}; run `make docs`")


if __name__ == "__main__":
    main()
