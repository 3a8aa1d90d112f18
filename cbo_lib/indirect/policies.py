"""CMES, CMETS and queries that sharpen on a schedule ([Zhang2025])."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, as_option, as_schedule, require
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.fit import default_kernel
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect.embedding import ConditionalMeanProcess
from cbo_lib.indirect.entropy import gumbel_max_samples, log_information
from cbo_lib.indirect.space import Nodes, Space
from cbo_lib.policy import Policy
from cbo_lib.random import uniform
from cbo_lib.search import argmax_finite

# Random actions that come first where the prior is fitted.
_INITIAL = 5


class IndirectPolicy(Policy):
    """What all policies share: the conditional mean process, random first actions, and the recommendation.

    Args:
        space: what the learner knows.
        seeds: one a replicate.
        prior: the Gaussian process prior of f; its noise counts where the space knows none. Default: fitted to what is
            told, by the marginal likelihood of the averages, anew whenever the observations have grown by a quarter.
        kernel: what is fitted: ``"matern"`` (Matern-5/2, the default), ``"rbf"``, or a GPyTorch kernel of the unit box.
        initial: how many random actions, by the seed alone, are asked while no more is known. Default 5 with a fitted
            prior, else 0.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(
        self,
        space: Space,
        seeds: Any,
        prior: GaussianProcess | None = None,
        kernel: str | Kernel = "matern",
        initial: int | None = None,
    ) -> None:
        require(isinstance(space, Space), "space must be an indirect.Space", space)
        super().__init__(space, seeds, space.actions.shape[1:])
        require(isinstance(prior, GaussianProcess | None), "prior must be a GaussianProcess", prior)
        if not isinstance(kernel, Kernel):
            default_kernel(kernel, space.points.shape[-1])  # raises now
        self.process = ConditionalMeanProcess(space, len(seeds), prior, kernel)
        self.initial = as_count("initial", (_INITIAL if prior is None else 0) if initial is None else initial)
        first = [torch.randint(space.n, (self.initial,), generator=g) for g in self.streams.at(0)]
        self.first = torch.stack(first).to(space.like.device)

    def belief(self) -> tuple[Tensor, Tensor]:
        """Posterior mean and deviation of g at the actions, then of f at the points, ``replicates x (n + m)``."""
        return self.process.belief(self.queries, self.y)

    def recommend(self) -> Tensor:
        """The point of the largest posterior mean of f, ``replicates x d``: the last line of every policy."""
        return self.space.points[argmax_finite(self.belief()[0][:, self.space.n :])]

    @property
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told."""
        return self.process.posterior(self.queries, self.y)


class CMES(IndirectPolicy):
    """Conditional max-value entropy search ([Zhang2025], section 5.1). Where actions have costs: information per cost.

    Args:
        space: what the learner knows.
        samples: how many samples of ``f*``. Default 10.
        sampling: how they are drawn: ``"gumbel"`` [Wang2017], or ``"thompson"``, the maxima of joint draws of f, new
            ones in every round.
        noisy: whether the information is that of Appendix A, which the paper ran; default that of Eq. 14.
        options: ``prior``, ``kernel``, ``initial`` and ``seeds`` of ``IndirectPolicy``, or ``seed`` of ``Run``.

    Attributes:
        stars: the samples of the last question, ``replicates x samples``.
        asked: its belief of g at the actions, mean and deviation, ``replicates x n`` each, and the index of its action.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(
        self,
        space: Space,
        *,
        samples: int = 10,
        sampling: Literal["gumbel", "thompson"] = "gumbel",
        noisy: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.samples, self.noisy = as_count("samples", samples, 1), bool(noisy)
        self.sampling = as_option("sampling", sampling, "gumbel", "thompson")

    def max_samples(self) -> Tensor:
        """Samples of ``f*`` given the data, ``replicates x samples``."""
        if self.sampling == "thompson":
            points = self.space.measure_points(self.process.prior)
            return self.posterior.sample(points, self.samples, self.generators).amax(-1)
        n, (mean, std) = self.space.n, self.belief()
        return gumbel_max_samples(mean[:, n:], std[:, n:], uniform(self.generators, (self.samples,), mean))

    def ask(self) -> Tensor:
        """The action of the most information about ``f*`` for its cost, ``replicates x q``."""
        if self.round <= self.initial:
            return self.space.actions[self.first[:, self.round - 1]]  # line 2
        n, (mean, std) = self.space.n, self.belief()
        mean, std = mean[:, :n], std[:, :n]
        self.stars = self.max_samples()  # line 4
        noise = self.process.noise_std if self.noisy else None
        score = log_information(mean, std, self.stars, noise) - self.space.cost.log()  # line 5
        index = argmax_finite(score)  # line 6
        self.asked = mean, std, index
        return self.space.actions[index]


class CMETS(CMES):
    """Conditional max-value entropy tree search ([Zhang2025], Algorithm 1); the loop over the budget is the caller's.

    Only leaves of the tree grown so far and their children may be asked. A leaf that is told is split, a child of a
    leaf together with it, and so on up to the root. So the leaves always partition the box.

    Args:
        space: whose actions are the nodes.
        nodes: the tree.
        options: those of ``CMES``; there are no random first actions.

    Attributes:
        leaf: which nodes are leaves, boolean ``replicates x n``.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(self, space: Space, *, nodes: Nodes, **options: Any) -> None:
        super().__init__(space, **options | {"initial": 0})
        same = isinstance(nodes, Nodes) and torch.equal(nodes.actions, space.actions)
        require(same, "nodes must be Nodes, the actions of the space", nodes)
        self.nodes = nodes
        self.leaf = (nodes.level == 0).repeat(len(self.y), 1)  # line 1

    @property
    def child(self) -> Tensor:
        """Which nodes are children of leaves, boolean ``replicates x n``."""
        return self.leaf[:, self.nodes.parent] & (self.nodes.level > 0)

    def ask(self) -> Tensor:
        """The leaf, or child of one, of the most information for its cost, ``replicates x (d + 1)``."""
        n, (mean, std) = self.space.n, self.belief()
        mean, std = mean[:, :n], std[:, :n]
        self.stars = self.max_samples()  # line 3
        noise = self.process.noise_std if self.noisy else None
        score = log_information(mean, std, self.stars, noise) - self.space.cost.log()
        index = argmax_finite(score, self.leaf | self.child)  # line 4
        self.asked = mean, std, index
        return self.space.actions[index]

    def tell(self, query: Tensor, y: Tensor) -> None:
        """Learn the average ``y`` (``replicates``) of nodes, and split what was asked. Other actions split nothing."""
        super().tell(query, y)  # lines 5 to 7
        node = self.space.nearest(query.unsqueeze(1)).squeeze(1)
        known = (self.space.actions[node] - query).abs().amax(-1) < 1e-6 * self.space.actions[0, -1]
        path = [node]
        for _ in range(int(self.nodes.level.max())):  # the root is its own parent
            path.append(self.nodes.parent[path[-1]])
        for ancestor in reversed(path):  # lines 8 and 9: its parent first, if that is a leaf still
            self.split(ancestor, known)

    def split(self, node: Tensor, where: Tensor) -> None:
        """Put the children of nodes ``replicates`` in their place, where these are leaves that have any."""
        rows = torch.arange(len(node), device=node.device)
        where = where & self.leaf[rows, node] & (self.nodes.children[node, 0] >= 0)
        rows, node = rows[where], node[where]
        self.leaf[rows, node] = False
        self.leaf[rows.unsqueeze(-1), self.nodes.children[node]] = True


class ScheduledUCB(IndirectPolicy):
    """GP-UCB for f with queries whose blur shrinks on a schedule ([Zhang2025], Theorem 2).

    Args:
        space: whose actions are ``(x, tau)``, with the points for ``x``; those of any ``tau`` may be told.
        tau: the standard deviation of the blur at round ``t = 1, 2, ...``, nonnegative.
        failure: ``delta``, split between two events of as many points each.
        options: ``prior``, ``kernel`` and ``seeds`` of ``IndirectPolicy``, or ``seed`` of ``Run``.

    Attributes:
        asked: the index of the point of the last question, ``replicates``, and mean and deviation of f there.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(
        self, space: Space, *, tau: float | Callable[[int], float], failure: float = 0.1, **options: Any
    ) -> None:
        super().__init__(space, **{"initial": 0} | options)
        self.tau, self.failure = as_schedule("tau", tau), failure

    def sqrt_beta(self, t: int) -> float:
        """``sqrt(2 log(2 m pi_t / delta))``."""
        return union_bound_sqrt_beta(2 * self.space.m, t, self.failure)

    def ask(self) -> Tensor:
        """The point of the largest upper confidence bound of f, with this round's blur, ``replicates x (d + 1)``."""
        n, (mean, std) = self.space.n, self.belief()
        mean, std = mean[:, n:], std[:, n:]
        index = argmax_finite(mean + self.sqrt_beta(self.round) * std)
        at = torch.arange(len(index), device=index.device), index
        self.asked = index, mean[at], std[at]
        tau = self.tau(self.round) if callable(self.tau) else self.tau
        return torch.cat([self.space.points[index], torch.full_like(mean[:, :1], tau)], -1)
