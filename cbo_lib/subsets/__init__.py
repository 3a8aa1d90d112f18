"""Variable subsets at a price: what to control, when control costs (Hoang, Nguyen and Tran 2024)."""

from cbo_lib.subsets.base import SubsetPolicy
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.space import Space

__all__ = ["TSPSQ", "UCBCVS", "UCBPSQ", "CheapestGoodSubset", "GroupETC", "Space", "SubsetPolicy"]
