"""Unknown hyperparameters: a point query under a doubted prior (Ziomek, Adachi and Osborne 2024)."""

from cbo_lib.hyperparameters.baselines import AGPUCB, ExpectedUCB, MaximumLikelihood, OracleGPUCB, OracleStableOpt
from cbo_lib.hyperparameters.policies import HEGPUCB, CandidatePolicy, HEStableOpt
from cbo_lib.hyperparameters.space import Candidates, Space

__all__ = [
    "AGPUCB",
    "HEGPUCB",
    "CandidatePolicy",
    "Candidates",
    "ExpectedUCB",
    "HEStableOpt",
    "MaximumLikelihood",
    "OracleGPUCB",
    "OracleStableOpt",
    "Space",
]
