"""Unknown contexts: the world draws the context after the decision (Huang, Song, Xue and Qian 2024)."""

from cbo_lib.contexts.baselines import DRBOMMD, GPUCB, DRBOMMDMinimax, StableOpt
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, SBOEmpirical, SBOKnown
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import tv_worst_case

__all__ = [
    "DRBOKDE",
    "DRBOMMD",
    "GPUCB",
    "SBOKDE",
    "DRBOMMDMinimax",
    "GaussianKDE",
    "SBOEmpirical",
    "SBOKnown",
    "Space",
    "StableOpt",
    "tv_worst_case",
]
