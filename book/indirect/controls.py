"""A policy that does not look, to judge the others by."""

from torch import Tensor

from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.random import uniform


class RandomQueries(IndirectPolicy):
    """Asks uniformly random actions."""

    def scores(self) -> Tensor:
        """Random numbers."""
        return uniform(self.generators, (len(self.places),), self.left)
