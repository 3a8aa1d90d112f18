"""BoTorch models of averages, so that any acquisition function can choose what the average is over ([Balandat2020])."""

import copy
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from cbo_lib.checks import require
from cbo_lib.measure import Measure

if TYPE_CHECKING:
    from cbo_lib.gp import Posterior

#: Reads candidates ``... x q x D`` as measures ``... x q``: a point, a box as its two corners, an action.
Encoding = Callable[[Tensor], Measure]


class MeasureModel(Model, FantasizeMixin):  # type: ignore[misc]  # the two bases differ
    """A BoTorch model of one output whose candidates stand for measures."""

    num_outputs = 1
    likelihood = None  # FantasizeMixin asks whether the noise is that of a likelihood

    def __init__(self, measure: Encoding) -> None:
        super().__init__()
        self.measure = measure

    @abstractmethod
    def _joint(self, measure: Measure) -> tuple[Tensor, Tensor]:
        """Means ``... x q`` and covariances ``... x q x q`` of the averages."""

    @abstractmethod
    def _noise(self, measure: Measure) -> Tensor:
        """Noise variances of one observation of each average; broadcasts to ``... x q``."""

    def _read(self, X: Tensor) -> Measure:
        shape = (measure := self.measure(X)).weights.shape[:-1]
        expected = f"measure must map candidates {tuple(X.shape)} to measures {tuple(X.shape[:-1])}"
        require(shape == X.shape[:-1], expected, shape)
        return measure

    def posterior(  # type: ignore[override]  # the two bases differ
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior:
        """Joint posterior of the averages that ``X``, ``batch_shape x q x D``, encodes.

        As in BoTorch, ``observation_noise`` is a flag or the noise *variances*, ``... x q x 1``.

        Raises:
            ValueError: if ``measure`` does not give one measure a candidate.
        """
        measure = self._read(X)
        mean, joint = self._joint(measure)
        if isinstance(observation_noise, Tensor):
            joint = joint + torch.diag_embed(observation_noise.squeeze(-1).expand(mean.shape))
        elif observation_noise:
            joint = joint + torch.diag_embed(torch.zeros_like(mean) + self._noise(measure))
        # GPyTorch warns of variances that rounding took below this floor.
        joint = joint + torch.diag_embed((1e-10 - joint.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0))
        # As an operator it is factored when it is sampled from, which many points on a line could not be exactly.
        result = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(joint)))
        return result if posterior_transform is None else posterior_transform(result)


class PosteriorModel(MeasureModel):
    """A ``Posterior`` dressed as a BoTorch model, made by ``Posterior.as_botorch``."""

    def __init__(self, measure_posterior: "Posterior", measure: Encoding = Measure.dirac) -> None:
        super().__init__(measure)
        self.measure_posterior = measure_posterior
        self.kernel = measure_posterior.prior.kernel

    @cached_property
    def batch_shape(self) -> torch.Size:
        """The batch of independent posteriors."""
        return self.measure_posterior.batch_shape

    def condition_on_observations(  # type: ignore[override]  # unknown options are refused, not ignored
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> "PosteriorModel":
        """Condition on values ``... x n x 1`` of the measures that candidates ``... x n x D`` stand for.

        ``noise`` holds noise *variances*, ``... x n x 1``, as in BoTorch. Default the noise of the process.
        """
        noise_std = None if noise is None else noise.squeeze(-1).sqrt()
        return PosteriorModel(self.measure_posterior.extend(self._read(X), Y.squeeze(-1), noise_std), self.measure)

    def _joint(self, measure: Measure) -> tuple[Tensor, Tensor]:
        return self.measure_posterior.mean(measure), self.measure_posterior.covariance(measure, measure)

    def _noise(self, measure: Measure) -> Tensor:
        return torch.as_tensor(self.measure_posterior.prior.noise_std, dtype=measure.points.dtype).square()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PosteriorModel":
        there = fn(next(self.kernel.parameters(), torch.zeros(())))
        self.measure_posterior = self.measure_posterior.to(there.device, there.dtype)
        if isinstance(self.measure, torch.nn.Module):  # it may be that of other models, and modules move in place
            self.measure = copy.deepcopy(self.measure)._apply(fn)
        self.kernel = self.measure_posterior.prior.kernel
        return self


class _Seen(NamedTuple):
    """Observed averages."""

    measure: Measure
    y: Tensor  # ... t
    noise: Tensor  # ... t, variances


class AveragedModel(MeasureModel):
    """Averages of what any BoTorch model describes, such as a fitted ``SingleTaskGP``.

    The joint posterior at the points of a measure and its weights give that of the averages, in the units of the
    outputs. Observations of averages, also fantasies, are kept beside the model and conditioned on exactly.

    Args:
        model: a BoTorch model of one output with a Gaussian posterior. It is held, not copied.
        measure: what a candidate stands for: maps ``... x q x D`` to ``... x q`` measures.

    Raises:
        ValueError: if the model has several outputs.
    """

    def __init__(self, model: Model, measure: Encoding) -> None:
        require(model.num_outputs == 1, "model must have one output", model.num_outputs)
        super().__init__(measure)
        self.model = model
        self._seen: _Seen | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """The batch of the model and of the observed averages."""
        return torch.broadcast_shapes(self.model.batch_shape, () if self._seen is None else self._seen.y.shape[:-1])

    def condition_on_observations(  # type: ignore[override]  # unknown options are refused, not ignored
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> "AveragedModel":
        """Condition on values ``... x t x 1`` of the averages that candidates ``... x t x D`` encode.

        ``noise`` holds noise *variances*, ``... x t x 1``. Default the model's, its mean over an average's points.
        """
        measure, y = self._read(X), Y.squeeze(-1)
        added = torch.zeros_like(y) + (self._noise(measure) if noise is None else noise.squeeze(-1))
        if self._seen is not None:
            shape = torch.broadcast_shapes(self._seen.y.shape[:-1], y.shape[:-1])
            measure = Measure.cat([self._seen.measure, measure])
            y = torch.cat([self._seen.y.expand(*shape, -1), y.expand(*shape, -1)], -1)
            added = torch.cat([self._seen.noise.expand(*shape, -1), added.expand(*shape, -1)], -1)
        result = AveragedModel(self.model, self.measure)
        result._seen = _Seen(measure, y, added)
        return result

    def _joint(self, measure: Measure) -> tuple[Tensor, Tensor]:
        if self._seen is None:
            return self._averages(measure)
        mean, joint = self._averages(Measure.cat([self._seen.measure, measure]))
        t = self._seen.measure.n
        factor = psd_safe_cholesky(joint[..., :t, :t] + torch.diag_embed(self._seen.noise))
        gap = (self._seen.y - mean[..., :t]).unsqueeze(-1)
        cross = torch.linalg.solve_triangular(factor, joint[..., :t, t:], upper=False)
        mean = mean[..., t:] + (cross.mT @ torch.linalg.solve_triangular(factor, gap, upper=False)).squeeze(-1)
        return mean, joint[..., t:, t:] - cross.mT @ cross

    def _averages(self, measure: Measure) -> tuple[Tensor, Tensor]:
        """Before the observed averages."""
        found = self.model.posterior(measure.points.flatten(-3, -2))
        normal = found.distribution if isinstance(found, GPyTorchPosterior) else None
        if normal is None or isinstance(normal, MultitaskMultivariateNormal):
            raise ValueError(f"model must have a Gaussian posterior of one output, got a {type(found).__name__}")
        shape, w = (measure.n, measure.p), measure.weights
        joint = normal.covariance_matrix.unflatten(-1, shape).unflatten(-3, shape)
        return (normal.mean.unflatten(-1, shape) * w).sum(-1), torch.einsum("...npmq,...np,...mq->...nm", joint, w, w)

    def _noise(self, measure: Measure) -> Tensor:
        points = measure.points.flatten(-3, -2)
        noisy, free = (self.model.posterior(points, observation_noise=flag) for flag in (True, False))
        noise = noisy.variance - free.variance  # type: ignore[attr-defined]  # every Gaussian posterior has it
        return noise.squeeze(-1).unflatten(-1, (measure.n, measure.p)).mean(-1).clamp_min(0.0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AveragedModel":
        # Other models may hold the same ones, and modules move in place.
        self.model, self.measure = copy.deepcopy((self.model, self.measure))
        super()._apply(fn, recurse)
        self.model.train(not self.model.training)  # GPyTorch's caches do not move: a change of mode empties them
        self.model.train(not self.model.training)
        if self._seen is not None:
            measure, y, noise = self._seen
            self._seen = _Seen(Measure(fn(measure.points), fn(measure.weights)), fn(y), fn(noise))
        return self
