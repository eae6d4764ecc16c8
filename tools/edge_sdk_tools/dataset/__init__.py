"""Images and labels in, one reader a format."""

from edge_sdk_tools.dataset.carried import carried
from edge_sdk_tools.dataset.dataset import Dataset, Format
from edge_sdk_tools.dataset.finding import find_images
from edge_sdk_tools.dataset.images import ImageFile, ImageSet, Skipped
from edge_sdk_tools.dataset.mask import IGNORE, MaskTruth
from edge_sdk_tools.dataset.reading import read_dataset
from edge_sdk_tools.dataset.truth import BoxTruth, ClassTruth, Truth

__all__ = [
    "IGNORE",
    "BoxTruth",
    "ClassTruth",
    "Dataset",
    "Format",
    "ImageFile",
    "ImageSet",
    "MaskTruth",
    "Skipped",
    "Truth",
    "carried",
    "find_images",
    "read_dataset",
]
