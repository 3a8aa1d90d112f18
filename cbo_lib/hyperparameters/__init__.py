"""Unknown hyperparameters: a point query under a doubted prior (Ziomek, Adachi and Osborne 2024)."""

from cbo_lib.hyperparameters.base import CandidatePolicy
from cbo_lib.hyperparameters.baselines import AveragedUCB, MaximumLikelihood, OracleGPUCB, OracleStableOpt
from cbo_lib.hyperparameters.policies import HEGPUCB, HEStableOpt, eliminates
from cbo_lib.hyperparameters.space import Candidates, Space

__all__ = [
    "HEGPUCB",
    "AveragedUCB",
    "CandidatePolicy",
    "Candidates",
    "HEStableOpt",
    "MaximumLikelihood",
    "OracleGPUCB",
    "OracleStableOpt",
    "Space",
    "eliminates",
]
