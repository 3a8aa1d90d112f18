"""Variable subsets at a price: what to control, when control costs (Hoang, Nguyen and Tran 2024).

Keys such as [Hoang2024] are those of ``book/references.bib``, author and year.
"""

from cbo_lib.subsets.base import Play, SubsetPolicy
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from cbo_lib.subsets.space import Space

__all__ = ["TSPSQ", "UCBCVS", "UCBPSQ", "CheapestGoodSubset", "Effort", "GroupETC", "Play", "Space", "SubsetPolicy"]
