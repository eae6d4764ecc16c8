"""Further models in one bundle: other input sizes, float, float with half weights, dynamic INT8."""

from edge_sdk_tools.variants.folder import add_variants
from edge_sdk_tools.variants.made import Made
from edge_sdk_tools.variants.plan import Plan, plan_variants
from edge_sdk_tools.variants.request import Request, parse_sizes, size_text
from edge_sdk_tools.variants.row import row_of
from edge_sdk_tools.variants.workbench import Workbench

__all__ = [
    "Made",
    "Plan",
    "Request",
    "Workbench",
    "add_variants",
    "parse_sizes",
    "plan_variants",
    "row_of",
    "size_text",
]
