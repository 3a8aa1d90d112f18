"""What the tree policies share: one tree with each replicate's leaves, and the posterior of every cell in it."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.checks import as_schedule, as_tensor, require
from cbo_lib.fit import default_kernel, fit_gaussian_process
from cbo_lib.gp import GaussianProcess, Posterior, cholesky
from cbo_lib.measure import covariance, require_fit
from cbo_lib.partition import INDEX_LIMIT
from cbo_lib.policy import Policy
from cbo_lib.search import argmax_finite

#: The smoothness function: an upper bound of how much f varies in a cell of depth h (a tensor of depths).
Smoothness = Callable[[Tensor], Tensor]


class TreePolicy(Policy):
    """A policy whose queries are leaves of a tree of cells. All replicates share the tree; each has its own leaves.

    Args:
        space: the cells.
        seeds: one a replicate.
        prior: the Gaussian process prior of f, its noise included. Default: a kernel, a mean and a noise are fitted to
            what is told, anew whenever the observations have grown by a quarter.
        kernel: what is fitted without a prior, see ``cbo_lib.fit``. Default Matern-5/2.

    Attributes:
        tree: the nodes.
        leaf: whether a node is a leaf, boolean ``replicates x nodes``.
        split: whether a node was split, boolean ``replicates x nodes``.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(
        self, space: Space, seeds: Any, prior: GaussianProcess | None = None, kernel: str | Kernel = "matern"
    ) -> None:
        require(isinstance(space, Space), "space must be an aggregated.Space", space)
        super().__init__(space, seeds, (2, space.dim))
        if prior is not None:
            require(isinstance(prior, GaussianProcess), "prior must be a GaussianProcess", prior)
            require_fit("prior", prior.kernel, space.inputs[:1])
        elif isinstance(kernel, Kernel):
            require_fit("kernel", copy.deepcopy(kernel).to(space.inputs), space.inputs[:1])
        else:
            default_kernel(kernel, space.inputs.shape[-1])  # raises now
        self.tree = space.partition()
        self.leaf = torch.ones(len(seeds), 1, dtype=torch.bool, device=space.bounds.device)
        self.split = torch.zeros_like(self.leaf)
        self.given, self.kernel = prior, kernel
        # Cells that need covariances: the nodes and told boxes that are none; where each node and each observation is.
        self.cells = self.tree.boxes
        self.row_of_node = torch.zeros(1, dtype=torch.long, device=self.leaf.device)
        self.row_told = self.row_of_node.new_zeros(len(seeds), 0)
        self._prior: Any = prior
        self._fitted_at = -1
        self._gram: Tensor | None = None
        self._solved_for: tuple[GaussianProcess, int, int] | None = None

    @property
    def prior(self) -> GaussianProcess:
        """The prior in force, a fitted one if none was given."""
        t = self.y.shape[1]
        if self.given is None and t > self._fitted_at and 4 * t >= 5 * self._fitted_at:
            self._prior = fit_gaussian_process(self.space.measure(self.queries), self.y, self.space.inputs, self.kernel)
            self._fitted_at, self._gram = t, None
        return self._prior

    @property
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told."""
        prior = self.prior.posterior(None if self.prior.kernel.batch_shape else len(self.y))
        return prior.extend(self.space.measure(self.queries), self.y)

    def belief(self) -> tuple[Tensor, Tensor]:
        """Posterior mean and deviation of the average over every node, ``replicates x nodes`` ([Zhang2022], Eq. 4)."""
        prior = self.prior
        state = prior, self.y.shape[1], len(self.cells)
        if self._solved_for != state:
            gram = self._covariances(prior).expand(len(self.y), -1, -1)
            cross = gram.take_along_dim(self.row_told.unsqueeze(-1), -2)  # replicates t cells
            inner = cross.take_along_dim(self.row_told.unsqueeze(-2), -1)
            noise = torch.as_tensor(prior.noise_std).to(self.y).square() * torch.ones_like(self.y)
            factor = cholesky(inner + torch.diag_embed(noise))
            residual = self.y - prior.prior_mean(self.space.measure(self.queries))
            cross = torch.linalg.solve_triangular(factor, cross, upper=False)
            white = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False)
            variance = gram.diagonal(dim1=-2, dim2=-1) - cross.square().sum(-2)
            self._mean = prior.prior_mean(self.space.measure(self.cells)) + (cross * white).sum(-2)
            self._std, self._solved_for = variance.clamp_min(0).sqrt(), state
        return self._mean[:, self.row_of_node], self._std[:, self.row_of_node]

    def find(self, cell: Tensor) -> Tensor:
        """The node that each cell ``replicates x 2 x d`` is, to a twentieth of its sides; -1 for one that is none."""
        slack = 0.05 * (cell[:, 1:] - cell[:, :1]).unsqueeze(1)
        same = ((self.tree.boxes - cell.unsqueeze(1)).abs() <= slack).flatten(2).all(-1)
        return torch.where(same.any(-1), same.byte().argmax(-1), -1)

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Keep the average ``y`` (``replicates``) over a cell (``replicates x 2 x d``), a node or any other box."""
        super().tell(cell, y)
        node = self.find(cell)
        other = node < 0
        row = torch.where(other, len(self.cells) - 1 + other.cumsum(0), self.row_of_node[node])
        self.row_told = torch.cat([self.row_told, row.unsqueeze(1)], 1)
        if bool(other.any()):
            self.cells = torch.cat([self.cells, cell[other]])

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Replace a leaf (``replicates``) by its children, in the replicates where ``where``."""
        deeper = self.tree.branching ** (self.tree.depth[node] + 1.0) < INDEX_LIMIT
        where = where & deeper & self.leaf.gather(1, node.unsqueeze(1)).squeeze(1)
        replicate, node = where.nonzero().squeeze(-1), node[where]
        before, children = len(self.tree), self.tree.children(node)
        if new := len(self.tree) - before:
            rows = len(self.cells) + torch.arange(new, device=node.device)
            self.row_of_node = torch.cat([self.row_of_node, rows])
            self.cells = torch.cat([self.cells, self.tree.boxes[before:]])
            self.leaf, self.split = (torch.nn.functional.pad(a, (0, new)) for a in (self.leaf, self.split))
        self.leaf[replicate, node], self.split[replicate, node] = False, True
        self.leaf[replicate.unsqueeze(-1), children] = True

    def deepest_split(self, values: Tensor) -> Tensor:
        """The cell of the largest value (``replicates x nodes``) among the split nodes of the deepest level with any.

        The root, where none was split.
        """
        depth = torch.where(self.split | (self.tree.depth == 0), self.tree.depth, -1)
        return self.tree.boxes[argmax_finite(values, depth == depth.amax(-1, keepdim=True), self.tree.order)]

    def _covariances(self, prior: GaussianProcess) -> Tensor:
        """Prior covariances of all cells, ``cells x cells``, replicates in front if the prior has them."""
        measure = self.space.measure(self.cells)
        if self._gram is None:
            self._gram = covariance(prior.kernel, measure, measure)
        elif (known := self._gram.shape[-1]) < len(self.cells):
            new = covariance(prior.kernel, measure[known:], measure)
            self._gram = torch.cat([torch.cat([self._gram, new[..., :known].mT], -1), new], -2)
        return self._gram


def smoothness(delta: float | Smoothness, space: Space) -> Smoothness:
    """``delta``, checked; of a number the function that begins there and shrinks by ``K^(-1 / d)`` a level.

    Raises:
        ValueError: if it is not positive and decreasing in the depth.
    """
    given = as_schedule("delta", delta, ends="()")
    if not callable(given):
        start, rate = given, space.branching ** (-1 / space.dim)
        return lambda depth: start * rate**depth
    levels = as_tensor("delta", given(torch.arange(12, device=space.like.device)))
    fits = levels.shape == (12,) and bool((levels.diff() <= 0).all() and levels[0] > levels[-1] > 0)
    require(fits, "delta must be positive and decreasing in the depth", levels)
    return given
