"""Unknown contexts: the world draws the context after the decision (Huang, Song, Xue and Qian 2024)."""

from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.distribution import ContextDistribution
from cbo_lib.contexts.policies import DRBOKDE, GPUCB, SBOKDE, KnownDensity, RandomDecisions, Settings
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt
from cbo_lib.contexts.worst_case import MMDBall, mmd_minimax_approx, mmd_worst_case, tv_worst_case

__all__ = [
    "DRBOKDE",
    "DRBOMMD",
    "GPUCB",
    "SBOKDE",
    "ContextDistribution",
    "ContextProblem",
    "DRBOMMDMinimax",
    "GaussianKDE",
    "KnownDensity",
    "MMDBall",
    "RandomDecisions",
    "Settings",
    "StableOpt",
    "mmd_minimax_approx",
    "mmd_worst_case",
    "tv_worst_case",
]
