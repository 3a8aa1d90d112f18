"""Indirect queries: the learner sees conditional averages of f (Zhang, Bouabid, Ong, Flaxman and Sejdinovic 2025)."""

from cbo_lib.indirect.baselines import EI, MES, UCB, RandomActions
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding
from cbo_lib.indirect.policies import CMES, CMETS, IndirectPolicy, ScheduledUCB
from cbo_lib.indirect.space import ClippedGaussian, Nodes, Point, Space, UniformWindow

__all__ = [
    "CMES",
    "CMETS",
    "EI",
    "MES",
    "UCB",
    "ClippedGaussian",
    "ConditionalMeanEmbedding",
    "IndirectPolicy",
    "Nodes",
    "Point",
    "RandomActions",
    "ScheduledUCB",
    "Space",
    "UniformWindow",
]
