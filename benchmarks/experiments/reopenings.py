"""What reopening a stream leaves behind: memory, descriptors and threads must be flat.

usage: python -m benchmarks.experiments.reopenings URL [--times 200]

Opens the stream, reads a frame, gives it back, and says every 25 times what the process holds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import numpy as np

from edge_sdk.sources.opencv import open_stream

_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


@click.command()
@click.argument("url")
@click.option("--times", default=200, show_default=True)
def main(times: int, url: str) -> None:
    """Reopen a stream again and again."""
    buffer = np.zeros((1, 1, 3), np.uint8)
    started = time.monotonic()
    for count in range(times + 1):
        capture = open_stream(url)
        if not capture.grab():
            raise click.ClickException("the stream gives no frame")
        image = capture.retrieve_into(buffer)
        buffer = buffer if image is None else image
        capture.release()
        if count % 25 == 0:
            resident_kb = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_KB
            descriptors, threads = (sum(1 for _ in Path(f"/proc/self/{name}").iterdir()) for name in ("fd", "task"))
            seconds = time.monotonic() - started
            print(f"{count:4} times, {seconds:5.1f} s: {resident_kb} kB, {descriptors} descriptors, {threads} threads")


if __name__ == "__main__":
    main()
