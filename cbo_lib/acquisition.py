"""BoTorch acquisition functions of a decision whose input is completed by the world, or whose prior is in doubt.

Each takes the upper confidence bounds ``mean + sqrt_beta * std`` of a decision, with ``M`` completions or under several
models, to one number. They serve any BoTorch loop, ``b x 1 x d -> b``.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model, ModelList
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.checks import as_values, require, require_shape
from cbo_lib.former.partial import CompletedPosterior, complete, moments, upper
from cbo_lib.gp import Posterior

# Where no gradient is asked for, decisions are taken in slices of at most this many pairs with a context (2 MiB).
_SLICE_PAIRS = 2**18


def as_model(model: Posterior | Model) -> Model:
    """A posterior as a BoTorch model, a BoTorch model as it is; ``ValueError`` if it has several outputs."""
    found = model.as_botorch() if isinstance(model, Posterior) else model
    require(found.num_outputs == 1, "model must have one output", found.num_outputs)
    return found


class DecisionAcquisition(AcquisitionFunction):
    """A function of the decision, for one posterior or a batch of them.

    A model without batch dimensions makes a BoTorch acquisition function, ``b x 1 x Dx -> b``, for ``optimize_acqf``.
    Policies call ``values`` with the posteriors of a batch of replicates.

    Args:
        model: a ``Posterior``, or any BoTorch model of one output.
        sqrt_beta: the multiplier of the standard deviation. Default 1.5, as in [Huang2024]. BoTorch's
            ``UpperConfidenceBound(beta)`` multiplies by the root of ``beta``.
    """

    def __init__(self, model: Posterior | Model, sqrt_beta: float = 1.5) -> None:
        super().__init__(as_model(model))
        self.sqrt_beta = sqrt_beta

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """The acquisition at decisions ``batch x n x Dx``, ``batch x n``; differentiable."""

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The acquisition at ``b x 1 x Dx`` decisions, ``b``.

        Raises:
            ValueError: if the model is a batch, or X not finite.
        """
        require(not self.model.batch_shape, "model must have no batch dimensions", self.model.batch_shape)
        require(torch.isfinite(X), "X must be finite", "a NaN or an infinity")
        return self.values(X.flatten(0, -2)).reshape(X.shape[:-2])


class DecisionUpperConfidenceBound(DecisionAcquisition):
    """``mean + sqrt_beta std`` of a model of the decision alone: GP-UCB ([Srinivas2010])."""

    def values(self, x: Tensor) -> Tensor:
        """See ``DecisionAcquisition``."""
        return upper(*moments(self.model, x), self.sqrt_beta)


class PartialAcquisition(DecisionAcquisition):
    """A function of the upper confidence bounds of a decision with every completion of a finite set.

    Where the kernel is a product over decisions and completions the bounds cost a small part of what they cost pair by
    pair (``PartialPosterior``); any other model is asked pair by pair.

    Args:
        model: of f at full points; see ``DecisionAcquisition``, also for ``sqrt_beta``.
        contexts: the completions, ``M x Dc`` or ``batch x M x Dc``.
        controlled: which coordinates of a full point a decision sets, boolean ``d``. Default the first.

    Attributes:
        tolerance: of interpolated variances, see ``PartialPosterior``; None for no interpolation. Default 1e-10.

    Raises:
        ValueError: if ``contexts`` are of a wrong shape or not finite.
    """

    tolerance: float | None = 1e-10

    def __init__(
        self, model: Posterior | Model, contexts: Tensor, sqrt_beta: float = 1.5, controlled: Tensor | None = None
    ) -> None:
        super().__init__(model, sqrt_beta)
        contexts = as_values("contexts", contexts, (..., "M >= 1", "Dc"))
        self.contexts, self.controlled = contexts, controlled
        self._completed: CompletedPosterior | None = None

    @abstractmethod
    def reduce(self, bounds: Tensor) -> Tensor:
        """One number a decision from its bounds ``batch x n x M``, ``batch x n``."""

    def values(self, x: Tensor) -> Tensor:
        """See ``DecisionAcquisition``."""
        return self._over(self.completed(x.shape[-1]), x)

    def _over(self, completed: CompletedPosterior, x: Tensor) -> Tensor:
        """``reduce`` of the bounds with the contexts of a posterior."""
        rows = max(1, _SLICE_PAIRS // (self.model.batch_shape.numel() * completed.contexts.shape[-2]))
        bounds = (completed.ucb(part, self.sqrt_beta) for part in self._full(x).split(rows, -2))
        return torch.cat([self.reduce(part) for part in bounds], -1)

    def bounds(self, x: Tensor) -> Tensor:
        """``mean + sqrt_beta std`` at decisions ``batch x n x Dx`` with every context, ``batch x n x M``."""
        return self.completed(x.shape[-1]).ucb(self._full(x), self.sqrt_beta)

    def mean(self, x: Tensor) -> Tensor:
        """``reduce`` of posterior means at decisions ``batch x n x Dx``, ``batch x n``: no exploration."""
        return self.reduce(self.completed(x.shape[-1]).mean(self._full(x)))

    def completed(self, decision_dim: int) -> CompletedPosterior:
        """The posterior at full points; it takes decisions with anything in the place of the contexts."""
        if self._completed is None:
            if self.controlled is None:
                dim = decision_dim + self.contexts.shape[-1]
                self.controlled = torch.arange(dim, device=self.contexts.device) < decision_dim
            self._own, others = (mask.nonzero().squeeze(-1) for mask in (self.controlled, ~self.controlled))
            full, interpolate = _placed(self.contexts, others, len(self.controlled)), self.tolerance is not None
            self._completed = complete(self.model, full, self.controlled, self.tolerance or 1e-14, interpolate)
        return self._completed

    def _full(self, x: Tensor) -> Tensor:
        """Decisions with zeros for the contexts."""
        assert self.controlled is not None
        return _placed(x, self._own, len(self.controlled))


def _placed(part: Tensor, where: Tensor, dim: int) -> Tensor:
    """Some coordinates ``... x k`` of points ``... x dim``, the others zero; ``where`` are ``k`` indices."""
    require(part.shape[-1] == len(where), f"x and contexts must fill {len(where)} coordinates", part.shape[-1])
    return part.new_zeros(*part.shape[:-1], dim).index_copy(-1, where, part)


class ExpectedUpperConfidenceBound(PartialAcquisition):
    """``E_c[mean + sqrt_beta std]`` over samples or a quadrature rule: SBO-KDE ([Huang2024], Algorithm 1, line 5).

    Args:
        model: see ``PartialAcquisition``, also for ``contexts`` and ``sqrt_beta``.
        contexts: the samples, or the nodes of the rule.
        sqrt_beta: the multiplier.
        weights: of the contexts, ``M`` or ``batch x M``, taken as they are. Default equal ones that sum to one.
    """

    def __init__(
        self,
        model: Posterior | Model,
        contexts: Tensor,
        sqrt_beta: float = 1.5,
        weights: Tensor | None = None,
        controlled: Tensor | None = None,
    ) -> None:
        super().__init__(model, contexts, sqrt_beta, controlled)
        if weights is not None:
            require_shape("weights", weights, ..., self.contexts.shape[-2])
        self.weights = weights

    def reduce(self, bounds: Tensor) -> Tensor:
        """The average."""
        return bounds.mean(-1) if self.weights is None else (bounds * self.weights.unsqueeze(-2)).sum(-1)


class RobustAcquisition(PartialAcquisition):
    """A smallest number over a set, such as one of contexts, whose bad members are much the same for all decisions."""

    _worst: Tensor | None = None  # the members that were the worst for some decision, replicates first

    @abstractmethod
    def look(self, x: Tensor) -> Tensor:
        """What is known of decisions ``replicates x n x Dx`` without looking at all members, ``replicates x n x k``."""

    @abstractmethod
    def above(self, looks: Tensor, members: Tensor | None) -> Tensor:
        """The smallest number over some members, ``replicates x n``; None: over any few to begin with."""

    @abstractmethod
    def settle(self, looks: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest number over all members, ``replicates x n``, where wanted; and the members found bad."""

    def leading(self, x: Tensor, count: int, floor: Tensor) -> Tensor:
        """``values`` where they decide, and no less than ``values`` elsewhere, at a small part of the cost.

        The members that are the worst for some decisions bound the value of every other from above. Only decisions
        that may lead their group by this bound are looked at under all members, which finds more bad ones.

        Args:
            x: groups of decisions, ``replicates x groups x n x Dx``.
            count: how many of each group are to be exact, from 1 to ``n``, with those tied with them within ``1e-9``.
            floor: ``replicates x groups``; groups with no larger value need no exact one.
        """
        looks = self.look(x.flatten(1, 2)).view(*x.shape[:-1], -1)
        new, values, exact = self._worst, torch.full_like(x[..., 0], torch.inf), torch.zeros_like(x[..., 0]) > 0
        while True:
            above = self.above(looks.flatten(1, 2), new).view_as(values)
            values = torch.where(exact, values, torch.minimum(values, above))
            least = values.masked_fill(~exact, -torch.inf).topk(count).values[..., -1:]
            unsure = ~exact & (values >= least - 1e-9) & (values.amax(-1) > floor).unsqueeze(-1)
            if not unsure.any():
                return values
            place = values.masked_fill(~unsure, -torch.inf).topk(count).indices
            wanted = unsure.gather(-1, place)
            some = looks.take_along_dim(place.unsqueeze(-1), -2)
            found, new = self.settle(some.flatten(1, 2), wanted.flatten(1, 2))
            found = torch.where(wanted, found.view_as(wanted), values.gather(-1, place))
            values, exact = values.scatter(-1, place, found), exact | torch.zeros_like(exact).scatter(-1, place, wanted)


class RobustUpperConfidenceBound(RobustAcquisition):
    """The smallest bound over a set of contexts: StableOpt ([Bogunovic2018])."""

    tolerance = None  # a search along the kinks of a minimum magnifies how interpolated variances are rounded

    def reduce(self, bounds: Tensor) -> Tensor:
        """The minimum."""
        return bounds.amin(-1)

    def look(self, x: Tensor) -> Tensor:
        """The decisions themselves."""
        return x

    def above(self, looks: Tensor, members: Tensor | None) -> Tensor:
        """Over contexts that are marked, ``replicates x M``; over the first 16 to begin with."""
        if members is None:
            first = torch.arange(self.contexts.shape[-2], device=looks.device) < 16
            self._worst = members = first.repeat(len(looks), 1)
        if not (size := int(members.sum(-1).max())):
            return torch.full_like(looks[..., 0], torch.inf)
        return self._over(self.completed(looks.shape[-1]).among(members.byte().topk(size).indices), looks)

    def settle(self, looks: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Over all contexts; those that are worst and were not marked are, and are returned."""
        assert self._worst is not None
        found, worst = self.bounds(looks).min(-1)
        new = torch.zeros_like(self._worst).scatter(-1, worst, True) & ~self._worst
        self._worst = self._worst | new
        return found, new


class OptimisticUpperConfidenceBound(AcquisitionFunction):
    """``max_u mean_u(x) + sqrt_beta_u std_u(x)`` over the candidates left ([Ziomek2024], Algorithm 1, line 7).

    Args:
        models: the candidates ``U``: one model of batch shape ``(|U|,)``, such as a ``Posterior``, or a list of models.
        sqrt_beta: the multiplier of the standard deviation, a number or ``|U|``.
        alive: which candidates are left, boolean ``|U|``. Default all.

    Raises:
        ValueError: if a model has another batch or several outputs, ``sqrt_beta`` another shape, or none is left.
    """

    def __init__(
        self,
        models: Posterior | Model | Sequence[Posterior | Model],
        sqrt_beta: float | Tensor,
        alive: Tensor | None = None,
    ) -> None:
        listed = isinstance(models, Sequence)
        found = [as_model(model) for model in (models if isinstance(models, Sequence) else [models])]
        super().__init__(ModelList(*found) if listed else found[0])
        for model in found:
            shape = "no batch shape in a list" if listed else "the batch shape (|U|,)"
            require(len(model.batch_shape) == (not listed), f"model must have {shape}", model.batch_shape)
        self._models = found
        count = len(found) if listed else found[0].batch_shape[0]
        shape_of = getattr(sqrt_beta, "shape", torch.Size())
        require(shape_of in (torch.Size(), (count,)), "sqrt_beta must be a number or one a candidate", shape_of)
        self.sqrt_beta = sqrt_beta
        self.alive = torch.ones(count, dtype=torch.bool) if alive is None else alive
        marked = self.alive.shape == (count,) and bool(self.alive.any())
        require(marked, f"alive must mark at least one of {count} candidates", self.alive)

    def bounds(self, X: Tensor) -> Tensor:
        """``mean + sqrt_beta std`` at ``b x 1 x d`` points under every candidate, ``b x |U|``."""
        if isinstance(self.model, ModelList):
            each = [moments(model, X) for model in self._models]  # b 1
            mean, variance = (torch.cat(parts, -1) for parts in zip(*each, strict=True))
        else:
            mean, variance = (part.squeeze(-1) for part in moments(self.model, X.unsqueeze(-3)))  # b |U| 1
        return upper(mean, variance, torch.as_tensor(self.sqrt_beta, dtype=mean.dtype, device=mean.device))

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The bound at ``b x 1 x d`` points, ``b``."""
        return self.bounds(X).masked_fill(~self.alive.to(X.device), -torch.inf).amax(-1)
