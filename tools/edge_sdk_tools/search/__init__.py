"""Which recipe a bundle carries, and why."""

from edge_sdk_tools.search.choice import Choice, check_size, choose_fp32, choose_int8, refuse_without_int8
from edge_sdk_tools.search.forms import forms_of
from edge_sdk_tools.search.search import RecipeSearch, Search
from edge_sdk_tools.search.sensitivity import Ranking, Sensitivity, rank_layers
from edge_sdk_tools.search.setting import Setting
from edge_sdk_tools.search.shortfall import Shortfall, relative_drop, shortfall_of
from edge_sdk_tools.search.trial import Trial, Tried

__all__ = [
    "Choice",
    "Ranking",
    "RecipeSearch",
    "Search",
    "Sensitivity",
    "Setting",
    "Shortfall",
    "Trial",
    "Tried",
    "check_size",
    "choose_fp32",
    "choose_int8",
    "forms_of",
    "rank_layers",
    "refuse_without_int8",
    "relative_drop",
    "shortfall_of",
]
