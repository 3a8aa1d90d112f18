"""Indirect queries: the learner sees conditional averages of f [Zhang2025]."""

from cbo_lib.indirect.baselines import ActionPolicy
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding, conditional_mean_measure
from cbo_lib.indirect.entropy import ConditionalMaxValueEntropy, conditional_max_value_entropy
from cbo_lib.indirect.policies import CMES, IndirectPolicy
from cbo_lib.indirect.space import ClippedGaussian, Point, Space, UniformWindow
from cbo_lib.indirect.tree import CMETS, Nodes

__all__ = [
    "CMES",
    "CMETS",
    "ActionPolicy",
    "ClippedGaussian",
    "ConditionalMaxValueEntropy",
    "ConditionalMeanEmbedding",
    "IndirectPolicy",
    "Nodes",
    "Point",
    "Space",
    "UniformWindow",
    "conditional_max_value_entropy",
    "conditional_mean_measure",
]
