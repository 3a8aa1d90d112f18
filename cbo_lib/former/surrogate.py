"""What a policy has seen, and the posterior given it, with hyperparameters that are fitted as it grows."""

import copy
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, require
from cbo_lib.fit import default_kernel
from cbo_lib.former.fit import Fit, fit_gaussian_process, unfitted
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure, require_fit


class Surrogate:
    """What a policy has seen, and the posterior given it, for every replicate.

    Hyperparameters are fitted anew at a schedule; between two fits each observation is a rank-one step.

    Args:
        bounds: the box of the inputs, ``2 x d``.
        replicates: how many.
        prior: known hyperparameters of batch shape ``()`` or ``(replicates,)``; nothing is fitted then.
        kernel: what is fitted otherwise, see ``fit_gaussian_process``.
        groups: see ``default_kernel``.
        refit_every: how many observations pass between two fits. Default: a tenth of those at the last, at least 1.
        first: up to how many observations each one makes a fit due. Default 2.

    Attributes:
        measure: what was observed, ``replicates x n`` measures; None before.
        y: the observations, ``replicates x n``.
        learned: which of them count, boolean ``replicates x n``.
        noise: their known noise, ``replicates x n``; None where it is fitted.
        prior: the priors in force; before there are two observations to fit, those of ``unfitted``.
        fit: the last fit; None before it, and with a known prior.
        version: how many priors have been in force so far.
    """

    def __init__(
        self,
        bounds: Tensor,
        replicates: int,
        prior: GaussianProcess | None = None,
        kernel: str | Kernel = "matern",
        groups: Sequence[Sequence[int]] | None = None,
        refit_every: int | None = None,
        first: int = 2,
    ) -> None:
        if refit_every is not None:
            as_count("refit_every", refit_every, 1)
        if isinstance(kernel, str):
            default_kernel(kernel, bounds.shape[-1], groups)  # raises now
        else:
            require(isinstance(kernel, Kernel), "kernel must be 'matern', 'rbf' or a GPyTorch kernel", kernel)
            require(not kernel.batch_shape, "kernel must have no batch", kernel.batch_shape)
            require_fit("kernel", copy.deepcopy(kernel).to(bounds), bounds[:1])
            free = [parameter.requires_grad for parameter in kernel.parameters()] or [True]
            require(any(free), "kernel must have parameters to fit, of the unit box; known ones go into prior", "none")
        if prior is not None:
            require(isinstance(prior, GaussianProcess), "prior must be a GaussianProcess", prior)
            batch = prior.kernel.batch_shape
            require(batch in ((), (replicates,)), f"prior must have no batch or one of {replicates} replicates", batch)
            require_fit("prior", prior.kernel, bounds[:1])
        self.bounds, self.kernel, self.groups, self.refit_every, self.first = bounds, kernel, groups, refit_every, first
        self.given = prior
        self.measure: Measure | None = None
        self.fit: Fit | None = None
        self.y = bounds.new_zeros(replicates, 0)
        self.learned = self.y.bool()
        self.noise: Tensor | None = None
        self.version = 0
        self._posterior: Posterior | None = None
        self._fitted_at = self._wanted_at = 0

    @property
    def count(self) -> int:
        """How many observations each replicate holds."""
        return self.y.shape[-1]

    @property
    def prior(self) -> GaussianProcess:
        """The priors in force."""
        return self.posterior().prior

    def observe(
        self, measure: Measure, y: Tensor, learned: Tensor | None = None, noise_std: Tensor | None = None
    ) -> None:
        """Take in ``n`` observations a replicate: measures, values and noise, if known, ``replicates x n``.

        Where ``learned``, boolean ``replicates``, is false, the replicate is over: its posterior stays as it was, and
        nothing is fitted to it any more. Default: true.
        """
        if learned is not None:
            if self.count and not bool(learned.all()):
                self.posterior()  # while what is due can still be fitted
            measure = Measure(measure.points, measure.weights * learned[:, None, None])
        learned = torch.ones_like(y, dtype=torch.bool) if learned is None else learned.unsqueeze(-1).expand_as(y)
        self.measure = measure if self.measure is None else Measure.cat([self.measure, measure])
        self.y, self.learned = torch.cat([self.y, y * learned], -1), torch.cat([self.learned, learned], -1)
        if noise_std is not None:
            self.noise = noise_std if self.noise is None else torch.cat([self.noise, noise_std], -1)
        # When a fit is due depends on the count alone, and not on when somebody looks.
        every = self.refit_every or max(1, self._wanted_at // 10)
        if self.given is None and (self.count <= self.first or self.count >= self._wanted_at + every):
            self._wanted_at = self.count
        if self._posterior is not None and not self._due():
            self._posterior = self._posterior.extend(measure, y * learned, noise_std)

    def posterior(self) -> Posterior:
        """The posterior given everything, of batch shape ``(replicates,)``; fitted anew if that is due."""
        if self._posterior is None or self._due():
            self._posterior = self._given(self._prior())
            self._fitted_at, self.version = self._wanted_at, self.version + 1
        return self._posterior

    def record(self) -> dict[str, Tensor]:
        """The fitted hyperparameters, each ``replicates x ...``: NaN before the first fit, none if they are given."""
        if self.given is not None:
            return {}
        if self.fit is None:
            nan = torch.full_like(self.bounds[0], torch.nan).expand(len(self.y), -1)
            unknown = dict.fromkeys(("scale", "prior_mean", "noise_std"), nan[:, 0])
            return {"lengthscale": nan, **unknown, "converged": torch.zeros_like(nan[:, 0], dtype=torch.bool)}
        known = {"lengthscale": self.fit.lengthscale, "scale": self.fit.scale, "prior_mean": self.fit.mean}
        return {**known, "noise_std": self.fit.noise_std, "converged": self.fit.converged}

    def _due(self) -> bool:
        due = self._fitted_at < self._wanted_at
        return due and (self.fit is None or bool(self.learned[:, : self._wanted_at].all(-1).any()))

    def _prior(self) -> GaussianProcess:
        if self.given is not None:
            return self.given
        if (n := self._wanted_at) >= 2 and self.measure is not None:
            going = self.learned[:, :n].all(-1) if self.fit is not None else torch.ones_like(self.learned[:, 0])
            measure = Measure(self.measure.points[going, :n], self.measure.weights[going, :n])
            noise = None if self.noise is None else self.noise[going, :n]
            fit = fit_gaussian_process(measure, self.y[going, :n], self.bounds, self.kernel, self.groups, noise)
            self.fit = fit if self.fit is None or bool(going.all()) else _joined(self.fit, fit, going)
            return self.fit.process
        return unfitted(self.y[:, :n], self.bounds, self.kernel, self.groups)

    def _given(self, prior: GaussianProcess) -> Posterior:
        posterior = prior.posterior(None if prior.kernel.batch_shape else len(self.y))
        return posterior if self.measure is None else posterior.extend(self.measure.compact(), self.y, self.noise)


def _joined(old: Fit, new: Fit, rows: Tensor) -> Fit:
    """A fit of all replicates, and in ``rows``, boolean ``replicates``, that of these alone."""
    kernel = copy.deepcopy(old.process.kernel)
    for parameter, part in zip(kernel.parameters(), new.process.kernel.parameters(), strict=True):
        parameter.data = parameter.data.index_put((rows,), part.data)
    names = ("lengthscale", "scale", "mean", "noise_std", "converged")
    parts = [getattr(old, name).index_put((rows,), getattr(new, name)) for name in names]
    return Fit(GaussianProcess(kernel, parts[3].unsqueeze(-1), parts[2].unsqueeze(-1)), *parts)
