"""report.html and report.json, from a report."""
