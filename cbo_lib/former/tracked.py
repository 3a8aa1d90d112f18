"""A posterior kept up to date on a finite set of queries, one rank-one step an observation."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cbo_lib.checks import as_tensor, require
from cbo_lib.former.cholesky import needs_jitter, pivoted_cholesky, rows_of, stable_cholesky
from cbo_lib.measure import Measure, covariance, variance

if TYPE_CHECKING:
    from cbo_lib.gp import Posterior

# Room for this many observations at first.
_ROWS = 32
# The kernel of a set of points is computed and factored at once up to this many entries, and used up to this rank.
_GRAM_ENTRIES = 4_000_000
_RANK = 64


class TrackedPosterior:
    """Mean and variance of ``n`` queries, updated as observations of them arrive.

    With ``L`` the Cholesky factor of the observed covariance, ``A = L^{-1} K(observed, queries)`` holds one row an
    observation. A new observation adds one row, ``O(t n)``, and moves mean and variance by a rank-one step; a new
    query adds one column, ``O(t^2)``. Grids, bandit arms and tree leaves all use it.

    The queries are shared by all replicates, so that the kernel between an observed query and the others is computed
    once, however many replicates observe it however often, unless each has its own kernel. Buffers grow by doubling.

    A smooth kernel on many points has a numerical rank ``r`` far below ``n``. Where replicates share such a kernel, its
    matrix is factored as ``B^T B`` by a pivoted Cholesky decomposition, to rounding. Then ``A = C B``, only ``C``
    (``t x r``) is kept, and an observation costs ``O(t r + r n)``, one matrix product for all replicates the second.

    Where noise drowns in the rounding of close observations, which shows in a pivot or a variance, the replicate is
    computed anew with a jitter on all observations since the start, with a warning (see ``stable_cholesky``).

    Made by ``Posterior.track``. A prior mean may have a larger batch than the kernel, such as several means with one
    kernel: the posteriors then share their factor, and only ``mean`` has the larger batch ``mean_shape``.

    Attributes:
        queries: the tracked measures, without batch dimensions.
        mean: posterior means, ``mean_shape x n``; the same as ``batch_shape x n`` unless the prior mean has a batch.
        variance: posterior variances, ``batch_shape x n``.

    Raises:
        ValueError: if ``queries`` has batch dimensions.
    """

    def __init__(self, posterior: "Posterior", queries: Measure) -> None:
        _check_shared(queries, queries.dim)
        self.posterior = posterior
        self.batch_shape = posterior.batch_shape
        self.queries = queries
        self.count = 0
        mean, variances = posterior.mean_and_variance(queries)
        # A kernel may lay out its diagonal otherwise, which would make every step slow.
        self.mean, self.variance = mean.clone(), variances.clone(memory_format=torch.contiguous_format)
        like, batch, n = self.mean, self.batch_shape, queries.n
        self._kernel = posterior.prior.kernel
        self._start = posterior.count
        self._prior_variance = variance(self._kernel, queries).expand(*batch, n)
        self._jitter = like.new_zeros(batch)
        base = posterior.whiten(queries) if posterior.count else like.new_zeros(0, n)
        self._base = base.expand(*batch, self._start, n)  # rows of A that the initial data gave
        self._gram = like.new_zeros(*self._kernel.batch_shape, 8, n)  # one row a query that was ever observed
        self._gram_row = torch.full((n,), -1, dtype=torch.long, device=like.device)
        self._gram_queries = torch.zeros(0, dtype=torch.long, device=like.device)
        self._basis = self._factor()
        width = n if self._basis is None else self._basis.shape[-2]
        # Rows of A that later observations gave, or of C.
        self._rows = torch.zeros(*batch, _ROWS, width, dtype=like.dtype, device=like.device)
        self._last_row = like.new_zeros(*batch, n)
        self._index = torch.zeros(*batch, _ROWS, dtype=torch.long, device=like.device)
        self._scale = torch.ones(*batch, _ROWS, dtype=like.dtype, device=like.device)  # the diagonal of L
        self._whitened = torch.zeros(*self.mean_shape, _ROWS, dtype=like.dtype, device=like.device)
        self._active = torch.zeros_like(self._index, dtype=torch.bool)

    @property
    def mean_shape(self) -> torch.Size:
        """The batch of the means: ``batch_shape``, or larger if the prior mean has a batch of its own."""
        return self.mean.shape[:-1]

    @property
    def n(self) -> int:
        """How many queries are tracked."""
        return self.mean.shape[-1]

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """Log density of all observations under the prior, ``mean_shape``, natural log."""
        t = self.count
        whitened, scale = self._whitened[..., :t], self._scale[..., :t]
        seen = self._active[..., :t].sum(-1).to(scale)
        later = -0.5 * whitened.square().sum(-1) - scale.log().sum(-1) - 0.5 * seen * math.log(2 * math.pi)
        return self.posterior.log_marginal_likelihood + later

    @property
    def last_row(self) -> Tensor:
        """``Cov(queries, q) / sqrt(Var q + noise^2)`` of the last observed ``q``, before it was, ``batch x n``."""
        require(self.count > 0, "observe must come first", "no observation")
        return self._last_row

    @property
    def last_scale(self) -> Tensor:
        """``sqrt(Var q + noise^2)`` of the last observed query ``q``, before it was, ``batch_shape``; 1 if inactive."""
        require(self.count > 0, "observe must come first", "no observation")
        return self._scale[..., self.count - 1]

    def observe(
        self, index: Tensor, y: Tensor, noise_std: float | Tensor | None = None, active: Tensor | None = None
    ) -> None:
        """Take in one observation for every element of the batch.

        Args:
            index: which query was observed, ``batch_shape`` integers in ``[0, n)``.
            y: its noisy value, ``batch_shape`` or ``mean_shape``.
            noise_std: overrides that of the process; broadcasts to ``y``.
            active: which elements observed anything, boolean ``batch_shape``; the others learn nothing. Default: all.

        Raises:
            ValueError: if a shape or an index does not fit, or an active element has a ``y`` that is not finite, or a
                noise that is not positive, or the kernel is not positive definite. Nothing is learned then.
        """
        index, y = torch.as_tensor(index), as_tensor("y", y, self.mean)
        fits = index.shape == self.batch_shape and y.shape in (self.batch_shape, self.mean_shape)
        expected = f"index and y must have the batch shape {tuple(self.batch_shape)}"
        require(fits, expected, f"{tuple(index.shape)} and {tuple(y.shape)}")
        marks = active is None or (active.dtype == torch.bool and active.shape == self.batch_shape)
        require(marks, f"active must be boolean of shape {tuple(self.batch_shape)}", active)
        if noise_std is None:  # the prior's is one an observation, ``... x 1``
            noise_std = as_tensor("noise_std", self.posterior.prior.noise_std, y).squeeze(-1)
        noise = as_tensor("noise_std", noise_std, y)

        def masked(value: Tensor, other: float) -> Tensor:
            return value if active is None else torch.where(active, value, other)

        y, noise = masked(y, 0.0), masked(noise, 1.0)
        t, at = self.count, index.clamp(0, self.n - 1).unsqueeze(-1)
        basis, place = self._basis, at.unsqueeze(-2)
        # Prior covariance of the observed query with all queries, or its coefficients.
        if basis is None:
            row = self._prior_rows(at).squeeze(-2)
        else:
            row = torch.take_along_dim(basis.expand(*self.batch_shape, -1, -1), place, -1).squeeze(-1)
        if self._start:
            column = torch.take_along_dim(self._base, place, -1)
            row = row - (column.mT @ self._base).squeeze(-2)
        if t:
            rows = self._rows[..., :t, :]
            column = torch.take_along_dim(rows, place, -1) if basis is None else rows @ row.unsqueeze(-1)
            row = row - (column.mT @ rows).squeeze(-2)
        square, size = noise.square(), self._prior_variance.gather(-1, at).squeeze(-1)
        floor = torch.addcmul(square, self._jitter, size)
        pivot = self.variance.gather(-1, at).squeeze(-1) + floor
        scale = masked(pivot.sqrt(), torch.inf)  # who is not active learns nothing
        step = (y - self.mean.gather(-1, at.expand(*self.mean_shape, 1)).squeeze(-1)) / scale
        row = row / scale.unsqueeze(-1)
        last = row if basis is None else (row.movedim(0, -2) @ basis).movedim(-2, 0)
        variances = torch.addcmul(self.variance, last, last, value=-1)
        # Rounding shows in a pivot without a digit, or in a variance that is negative by more than the noise.
        sound = masked(~needs_jitter(pivot, size) & (variances.amin(-1) >= -floor), True)
        # Everything that may be wrong is asked for at once: a device waits once.
        right = [at.squeeze(-1) == index, torch.isfinite(y), noise > 0, sound]
        inside, finite, positive, sound_all = torch.stack([part.all() for part in right]).tolist()
        require(inside, f"index must lie in [0, {self.n})", index)
        require(finite, "y must be finite", y)
        require(positive, "noise_std must be positive and finite", noise_std)
        if not sound_all:
            self._mend(~sound)
            return self.observe(index, y, noise, active)
        if t == self._rows.shape[-2]:
            self._rows = _grow(self._rows, -2)
            self._index, self._scale = _grow(self._index, -1), _grow(self._scale, -1)
            self._whitened, self._active = _grow(self._whitened, -1), _grow(self._active, -1)
        self._rows[..., t, :] = row
        self._index[..., t], self._scale[..., t], self._whitened[..., t] = index, masked(scale, 1.0), step
        self._active[..., t] = True if active is None else active
        self._last_row = last
        self.mean = torch.addcmul(self.mean, step.unsqueeze(-1), last)
        # Rounding may leave a variance of -1e-17 where it is zero.
        self.variance = variances.clamp_min_(0.0)
        self.count = t + 1

    def _mend(self, lost: Tensor) -> None:
        """Compute elements ``lost`` of the batch anew, with more jitter on all observations since the start."""
        t, basis, drowned = self.count, self._basis, lost.unsqueeze(-1)
        rows, whitened, factor = self._rows[..., :t, :], self._whitened[..., :t], self._lower()
        size = self._prior_variance.gather(-1, self._index[..., :t]) * self._active[..., :t]
        # The product of the factors is K + noise to rounding.
        again, self._jitter = stable_cholesky(factor @ factor.mT, size, self._jitter, lost)
        solved = torch.linalg.solve_triangular(again, factor @ rows, upper=False)
        moved = torch.linalg.solve_triangular(again, factor @ whitened.unsqueeze(-1), upper=False).squeeze(-1)
        self._rows[..., :t, :] = torch.where(drowned.unsqueeze(-1), solved, rows)
        self._whitened[..., :t] = torch.where(drowned, moved, whitened)
        self._scale[..., :t] = torch.where(drowned, again.diagonal(dim1=-2, dim2=-1), self._scale[..., :t])
        last = solved if basis is None else solved @ basis
        mean = self.posterior.mean(self.queries) + (last.mT @ moved.unsqueeze(-1)).squeeze(-1)
        variances = (self.posterior.variance(self.queries) - last.square().sum(-2)).clamp_min(0.0)
        self.mean, self.variance = torch.where(drowned, mean, self.mean), torch.where(drowned, variances, self.variance)

    def _lower(self) -> Tensor:
        """The lower Cholesky factor of the observations since the start, given those before, ``batch x t x t``."""
        index, rows = self._index[..., : self.count].unsqueeze(-2), self._rows[..., : self.count, :]
        if self._basis is None:
            columns = torch.take_along_dim(rows, index, -1)
        else:
            columns = rows @ torch.take_along_dim(self._basis.expand(*self.batch_shape, -1, -1), index, -1)
        lower = columns.mT.tril(-1).mul_(self._active[..., : self.count, None])
        lower.diagonal(dim1=-2, dim2=-1).copy_(self._scale[..., : self.count])
        return lower

    def add(self, queries: Measure) -> Tensor:
        """Track more queries; returns their indices, ``(m,)``.

        Raises:
            ValueError: if ``queries`` has batch dimensions or points of another dimension.
        """
        _check_shared(queries, self.queries.dim)
        m, n, t = queries.n, self.n, self.count
        first = torch.arange(n, n + m, device=self.mean.device)
        if m == 0:
            return first
        base = self.posterior.whiten(queries) if self._start else self._rows.new_zeros(0, m)
        base = base.expand(*self.batch_shape, self._start, m)
        mean, variances = self.posterior.mean_and_variance(queries)
        mean, variances = mean.expand(*self.mean_shape, m), variances.expand(*self.batch_shape, m)
        prior = variance(self._kernel, queries).expand(*self.batch_shape, m) if self._start else variances
        if self._basis is not None:  # new queries have no coefficients
            self._rows, self._basis = self._rows @ self._basis, None
        rows = self._rows.new_zeros(*self.batch_shape, self._rows.shape[-2], m)
        gram = self._gram.new_zeros(*self._gram.shape[:-1], m)
        if k := self._gram_queries.numel():
            gram[..., :k, :] = covariance(self._kernel, self.queries[self._gram_queries], queries)
        self._gram = torch.cat([self._gram, gram], -1)
        self._gram_row = torch.cat([self._gram_row, torch.full_like(first, -1)])
        self.queries = Measure.cat([self.queries, queries])
        if t:
            index = self._index[..., :t]
            cross = self._prior_rows(index, n)  # t observations against the new queries
            if self._start:
                cross = cross - torch.take_along_dim(self._base, index.unsqueeze(-2), -1).mT @ base
            cross = torch.where(self._active[..., :t, None], cross, 0.0)
            solved = torch.linalg.solve_triangular(self._lower(), cross, upper=False)
            rows[..., :t, :] = solved
            mean = mean + (solved.mT @ self._whitened[..., :t].unsqueeze(-1)).squeeze(-1)
            variances = (variances - solved.square().sum(-2)).clamp_min(0.0)
            self._last_row = torch.cat([self._last_row, solved[..., -1, :]], -1)
        self._rows, self._base = torch.cat([self._rows, rows], -1), torch.cat([self._base, base], -1)
        self.mean, self.variance = torch.cat([self.mean, mean], -1), torch.cat([self.variance, variances], -1)
        self._prior_variance = torch.cat([self._prior_variance, prior], -1)
        return first

    def _factor(self) -> Tensor | None:
        """``B`` (``kernel_batch x r x n``) if replicates share a kernel of low rank on points, None otherwise."""
        batch, kernel_batch, n = self.batch_shape, self._kernel.batch_shape, self.n
        shared = len(batch) == len(kernel_batch) + 1 and batch[1:] == kernel_batch and batch[0] > 1
        if not shared or self._start or self.queries.p > 1 or kernel_batch.numel() * n**2 > _GRAM_ENTRIES:
            return None
        gram = covariance(self._kernel, self.queries, self.queries)
        self._gram, self._gram_queries = gram, torch.arange(n, device=gram.device)
        self._gram_row = self._gram_queries
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        tolerance = 10 * torch.finfo(gram.dtype).eps * diagonal.amax(-1)
        return pivoted_cholesky(rows_of(gram), diagonal, min(_RANK, n // 4), tolerance)

    def _prior_rows(self, index: Tensor, first: int = 0) -> Tensor:
        """Prior covariances of queries ``batch x s`` with the queries from ``first`` on, ``batch x s x n``."""
        kernel_batch = self._gram.shape[:-2]  # GPyTorch takes a while to say it
        if kernel_batch == self.batch_shape and kernel_batch.numel() > 1:  # nothing is shared
            return covariance(self._kernel, self.queries[index], self.queries[first:])
        new = index[self._gram_row[index] < 0].unique()
        if k := new.numel():
            start = self._gram_queries.numel()
            if start + k > self._gram.shape[-2]:
                self._gram = _grow(self._gram, -2, start + k)
            self._gram[..., start : start + k, :] = covariance(self._kernel, self.queries[new], self.queries)
            self._gram_row[new] = torch.arange(start, start + k, device=new.device)
            self._gram_queries = torch.cat([self._gram_queries, new])
        rows, gram = self._gram_row[index], self._gram[..., first:]
        if gram.dim() == 2:
            return gram[rows]
        gram = gram.expand(*self.batch_shape, *gram.shape[-2:])
        return torch.take_along_dim(gram, rows.unsqueeze(-1), -2)


def _check_shared(queries: Measure, dim: int) -> None:
    """Tracked queries have no batch dimensions, and one input dimension."""
    expected = f"queries must be shared by all replicates, points (n, p, {dim})"
    fits = not queries.batch_shape and queries.dim == dim
    require(fits, expected, f"points of shape {tuple(queries.points.shape)}")


def _grow(buffer: Tensor, dim: int, count: int = 0) -> Tensor:
    """A buffer of at least twice the size along ``dim``, and of ``count``, old content first."""
    shape = list(buffer.shape)
    shape[dim] = max(shape[dim], count - shape[dim])
    return torch.cat([buffer, buffer.new_zeros(shape)], dim)
