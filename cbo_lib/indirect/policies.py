"""CMES [Zhang2025], and what its rivals share with it."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import NEARLY, as_count, as_near, as_number, as_option, as_tensor, require
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.former.policy import Policy, Schedule
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect.belief import Belief
from cbo_lib.indirect.entropy import conditional_max_value_entropy, gumbel_max_samples, positive
from cbo_lib.indirect.space import Space, table
from cbo_lib.random import standard_normal, uniform

# Random actions that come first where the prior is fitted.
_INITIAL = 5


class IndirectPolicy(Policy):
    """What the policies share: the conditional mean process, a random initial design, the budget, the recommendation.

    All recommend the point of the largest posterior mean of f under the same process; they differ in what they ask.
    A policy of one's own gives ``scores``, and may narrow down ``allowed`` and keep a state by ``advance``.

    In a batch, queries and recommendations are places, see ``Space``. A single run asks an action ``(q,)``, may be told
    any action, also one that is not in the space, and recommends a point ``(d,)``.

    Args:
        space: what the learner knows.
        prior: of f, of batch shape ``()`` or ``(replicates,)``, or of all places, by ``Space.tabulate``. Its noise
            counts where the space knows none. Default: fitted to what was seen, by the marginal likelihood of the
            averages, with the noise; see ``Surrogate``.
        kernel: what is fitted: ``"matern"`` (Matern-5/2, the default), ``"rbf"``, or a GPyTorch kernel of the unit box.
        initial: how many random actions, by the seed alone, are asked first. Default 5 with a fitted prior, else 0.
        budget: the total cost of the questions that may be asked; a replicate that can afford no action asks no more
            (its later rounds repeat the last action at no cost and learn nothing). What is told without having been
            asked costs nothing. Default unlimited.
        seed: of a single run. Default 0.
        sqrt_beta: the multiplier of a confidence bound, where a policy has one. Default 2.

    Raises:
        ValueError: if an argument is out of range, or the budget pays for no action.
    """

    query_dims: ClassVar[int] = 0
    listed: ClassVar[str | None] = "actions"

    space: Space

    def __init__(
        self,
        space: Space,
        *,
        prior: GaussianProcess | None = None,
        kernel: str | Kernel = "matern",
        initial: int | None = None,
        budget: float = math.inf,
        seed: int = 0,
        sqrt_beta: Schedule = 2.0,
    ) -> None:
        require(isinstance(space, Space), "space must be an indirect.Space", space)
        initial = (_INITIAL if prior is None else 0) if initial is None else initial
        super().__init__(space, seed=seed, sqrt_beta=sqrt_beta, initial=initial)
        cheapest = float(space.costs[: space.n].amin())
        if budget != math.inf:
            as_number("budget", budget)
        require(budget >= cheapest, f"budget must pay for the cheapest action, {cheapest:g}", budget)
        Surrogate(space.bounds, 1, None, kernel)  # raises now if it is out of range
        require(isinstance(prior, GaussianProcess | None), "prior must be a GaussianProcess", prior)
        self.prior, self.kernel, self.budget = prior, kernel, budget

    # What a policy of one's own may use.

    @property
    def n(self) -> int:
        """How many actions."""
        return self.space.n

    @property
    def mean(self) -> Tensor:
        """Posterior means of g at the actions and f at the points, ``replicates x (n + m)``."""
        return self.belief.mean

    @property
    def std(self) -> Tensor:
        """Posterior standard deviations there, ``replicates x (n + m)``."""
        return self.belief.std

    @property
    def covariance(self) -> Tensor:
        """Posterior covariances of all places, ``replicates x (n + m) x (n + m)``."""
        places = self.belief.tracked.queries[self.places]
        return self.belief.of_places().covariance(places, places)

    @property
    def noise(self) -> Tensor:
        """The standard deviation of an observation of each place, ``n + m`` or ``replicates x (n + m)``."""
        if self.space.noise is not None:
            return self.space.noise
        noise = torch.as_tensor(self.belief.process.noise_std).to(self.space.like)
        return noise.expand(*noise.shape[:-1], len(self.places))

    def padded(self, scores: Tensor) -> Tensor:
        """Scores of the actions ``... x n`` as scores of all places, ``-inf`` at points."""
        return torch.nn.functional.pad(scores, (0, self.space.m), value=-torch.inf)

    # Hooks of its own.

    @abstractmethod
    def scores(self) -> Tensor:
        """What is maximized over the places that may be asked, ``replicates x (n + m)``."""

    def allowed(self) -> Tensor:
        """Which places may be asked if they can be paid, ``n + m`` or ``replicates x (n + m)``: all actions."""
        return self.places < self.n

    def advance(self, query: Tensor, asked: Tensor) -> None:  # most keep no state of their own
        """Note that places ``replicates`` of actions were asked and paid, where ``asked`` is true."""

    # Hooks of the base.

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        space, like = self.space, self.space.like
        self.places = torch.arange(space.n + space.m, device=like.device)
        self.rows = torch.arange(self.replicates, device=like.device)
        self.belief = Belief(space, self.replicates, self.prior, self.kernel)
        self.left = like.new_full((self.replicates,), self.budget)
        self.last = torch.zeros_like(self.rows)
        self._kept = torch.full_like(self.rows, -1)  # what is recommended where nothing more is learned
        nothing = torch.full_like(self.left, torch.nan)
        self._asked_with = {"mean": nothing, "std": nothing, "cost": nothing, "active": self.active}
        # Drawn before anything else, so that all policies have the same.
        draws = [torch.randint(self.n, (self.initial,), generator=g) for g in self.generators]
        self._random_actions = torch.stack(draws).to(like.device)

    def design(self, n: int) -> Tensor:
        """Random actions; one that the budget does not pay for is replaced by the cheapest."""
        draws, costs, left, last = self._random_actions, self.space.costs[: self.n], self.left, self.last
        least = NEARLY * costs
        for i in range(n):
            cheapest = torch.where(least.amin() <= left, costs.argmin(), last)
            draws[:, i] = last = torch.where(least[draws[:, i]] <= left, draws[:, i], cheapest)
            left = left - costs[last]
        return draws

    def propose(self) -> Tensor:
        """The affordable place of the largest score; the last one again of a replicate that is over."""
        payable = self._payable() | ~self.active.unsqueeze(-1)
        return torch.where(self.active, argmax_finite(self.scores(), payable, self.places), self.last)

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition the process, pay for what was asked, and see what can still be afforded."""
        query, paid = row["query"], asked & self.active
        if bool(asked.any()):
            self.last = torch.where(paid, query, self.last)
            mean, std = (part[self.rows, self.last] for part in (self.mean, self.std))
            cost = torch.where(paid, self.space.costs[self.last], 0.0)
            self._asked_with = {"mean": mean, "std": std, "cost": cost, "active": self.active}
            self.left = self.left - cost
        learned = paid | ~asked
        if not bool(learned.all()):
            self._kept = torch.where(learned, -1, self.best())
        self.belief.observe(query, row["y"], learned)
        self.absorb(query, row["y"], learned)
        self.advance(self.last, paid)
        self.active = self.active & self._payable().any(-1)

    def absorb(self, query: Tensor, y: Tensor, learned: Tensor) -> None:  # the belief holds all
        """Update what goes with the belief, after replicates ``learned`` took in a row."""

    def best(self) -> Tensor:
        """The place of the point with the largest posterior mean of f."""
        return torch.where(self._kept < 0, argmax_finite(self.mean, self.places >= self.n, self.places), self._kept)

    def posteriors(self) -> Posterior:
        """The posterior of f; of all places, if the prior is a table of them."""
        return self.belief.posterior()

    def record(self) -> Mapping[str, Tensor]:
        """Mean and standard deviation at the asked place before the observation, its cost, and whether it was asked.

        Where the prior is fitted, also ``lengthscale``, ``scale``, ``prior_mean``, ``noise_std`` and ``converged``.
        """
        return self._asked_with if self.belief.surrogate is None else self._asked_with | self.belief.surrogate.record()

    def encode(self, name: str, value: Any) -> Tensor:
        """The places of actions ``q`` or ``n x q``; those that the space does not hold are added."""
        q = self.space.actions.shape[-1]
        given = as_tensor("query", value, self.space.like)
        rows = table("query", given if given.dim() else given.unsqueeze(0))
        if rows.dim() == 2 and rows.shape == (q, 1) and q > 1:
            rows = rows.mT
        fits = rows.dim() == 2 and rows.shape[-1] == q
        require(fits, f"query must have shape ({q},), or (n, {q}) for several", given.shape)
        return self.belief.find(as_near("query", rows, self.space.actions))

    def decode(self, name: str, rows: Tensor) -> Tensor:
        """Actions: places are those of this policy alone."""
        return self.belief.coordinates(rows) if name == "query" else rows

    def present(self, query: Tensor) -> Tensor:
        """The action or the point of a place."""
        n, place = self.n, int(query)
        return (self.space.actions[place] if place < n else self.space.points[place - n]).clone()

    def check(self, **rows: Tensor) -> None:
        """Raise if a query is no place that can be asked."""
        query = rows["query"]
        self.belief.keep()
        known = not query.is_floating_point() and bool(self.belief.known(query).all())
        require(known, "query must hold places of actions, see Space", query)

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """Whether the same action was done; a list may hold one more than once."""
        return (self.belief.coordinates(row["query"]) == self.belief.coordinates(asked)).all(-1)

    def _payable(self) -> Tensor:
        return self.allowed() & (NEARLY * self.space.costs <= self.left.unsqueeze(-1))


class CMES(IndirectPolicy):
    """Conditional max-value entropy search ([Zhang2025], section 5.1).

    Asks the action of the most information about ``f*`` (``conditional_max_value_entropy``) for its cost.

    Args:
        space: what the learner knows.
        samples: how many samples of ``f*``. Default 10.
        sampling: how they are drawn: ``"gumbel"`` [Wang2017], or ``"thompson"``, the maxima of joint draws of f, which
            are kept and moved by Matheron's rule, fast but not drawn anew (where the prior is fitted, they are).
        noisy: whether to use the form of Appendix A; default Eq. 14.
        options: those of ``IndirectPolicy``: ``prior``, ``kernel``, ``initial``, ``budget``, ``seed``. Errors too.
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
        self.sampling = as_option("sampling", sampling, "gumbel", "thompson")
        self.samples, self.noisy = as_count("samples", samples, 1), noisy

    def begin(self) -> None:
        """Also nothing is known of ``f*``."""
        super().begin()
        self._drawn = self.left.new_full((self.replicates, self.samples), torch.nan)
        self._kappa = torch.full_like(self.left, torch.nan)
        self.paths: Tensor | None = None
        if self.sampling == "thompson" and self.prior is not None:
            self.paths = self.belief.draw(self.samples, self.generators)

    def max_samples(self) -> Tensor:
        """Samples of ``f*`` given the data, ``replicates x samples``."""
        n = self.n
        if self.sampling == "thompson":
            paths = self.belief.draw(self.samples, self.generators) if self.paths is None else self.paths
            return paths[..., n : len(self.places)].amax(-1)
        draws = uniform(self.generators, (self.samples,), self.mean).clamp(1e-6, 1 - 1e-6)
        return gumbel_max_samples(self.mean[:, n:], positive(self.std[:, n:]), draws)

    def scores(self) -> Tensor:
        """The logarithm of information over cost; of information that is tiny everywhere ties are judged by it."""
        self._drawn = self.max_samples()
        n = self.n
        mean, std = self.mean[:, :n], self.std[:, :n]
        noise = self.noise[..., :n] if self.noisy else None
        gain = conditional_max_value_entropy(mean, std, self._drawn, noise)
        best = self._drawn[:, 0], self._drawn.amin(-1)
        first, nearest = ((one.unsqueeze(-1) - mean) / positive(std) for one in best)
        self._kappa = first.masked_fill(~self.allowed()[..., :n], torch.inf).amin(-1)
        # Beyond 38 deviations the information underflows; its logarithm is near minus half the square then.
        log_gain = torch.where(gain > 0, gain.log(), -0.5 * nearest.square())
        return self.padded(log_gain - self.space.costs[:n].log())

    def absorb(self, query: Tensor, y: Tensor, learned: Tensor) -> None:
        """Matheron: a path moves like the mean does, by its own gap to a noisy observation."""
        if self.paths is None:
            return
        row, scale = self.belief.tracked.last_row, self.belief.tracked.last_scale
        if row.shape[-1] > self.paths.shape[-1]:  # an action was told that the space does not hold
            self.paths = self.belief.draw(self.samples, self.generators)
            return
        noise = self.belief.noise_at(query).unsqueeze(-1) * standard_normal(self.generators, (self.samples,), y)
        gap = (y.unsqueeze(-1) - self.paths[self.rows, :, query] - noise) / scale.unsqueeze(-1)
        moved = self.paths + gap.unsqueeze(-1) * row.unsqueeze(-2)
        self.paths = torch.where(learned[:, None, None], moved, self.paths)

    def record(self) -> Mapping[str, Tensor]:
        """Also the ``max_samples`` of ``f*``, and ``kappa``, the smallest ``(f* - mean) / std`` for the first of them.

        Both are NaN in the initial design.
        """
        return {**super().record(), "max_samples": self._drawn, "kappa": self._kappa}
