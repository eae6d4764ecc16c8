"""Images -> tensors for the quantizer, one at a time, through the very prepare stage that the device uses."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.frame import Tensor
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk_tools.dataset import ImageSet


class ImageReader:
    """Hands the quantizer one prepared image a call and keeps none of them.

    It is a `CalibrationDataReader` by its methods, as ONNX Runtime allows; to mypy a base class of theirs would be Any.

    Args:
        images: what to calibrate with.
        spec: the model's input.
        input_name: the model's input.
        on_image: called after each image with the number done, for a progress bar.
    """

    def __init__(
        self, images: ImageSet, spec: InputSpec, input_name: str, on_image: Callable[[int], None] = lambda _: None
    ) -> None:
        self._images, self._input_name, self._on_image = images.images, input_name, on_image
        self._prepare = Prepare(spec)
        self.set_range(0, len(images))

    def set_range(self, start_index: int, end_index: int) -> None:
        """Hand out images from `start_index` to before `end_index` next."""
        self._next, self._end = start_index, end_index

    def get_next(self) -> dict[str, Tensor] | None:
        """The next input, or None at the end of the range."""
        if self._next >= self._end:
            return None
        image = self._images[self._next]
        self._next += 1
        self._on_image(self._next)
        return {self._input_name: self._prepare.normalise(self._prepare.resize(image.read()))}

    def __len__(self) -> int:
        return len(self._images)
