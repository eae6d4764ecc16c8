"""The two files of a report."""

from __future__ import annotations

from pathlib import Path

from edge_sdk_tools.ledger import Ledger, to_json
from edge_sdk_tools.report.page import render_html

HTML_FILE = "report.html"
JSON_FILE = "report.json"


def write_report(ledger: Ledger, folder: Path) -> None:
    """Write report.html and report.json into a folder that is not in use yet; it is made where it is missing.

    Both are made before either is written. Whoever moves the folder into its place makes them appear at once.

    Raises:
        FileExistsError: one of them is there already.
        OSError: the folder cannot be written to.
    """
    contents = {HTML_FILE: render_html(ledger).encode(), JSON_FILE: to_json(ledger)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        with (folder / name).open("xb") as file:
            file.write(data)
