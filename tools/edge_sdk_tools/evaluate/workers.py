"""Every image once, on all cores.

Each worker has a model of its own with one thread, which scales better than operators that share their work. Owns the
threads and the order; what an image gives is the caller's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk.core.frame import Image
from edge_sdk_tools.dataset import ImageFile, ImageSet, Skipped

T = TypeVar("T")

Look = Callable[[int, Image], T]
"""What a worker does with one image: its place in the set and the picture in, anything out."""


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """What the images gave.

    Attributes:
        indices: of the images that could be read, in order.
        values: one each.
        skipped: the others.
    """

    indices: tuple[int, ...]
    values: tuple[T, ...]
    skipped: tuple[Skipped, ...]


def look_at(
    images: ImageSet,
    open_worker: Callable[[], Look[T]],
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Seen[T]:
    """Look at every image.

    Args:
        images: what to look at.
        open_worker: makes what one thread works with.
        on_image: called with the number done, from any thread.
        jobs: threads; as many as this process has cores by default.

    Raises:
        EdgeError: what a worker raised, other than that an image cannot be read.
    """
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(1, len(images)))
    own = threading.local()
    counting = threading.Lock()
    done = 0

    def look(index: int) -> T | Skipped:
        nonlocal done
        if not hasattr(own, "look"):
            own.look = open_worker()
        value = _look(own.look, index, images.images[index])
        with counting:
            done += 1
            on_image(done)
        return value

    with ThreadPoolExecutor(jobs) as threads:
        try:
            values = list(threads.map(look, range(len(images))))
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    seen = [(i, value) for i, value in enumerate(values) if not isinstance(value, Skipped)]
    return Seen(
        tuple(i for i, _ in seen),
        tuple(value for _, value in seen),
        tuple(value for value in values if isinstance(value, Skipped)),
    )


def _look(look: Look[T], index: int, file: ImageFile) -> T | Skipped:
    try:
        image = file.read()
    except DataError as cause:
        return Skipped(file.path, str(cause).removeprefix(f"{file.path}: "))
    return look(index, image)
