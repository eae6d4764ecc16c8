"""report.html and report.json, from a ledger."""

from edge_sdk_tools.report.files import HTML_FILE, JSON_FILE, write_report
from edge_sdk_tools.report.page import render_html

__all__ = ["HTML_FILE", "JSON_FILE", "render_html", "write_report"]
