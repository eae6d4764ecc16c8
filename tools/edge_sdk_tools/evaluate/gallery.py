"""Make the gallery of a model of embeddings: the vectors of pictures in folders, each folder a name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError, OutputError, UsageError
from edge_sdk.tasks.embedding import Embedding
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import Skipped
from edge_sdk_tools.evaluate.model import open_subject
from edge_sdk_tools.evaluate.predictions import Look, look_at
from edge_sdk_tools.jobs.runner import OnProgress, silent


class GalleryMade(msgspec.Struct, frozen=True):
    """How many names and vectors a gallery has, and which pictures are not in it."""

    names: int
    vectors: int
    skipped: tuple[Skipped, ...]


def make_gallery(model: Path, folder: Path, output: Path, on_progress: OnProgress = silent) -> GalleryMade:
    """Write the vectors of all pictures in the folders of `folder`, whose names they get, to an .npz.

    Raises:
        UsageError: the model gives no embeddings; the file exists, or its name does not end in .npz.
        DataError: there is no usable picture in any folder.
        OutputError: the file cannot be written.
    """
    if output.suffix != ".npz" or output.exists():
        raise UsageError(f"{output}: expected a new file whose name ends in .npz; nothing is overwritten")
    subject = open_subject(model)
    if subject.spec.task != "embedding":
        raise UsageError(f'{model}: its task is {subject.spec.task}, expected task = "embedding"')
    images = find_images([folder], decode=False)
    names = [image.path.relative_to(folder).parts[0] for image in images.images]
    alone = next((image.path for image in images.images if image.path.parent == folder), None)
    if alone is not None:
        raise DataError(f"{alone}: lies in no folder of {folder}, expected one folder a name")

    def open_worker() -> Look[NDArray[np.float32]]:
        run = subject.open()

        def look(_index: int, image: NDArray[np.uint8]) -> NDArray[np.float32]:
            result = run(image).result
            assert isinstance(result, Embedding)
            return result.vector

        return look

    seen = look_at(images, open_worker, lambda done: on_progress("embed", done, len(images)))
    if not seen.values:
        raise DataError(f"{folder}: none of {len(images)} pictures can be read")
    kept = [names[index] for index in seen.indices]
    try:
        with output.open("xb") as file:
            np.savez_compressed(file, names=np.array(kept), vectors=np.stack(seen.values))
    except OSError as cause:
        raise OutputError(f"{output}: cannot be written: {cause.strerror}") from cause
    return GalleryMade(len(set(kept)), len(kept), (*images.skipped, *seen.skipped))
