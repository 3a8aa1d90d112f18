"""Variable subsets at a price: what to control, when control costs (Hoang, Nguyen and Tran 2024)."""

from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.bounds import Effort
from cbo_lib.subsets.choice import choose
from cbo_lib.subsets.marginals import TruncatedNormal, Uniform
from cbo_lib.subsets.policies import CheapestGoodSubset, SubsetPolicy
from cbo_lib.subsets.problem import SubsetProblem

__all__ = [
    "TSPSQ",
    "UCBCVS",
    "UCBPSQ",
    "CheapestGoodSubset",
    "Effort",
    "GroupETC",
    "SubsetPolicy",
    "SubsetProblem",
    "TruncatedNormal",
    "Uniform",
    "choose",
]
