"""The policies that HE-GP-UCB and HE-StableOpt are compared with ([Ziomek2024], section 7)."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_option, as_schedule, as_values, require
from cbo_lib.hyperparameters.policies import HEGPUCB, CandidatePolicy, HEStableOpt
from cbo_lib.hyperparameters.space import Space
from cbo_lib.search import argmax_finite


class MaximumLikelihood(CandidatePolicy):
    """GP-UCB with the candidate of the largest marginal likelihood, "MLE".

    Arguments and errors are those of ``CandidatePolicy``.
    """

    def select(self) -> Tensor:
        """The candidate to trust now, ``replicates``."""
        return argmax_finite(self.likelihood)

    def ask(self) -> Tensor:
        """The point of its largest upper confidence bound, ``replicates x d``."""
        if (point := self.initial_point()) is not None:
            return point
        selected = self.select()[:, None, None]
        self.asked = self.search(lambda mean, std: self.upper(mean, std).take_along_dim(selected, 1).squeeze(1))
        self.predict()
        self.candidate = selected.flatten()
        return self.asked

    def weights(self) -> Tensor:
        """All on the candidate that is trusted now."""
        return torch.nn.functional.one_hot(self.select(), self.likelihood.shape[-1]).to(self.y)


class AGPUCB(MaximumLikelihood):
    """Adaptive GP-UCB ([Berkenkamp2019]) with the nearest candidate, as in [Ziomek2024], Appendix J.1.

    The lengthscale of round ``t`` is that of the most likely candidate divided by ``max(1, g(t))``, whatever the data
    say later. The multiplier is not scaled as in [Berkenkamp2019], so that all policies have the same.

    Args:
        lengthscales: of the candidates, positive. Default those of the kernels.
        g: grows without bound: a function of the round, or a number that stays. Default ``t^0.9``.
        options: see ``CandidatePolicy``.

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
        """The candidate whose lengthscale is nearest to the shrunken one, ``replicates``."""
        t = max(1, self.round - self.initial)
        growth = t**0.9 if self.g is None else self.g(t) if callable(self.g) else self.g
        shrunken = self.lengthscales[super().select()] / max(1.0, growth)
        return (self.lengthscales - shrunken.unsqueeze(-1)).abs().argmin(-1)


class ExpectedUCB(CandidatePolicy):
    """Maximizes the upper confidence bound averaged over the candidates, "ExpectedUCB".

    Args:
        likelihood: ``"exact"`` weighs by the posterior probabilities under a uniform prior; ``"tempered"`` divides the
            log likelihood by the number of observations first, as GPyTorch's ``ExactMarginalLogLikelihood`` does. The
            paper does not say which. Default exact.
        options: see ``CandidatePolicy``, as for errors.
    """

    def __init__(self, space: Space, *, likelihood: Literal["exact", "tempered"] = "exact", **options: Any) -> None:
        super().__init__(space, **options)
        self.tempered = as_option("likelihood", likelihood, "exact", "tempered") == "tempered"

    def ask(self) -> Tensor:
        """The point of the largest averaged bound, ``replicates x d``."""
        if (point := self.initial_point()) is not None:
            return point
        weights = self.weights().unsqueeze(-1)
        self.asked = self.search(lambda mean, std: (weights * self.upper(mean, std)).sum(1))
        self.predict()
        return self.asked

    def weights(self) -> Tensor:
        """The probabilities of the candidates, ``replicates x |U|``."""
        return (self.likelihood / (max(1, self.y.shape[1]) if self.tempered else 1)).softmax(-1)


class OracleGPUCB(HEGPUCB):
    """GP-UCB with one candidate ([Srinivas2010]), the true one or a wrong one.

    Args:
        candidate: which, an index or one a replicate.
        options: see ``CandidatePolicy``, as for errors.
    """

    def __init__(self, space: Space, candidate: int | Tensor, **options: Any) -> None:
        super().__init__(space, eliminate=False, **options)
        self.alive = _only(candidate, self.alive)


class OracleStableOpt(HEStableOpt):
    """StableOpt with one candidate ([Bogunovic2018], Algorithm 1); arguments are those of ``OracleGPUCB``."""

    def __init__(self, space: Space, candidate: int | Tensor, **options: Any) -> None:
        super().__init__(space, eliminate=False, **options)
        self.alive = _only(candidate, self.alive)


def _only(candidate: int | Tensor, alive: Tensor) -> Tensor:
    """One candidate a replicate, boolean ``replicates x |U|``."""
    index, (replicates, count) = torch.as_tensor(candidate, device=alive.device), alive.shape
    index = index if index.dim() == 0 else index[:replicates]  # a single run is the first of many
    whole = not index.is_floating_point() and index.dtype != torch.bool and index.shape in ((), (replicates,))
    expected = f"candidate must be an index in [0, {count}), or one for each of {replicates} replicates"
    require(whole and bool(((index >= 0) & (index < count)).all()), expected, candidate)
    return torch.arange(count, device=alive.device) == index.expand(replicates).unsqueeze(-1)


def _lengthscale(kernel: Kernel) -> float:
    """The one lengthscale of a kernel, such as an RBF kernel with a scale."""
    found = [part.lengthscale for part in kernel.modules() if getattr(part, "has_lengthscale", False)]
    one = len(found) == 1 and found[0].numel() == 1
    require(one, "lengthscales must be given for kernels without exactly one", kernel)
    return float(found[0])
