"""A rival that shrinks a lengthscale on a schedule, whatever the data say."""

from collections.abc import Callable, Sequence
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_schedule, as_values, require
from cbo_lib.hyperparameters import MaximumLikelihood, Space


class AGPUCB(MaximumLikelihood):
    """Adaptive GP-UCB ([Berkenkamp2019]), with the nearest candidate as in [Ziomek2024], Appendix J.1.

    The lengthscale at round ``t`` is that of the most likely candidate divided by ``max(1, g(t))``, whatever the data
    say later. The multiplier is not scaled as the norm bound of [Berkenkamp2019], so that all policies have the same.

    Args:
        space: see ``CandidatePolicy``, as are all arguments that are not named here.
        lengthscales: of the candidates, positive. Default those of the kernels.
        g: grows without bound: a function of the round, or a number that stays. Default ``t^0.9``.

    Raises:
        ValueError: if an argument is out of range, or a kernel has no lengthscale, or several.
    """

    def __init__(
        self,
        space: Space,
        *,
        lengthscales: Sequence[float] | None = None,
        g: float | Callable[[int], float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        found = list(map(_lengthscale, space.candidates.kernels)) if lengthscales is None else lengthscales
        self.lengthscales = as_values("lengthscales", found, (len(space.candidates),), 0, ends="()", like=space.like)
        self.g = None if g is None else as_schedule("g", g, 0, ends="()")

    def select(self) -> Tensor:
        """The candidate whose lengthscale is nearest to the shrunken one."""
        t = max(1, self.round)
        growth = t**0.9 if self.g is None else self.g(t) if callable(self.g) else self.g
        shrunken = self.lengthscales[super().select()] / max(1.0, growth)
        return (self.lengthscales - shrunken.unsqueeze(-1)).abs().argmin(-1)


def _lengthscale(kernel: Kernel) -> float:
    """The one lengthscale of a kernel, such as an RBF kernel with a scale."""
    found = [part.lengthscale for part in kernel.modules() if getattr(part, "has_lengthscale", False)]
    one = len(found) == 1 and found[0].numel() == 1
    require(one, "lengthscales must be given for kernels without exactly one", kernel)
    return float(found[0])
