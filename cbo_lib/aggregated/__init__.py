"""Aggregated feedback: the learner picks a cell and sees its average (Zhang, Tsuchida and Ong 2022)."""

from cbo_lib.aggregated.baselines import AveStoOO, GPTree, StoOO, UniformGrid
from cbo_lib.aggregated.policies import GPOO
from cbo_lib.aggregated.space import Space

__all__ = ["GPOO", "AveStoOO", "GPTree", "Space", "StoOO", "UniformGrid"]
