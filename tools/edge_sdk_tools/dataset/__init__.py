"""Images and labels in."""

from edge_sdk_tools.dataset.images import ImageFile, ImageSet, find_images

__all__ = ["ImageFile", "ImageSet", "find_images"]
