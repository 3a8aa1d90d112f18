"""Unknown hyperparameters: a point query under a doubted prior (Ziomek, Adachi and Osborne 2024)."""

from cbo_lib.hyperparameters.acquisition import OptimisticUpperConfidenceBound
from cbo_lib.hyperparameters.baselines import AGPUCB, GPUCB, ExpectedUCB, MaximumLikelihood
from cbo_lib.hyperparameters.policies import HEGPUCB
from cbo_lib.hyperparameters.problem import Candidates, UnknownPriorProblem
from cbo_lib.hyperparameters.robust import HEStableOpt, StableOpt
from cbo_lib.hyperparameters.widths import eliminates

__all__ = [
    "AGPUCB",
    "GPUCB",
    "HEGPUCB",
    "Candidates",
    "ExpectedUCB",
    "HEStableOpt",
    "MaximumLikelihood",
    "OptimisticUpperConfidenceBound",
    "StableOpt",
    "UnknownPriorProblem",
    "eliminates",
]
