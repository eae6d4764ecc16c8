"""RefusedModelError: a model that is refused, with the next step apart from the sentence.

Owns the form of both: joined in the text of the error, apart in a finding.
"""

from __future__ import annotations

from edge_sdk.core.errors import ModelError
from edge_sdk_tools.check.report import Finding


class RefusedModelError(ModelError):
    """A model that cannot be used.

    Args:
        what: the sentence, with what was expected and got.
        next_step: what to do.
    """

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(f"{what}; {next_step}")
        self.what = what
        self.next_step = next_step

    def finding(self, rule: str) -> Finding:
        """The same as an error in a report."""
        return Finding(severity="error", rule=rule, what=self.what, next_step=self.next_step)
