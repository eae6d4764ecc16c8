"""Float ONNX -> INT8 ONNX, by a recipe."""

from edge_sdk_tools.quantize.activations import Activations, watch_activations
from edge_sdk_tools.quantize.core_form import core_form, signs_activations
from edge_sdk_tools.quantize.doubts import doubts_about_calibration
from edge_sdk_tools.quantize.entrance import TO_PLANES, Entrance, entrance
from edge_sdk_tools.quantize.kept import watch_once
from edge_sdk_tools.quantize.local_noise import LocalNoise, local_noise
from edge_sdk_tools.quantize.macs import convolution_macs
from edge_sdk_tools.quantize.pixel_range import pixel_range
from edge_sdk_tools.quantize.quantize import Quantized, quantize, quantized_proto
from edge_sdk_tools.quantize.ranges import CALIBRATIONS, Calibration
from edge_sdk_tools.quantize.recipe import Recipe, first_recipe, recipes_for
from edge_sdk_tools.quantize.simplified import Simplified, refuse_quantized, simplify
from edge_sdk_tools.quantize.tail import WEIGHTED, decoding_tail

__all__ = [
    "CALIBRATIONS",
    "TO_PLANES",
    "WEIGHTED",
    "Activations",
    "Calibration",
    "Entrance",
    "LocalNoise",
    "Quantized",
    "Recipe",
    "Simplified",
    "convolution_macs",
    "core_form",
    "decoding_tail",
    "doubts_about_calibration",
    "entrance",
    "first_recipe",
    "local_noise",
    "pixel_range",
    "quantize",
    "quantized_proto",
    "recipes_for",
    "refuse_quantized",
    "signs_activations",
    "simplify",
    "watch_activations",
    "watch_once",
]
