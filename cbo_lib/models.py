"""BoTorch models of averages, so that any acquisition function can choose what the average is over ([Balandat2020])."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from cbo_lib.checks import require
from cbo_lib.measure import Measure

if TYPE_CHECKING:
    from cbo_lib.gp import Posterior

#: Reads candidates ``... x q x D`` as measures ``... x q``: a point, a box as its two corners, an action.
Encoding = Callable[[Tensor], Measure]


class MeasureModel(Model):
    """A BoTorch model of one output whose candidates stand for measures."""

    num_outputs = 1

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

    def posterior(
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
            joint = joint + torch.diag_embed(self._noise(measure).expand(mean.shape))
        # GPyTorch warns of variances that rounding took below this floor.
        joint = joint + torch.diag_embed((1e-10 - joint.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0))
        # As an operator it is factored when it is sampled from, which many points on a line could not be exactly.
        result = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(joint)))
        return result if posterior_transform is None else posterior_transform(result)


class PosteriorModel(MeasureModel, FantasizeMixin):  # type: ignore[misc]  # the two bases differ
    """A ``Posterior`` dressed as a BoTorch model, made by ``Posterior.as_botorch``."""

    likelihood = None  # FantasizeMixin asks whether the noise is that of a likelihood

    def __init__(self, measure_posterior: "Posterior", measure: Encoding = Measure.dirac) -> None:
        super().__init__(measure)
        self.measure_posterior = measure_posterior

    @property
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
        return torch.as_tensor(self.measure_posterior.prior.noise_std).to(measure.points).square()


class AveragedModel(MeasureModel):
    """Averages of what any BoTorch model describes, such as a fitted ``SingleTaskGP``.

    The joint posterior at the points of a measure and its weights give that of the averages, in the units of the
    outputs.

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

    @property
    def batch_shape(self) -> torch.Size:
        """The batch of the model."""
        return self.model.batch_shape

    def _joint(self, measure: Measure) -> tuple[Tensor, Tensor]:
        found = self.model.posterior(measure.points.flatten(-3, -2))
        normal = found.distribution if isinstance(found, GPyTorchPosterior) else None
        if normal is None or isinstance(normal, MultitaskMultivariateNormal):
            raise ValueError(f"model must have a Gaussian posterior of one output, got a {type(found).__name__}")
        shape, w = (measure.n, measure.p), measure.weights
        joint = normal.covariance_matrix.unflatten(-1, shape).unflatten(-3, shape)
        return (normal.mean.unflatten(-1, shape) * w).sum(-1), torch.einsum("...npmq,...np,...mq->...nm", joint, w, w)

    def _noise(self, measure: Measure) -> Tensor:
        """That of the model, its mean over the points of an average."""
        points = measure.points.flatten(-3, -2)
        noisy, free = (self.model.posterior(points, observation_noise=flag) for flag in (True, False))
        noise = noisy.variance - free.variance  # type: ignore[attr-defined]  # every Gaussian posterior has it
        return noise.squeeze(-1).unflatten(-1, (measure.n, measure.p)).mean(-1).clamp_min(0.0)
