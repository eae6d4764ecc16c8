"""A model that takes a picture's integers, where that is exact and faster."""

from edge_sdk_tools.pixel_input.choose import InputTrial, LevelModel, choose_input, level_model
from edge_sdk_tools.pixel_input.level_graph import LevelGraph, level_graphs, with_fourth_channel
from edge_sdk_tools.pixel_input.race import Race, Way, judged, race

__all__ = [
    "InputTrial",
    "LevelGraph",
    "LevelModel",
    "Race",
    "Way",
    "choose_input",
    "judged",
    "level_graphs",
    "level_model",
    "race",
    "with_fourth_channel",
]
