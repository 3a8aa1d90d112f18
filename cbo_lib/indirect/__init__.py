"""Indirect queries: the learner sees conditional averages of f (Zhang, Bouabid, Ong, Flaxman and Sejdinovic 2025)."""

from cbo_lib.indirect.acquisition import ConditionalMaxValueEntropy
from cbo_lib.indirect.embedding import conditional_mean_measure, estimate_policies
from cbo_lib.indirect.entropy import conditional_max_value_entropy
from cbo_lib.indirect.policies import CMES, ActionPolicy, DirectMES, RandomQueries
from cbo_lib.indirect.problem import ClippedGaussian, FinitePolicies, IndirectProblem, UniformWindow
from cbo_lib.indirect.tree import CMETS, Nodes

__all__ = [
    "CMES",
    "CMETS",
    "ActionPolicy",
    "ClippedGaussian",
    "ConditionalMaxValueEntropy",
    "DirectMES",
    "FinitePolicies",
    "IndirectProblem",
    "Nodes",
    "RandomQueries",
    "UniformWindow",
    "conditional_max_value_entropy",
    "conditional_mean_measure",
    "estimate_policies",
]
