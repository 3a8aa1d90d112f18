"""GPOO and the policies that it is compared with.

.. [Zhang2022] M. Zhang, R. Tsuchida, C. S. Ong. Gaussian Process Bandits with Aggregated Feedback. AAAI 2022.
.. [Munos2014] R. Munos. From Bandits to Monte-Carlo Tree Search. Foundations and Trends in Machine Learning 7(1), 2014.
.. [Shekhar2018] S. Shekhar, T. Javidi. Gaussian process bandits with adaptive discretization. Electronic Journal of
   Statistics 12(2), 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.aggregated.problem import CellProblem
from cbo_lib.aggregated.tree_policy import GaussianProcessTreePolicy, Smoothness, TreePolicy, check_smoothness
from cbo_lib.confidence import union_bound_sqrt_beta


class GPOO(GaussianProcessTreePolicy):
    """Gaussian process optimistic optimization ([Zhang2022]_, Algorithm 1).

    Draws the leaf with the largest b-value, posterior mean + confidence width + ``delta(depth)``, and expands it once
    the confidence width that it was chosen with is at most ``delta(depth)``.

    Args:
        problem: the cells.
        kernel: the prior covariance of f, a GPyTorch kernel.
        delta: the smoothness function: positive, decreasing in the depth.
        max_depth: the deepest level whose nodes may be expanded, so that nodes reach depth ``max_depth + 1``
            (Algorithm 1, line 6). Default 10.
        failure: the probability ``theta`` with which some confidence interval may fail. Default 0.1.
        sqrt_beta: the multiplier of the standard deviation at round ``t = 1, 2, ...``. Default that of Lemma 1,
            ``sqrt(2 log(M pi^2 t^2 / (6 theta)))`` with ``M`` the number of nodes of the full tree of ``max_depth``.
        noise_std: what the prior takes for the noise. Default the problem's.
        expand_after: which confidence width decides on the expansion (line 6): ``False``, the one that the node was
            drawn with (Eq. 6, and what the proof of Lemma 3 uses); ``True``, the one after its new observation.

    Raises:
        ValueError: if ``delta`` is not positive and decreasing, or another argument is out of range.
    """

    def __init__(
        self,
        problem: CellProblem,
        kernel: Kernel,
        delta: Smoothness,
        max_depth: int = 10,
        failure: float = 0.1,
        sqrt_beta: Callable[[int], float] | None = None,
        noise_std: float | None = None,
        expand_after: bool = False,
    ) -> None:
        super().__init__(problem, kernel, noise_std)
        self.expand_after = expand_after
        if max_depth < 0:
            raise ValueError(f"max_depth must be nonnegative, got {max_depth}")
        self.delta = check_smoothness(delta, max_depth + 1, problem.bounds)
        self.max_depth = max_depth
        self.failure = failure
        nodes = sum(problem.branching**h for h in range(max_depth + 1))
        union_bound_sqrt_beta(nodes, 1, failure)  # raises now if failure is out of range
        self.follows_lemma_1 = sqrt_beta is None
        self.sqrt_beta = sqrt_beta or (lambda t: union_bound_sqrt_beta(nodes, t, failure))

    def ask(self) -> Tensor:
        """The leaf of the largest b-value of each replicate (Algorithm 1, line 2), as a cell."""
        self._require_start()
        self._widths = self.sqrt_beta(self.round) * self.posterior.variance.sqrt()  # Eq. 6: from the data before t
        return super().ask()

    def _scores(self) -> Tensor:
        return self.posterior.mean + self._widths + self.delta(self.tree.depth)  # Eq. 5

    def _may_expand(self, node: Tensor) -> Tensor:
        depth = self.tree.depth[node]
        self._width = self._widths[self._rows, node]
        if self.expand_after:
            self._width = self.sqrt_beta(self.round) * self.posterior.variance[self._rows, node].sqrt()
        return (self.delta(depth) >= self._width) & (depth <= self.max_depth)  # line 6

    def _recommended(self) -> Tensor:
        """Line 11: the best posterior mean among all nodes of the depth of the deepest expanded node, leaves too."""
        deepest = torch.where(self.expanded, self.tree.depth, -1).amax(-1, keepdim=True)
        return self._best_of((self.leaf | self.expanded) & (self.tree.depth == deepest))

    def trace(self) -> Mapping[str, Tensor]:
        """Also the confidence width of the drawn node, and the cell of the best mean among all expanded nodes."""
        return {
            **super().trace(),
            "width": self._width,
            "best_expanded": self.tree.boxes[self._best_of(self.expanded)],
        }


class StoOO(TreePolicy):
    """Stochastic optimistic optimization ([Munos2014]_, section 3.3), for cells of any number of points.

    The score is the mean of the node's own observations + ``sqrt(log(n^2 / failure) / (2 T))`` + ``delta(depth)``
    after ``T`` draws, infinite before the first. A node is expanded after ``log(n^2 / failure) / (2 delta^2)`` draws.

    Args:
        problem: the cells.
        delta: the smoothness function: positive, decreasing in the depth.
        budget: the number ``n`` of rounds that the widths are made for.
        failure: error probability. Default 0.1.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, problem: CellProblem, delta: Smoothness, budget: int, failure: float = 0.1) -> None:
        super().__init__(problem)
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        if not 0 < failure < 1:
            raise ValueError(f"failure must lie in (0, 1), got {failure}")
        self.delta = check_smoothness(delta, 1, problem.bounds)
        self.budget = budget
        self.failure = failure

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator; each holds the root as its only leaf."""
        super().start(generators)
        self.sums = self.draws.to(self.problem.bounds.dtype)

    def _grow(self, before: int) -> None:
        super()._grow(before)
        self.sums = torch.nn.functional.pad(self.sums, (0, len(self.tree) - before))

    def _squared_width(self) -> float:
        """The squared confidence width of a node that was drawn once."""
        return math.log(self.budget**2 / self.failure) / 2

    def _scores(self) -> Tensor:
        return self._estimate() + (self._squared_width() / self.draws).sqrt() + self.delta(self.tree.depth)

    def _estimate(self) -> Tensor:
        return self.sums / self.draws.clamp_min(1)

    def _learn(self, node: Tensor, observation: Tensor) -> None:
        self.sums[self._rows, node] += observation

    def _may_expand(self, node: Tensor) -> Tensor:
        draws = self.draws[self._rows, node]
        return draws >= self._squared_width() / self.delta(self.tree.depth[node]).square()


class AveStoOO(StoOO):
    """StoOO for aggregated feedback ([Zhang2022]_, Algorithm 2): the squared width is ``2 log(t^2 / theta) / T``.

    It needs no budget, and its intervals are twice as wide as those of ``StoOO`` at ``t = n``.

    Args:
        problem: the cells.
        delta: the smoothness function: positive, decreasing in the depth.
        failure: the error probability ``theta``. Default 0.1.
    """

    def __init__(self, problem: CellProblem, delta: Smoothness, failure: float = 0.1) -> None:
        super().__init__(problem, delta, budget=1, failure=failure)

    def _squared_width(self) -> float:
        return 2 * math.log(self.round**2 / self.failure)  # Eq. 12


class GPTree(GaussianProcessTreePolicy):
    """The tree policy of [Shekhar2018]_ for Gaussian process bandits, as the published code of [Zhang2022]_ has it.

    The score of a node is the smaller of its own upper confidence bound and its parent's plus ``V(h - 1)``, plus
    ``V(h)``. The best leaf is expanded, without a draw, while ``sqrt_beta * std <= V(h)``; else it is drawn.

    ``V(h) = 4 g (sqrt(2 u + C4 + h log K + 4 D1 log(1 / g)) + C3)`` with ``g = metric_bound(v1 rho^h)`` and
    ``C4 = C2 + 2 log(n^2 pi^2 / 6)``; ``sqrt_beta = scale sqrt(log n + u)``, the same at all rounds; no node deeper
    than ``log n (1 + 1/alpha) / (2 alpha log(1/rho))`` is expanded.

    Args:
        problem: the cells.
        kernel: the prior covariance of f, a GPyTorch kernel.
        budget: the number ``n`` of rounds that the constants are made for.
        metric_bound: ``g``, an upper bound of the standard deviation of ``f(x) - f(x')`` at distance ``r``, below 1
            wherever it is used.
        smoothness: the exponent ``alpha`` of ``g`` near zero. Default 1, that of the RBF kernel.
        rho: how fast cells shrink, ``1 / K`` in one dimension. Default ``branching ** (-1 / dim)``.
        u: confidence, failure probability ``exp(-u)``. Default 2.
        v1, c2, c3, metric_dimension: the constants ``v1``, ``C2``, ``C3`` and ``D1``, which the paper leaves open.
            Default 1 each.
        scale: multiplies ``sqrt_beta``; 1 in the paper.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: CellProblem,
        kernel: Kernel,
        budget: int,
        metric_bound: Callable[[float], float],
        smoothness: float = 1.0,
        rho: float | None = None,
        u: float = 2.0,
        v1: float = 1.0,
        c2: float = 1.0,
        c3: float = 1.0,
        metric_dimension: float = 1.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__(problem, kernel, None)
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        self.budget = budget
        self.rho = problem.branching ** (-1 / problem.dim) if rho is None else rho
        if not 0 < self.rho < 1:
            raise ValueError(f"rho must lie in (0, 1), got {self.rho}")
        if not 0 < smoothness <= 1:
            raise ValueError(f"smoothness must lie in (0, 1], got {smoothness}")
        self.sqrt_beta = scale * math.sqrt(math.log(budget) + u)
        self.max_depth = math.log(budget) * (1 + 1 / smoothness) / (2 * smoothness * math.log(1 / self.rho))
        c4 = c2 + 2 * math.log(budget**2 * math.pi**2 / 6)

        def variation(h: int) -> float:
            g = metric_bound(v1 * self.rho**h)
            if not 0 < g < 1:
                raise ValueError(f"metric_bound must lie in (0, 1), got {g} at distance {v1 * self.rho**h}")
            root = math.sqrt(2 * u + c4 + h * math.log(problem.branching) + 4 * metric_dimension * math.log(1 / g))
            return 4 * g * (root + c3)

        levels = [variation(h) for h in range(math.floor(self.max_depth) + 2)]
        self.variation = torch.tensor(levels, dtype=problem.bounds.dtype, device=problem.bounds.device)

    def ask(self) -> Tensor:
        """Expand the best leaf while it is known well enough, then return it as a cell."""
        self._require_start()
        while True:
            node = self._best_leaf()
            depth = self.tree.depth[node]
            std = self.posterior.variance[self._rows, node].sqrt()
            ready = (self.sqrt_beta * std <= self.variation[depth]) & (depth <= self.max_depth)
            if not bool(ready.any()):
                return self._asked(node)
            self._expand(self._rows[ready], node[ready])

    def _scores(self) -> Tensor:
        upper = self.posterior.mean + self.sqrt_beta * self.posterior.variance.sqrt()
        from_parent = upper[:, self.tree.parent] + self.variation[self.tree.depth - 1]
        from_parent[:, 0] = torch.inf  # the root has none
        return torch.minimum(upper, from_parent) + self.variation[self.tree.depth]

    def _may_expand(self, node: Tensor) -> Tensor:
        return torch.zeros_like(node, dtype=torch.bool)  # it expands in ask, without a draw


class UniformGrid(GaussianProcessTreePolicy):
    """Draws the cells of one level of the tree in turn, whatever it sees: the baseline without adaptation.

    It shares the posterior of GPOO, so the two differ in where they look alone. The level is the deepest that the
    budget can visit once; cells are visited in bit-reversed order, so that every prefix is spread out. It recommends
    the best posterior mean among the visited cells.

    Args:
        problem: the cells.
        kernel: the prior covariance of f, a GPyTorch kernel.
        budget: the number of rounds to plan for.
    """

    def __init__(self, problem: CellProblem, kernel: Kernel, budget: int) -> None:
        super().__init__(problem, kernel, None)
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        self.budget = budget
        self.level = 0
        while problem.branching ** (self.level + 1) <= budget:
            self.level += 1

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and lay out the grid."""
        super().start(generators)
        for _ in range(self.level):
            for node in self.leaf[0].nonzero().flatten():
                self._expand(self._rows, node.expand_as(self._rows))
        cells = self.leaf[0].nonzero().flatten()
        index = self.tree.index[cells]
        reversed_index, rest = torch.zeros_like(index), index.clone()
        for _ in range(self.level):
            reversed_index = reversed_index * self.tree.branching + rest % self.tree.branching
            rest = rest // self.tree.branching
        self._visits = cells[reversed_index.argsort()]

    def ask(self) -> Tensor:
        """The next cell of the grid, the same for every replicate."""
        self._require_start()
        node = self._visits[(self.round - 1) % len(self._visits)]
        return self._asked(node.expand_as(self._rows))

    def _recommended(self) -> Tensor:
        return self._best_of(self.draws > 0)

    def _scores(self) -> Tensor:
        return self.posterior.mean

    def _may_expand(self, node: Tensor) -> Tensor:
        return torch.zeros_like(node, dtype=torch.bool)
