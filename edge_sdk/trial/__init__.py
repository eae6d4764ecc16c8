"""Trial: what a bundle's model does to a process is found out in one that may die of it.

`python -m edge_sdk.trial` is that process.
"""

from edge_sdk.trial.limits import TrialLimits
from edge_sdk.trial.proving import TRIAL_S, prove_here

__all__ = ["TRIAL_S", "TrialLimits", "prove_here"]
