"""The folder that the demo leaves: replaced as a whole by a demo that succeeded, untouched by one that failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.core.errors import OutputError

PICTURE = "annotated.jpg"
VIDEO = "annotated.mp4"
MESSAGES = "messages.jsonl"
BUNDLE = "yolov4_tiny.edge"
_OURS = {PICTURE, VIDEO, MESSAGES, BUNDLE}


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to, and rename it to `folder` when the block succeeds.

    Args:
        folder: where the result goes; when it exists it may hold nothing but what an earlier demo wrote.

    Yields:
        The temporary folder.

    Raises:
        OutputError: `folder` holds something else, or cannot be written.
    """
    folder = folder.absolute()
    _check(folder)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as cause:
        raise OutputError(f"{folder}: cannot be written: {cause.strerror}") from cause
    try:
        yield partial
        _replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{folder}: is not a folder; choose another with --output")
    if not folder.exists():
        return
    strange = sorted({item.name for item in folder.iterdir()} - _OURS)
    if strange:
        raise OutputError(f"{folder}: holds {strange[0]}, which no demo wrote; choose another folder with --output")


def _replace(partial: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    try:
        # Again: the demo took a while, and what somebody put there meanwhile is theirs.
        _check(folder)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except OSError as cause:
        raise OutputError(f"{folder}: cannot be written: {cause.strerror}") from cause
    shutil.rmtree(old, ignore_errors=True)
