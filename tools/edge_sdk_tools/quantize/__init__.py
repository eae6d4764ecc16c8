"""Float ONNX -> INT8 ONNX, by a recipe."""

from edge_sdk_tools.quantize.activations import Activations, doubts_about_calibration, watch_activations
from edge_sdk_tools.quantize.core_form import core_form
from edge_sdk_tools.quantize.macs import convolution_macs
from edge_sdk_tools.quantize.quantize import Quantized, quantize, quantized_proto
from edge_sdk_tools.quantize.ranges import CALIBRATIONS, Calibration, ranges_of
from edge_sdk_tools.quantize.recipe import Recipe, first_recipe, recipes_for
from edge_sdk_tools.quantize.simplified import Simplified, simplify
from edge_sdk_tools.quantize.tail import WEIGHTED, decoding_tail

__all__ = [
    "CALIBRATIONS",
    "WEIGHTED",
    "Activations",
    "Calibration",
    "Quantized",
    "Recipe",
    "Simplified",
    "convolution_macs",
    "core_form",
    "decoding_tail",
    "doubts_about_calibration",
    "first_recipe",
    "quantize",
    "quantized_proto",
    "ranges_of",
    "recipes_for",
    "simplify",
    "watch_activations",
]
