"""Where f and g peak in different places: a family of functions, and policies that ask for other information.

Functions of one variable are drawn from the prior that the learners hold, and seen through blurs of several widths. The
wider the blur, the more often the best action is not over the best point. What is kept of the runs stands in
``mismatch.npz``, made by::

    python -m book run indirect.mismatch --scale paper --publish
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.functions import prior_samples
from book.indirect.controls import NoisyCMES, RandomQueries, usual_policies
from book.indirect.family import BatchProblem, batch_table
from book.indirect.online import online
from book.indirect.problem import IndirectProblem
from book.indirect.problems import known_prior, two_peaks
from book.indirect.regret import at_rounds, recommendation_regret, simple_regret
from cbo_lib.former.history import unpack_arrays
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ActionPolicy, ClippedGaussian, Space
from cbo_lib.indirect.entropy import conditional_max_value_entropy
from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.kernels import rbf_kernel

LENGTH, NOISE, STEPS, SEEDS = 0.1, 0.05, 30, 100
#: Widths of the blur, in lengthscales of f.
BLURS = (0.5, 1.0, 1.5, 2.0)
STORED = Path(__file__).with_name("mismatch.npz")
#: What is kept of a run: the recommendation's regret after these rounds, and the mean over all.
ROUNDS = (5, 10, 20, 30)
_NOTIONS: tuple[Callable[..., Tensor], ...] = (recommendation_regret, simple_regret)


def drawn_problem(blur: float, seeds: Sequence[int], count: int = 61) -> BatchProblem:
    """Draws of a prior on the unit interval, one a seed, seen through Gaussian averages.

    Args:
        blur: standard deviation of ``p(x | a)``, in lengthscales of f.
        seeds: one a function; the same functions for every blur.
        count: actions, and points.
    """
    f = prior_samples(rbf_kernel(LENGTH), torch.tensor([[-1.0], [2.0]], dtype=torch.float64), seeds, grid=257)
    x = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    conditional = ClippedGaussian(lambda a: a, blur * LENGTH)
    table = batch_table(f, len(seeds), conditional, x, x, 25)
    space = Space(x, conditional=conditional, points=x, noise_std=NOISE)
    return BatchProblem(space, table, conditional, torch.full((count,), NOISE, dtype=torch.float64))


def mismatch(problem: BatchProblem) -> tuple[Tensor, Tensor]:
    """How far the best action lies from the best point, and ``f* - g*``, both ``replicates``."""
    g, f = problem.table.split([problem.space.n, problem.space.m], -1)
    where = problem.space.points[:, 0]
    return (where[f.argmax(-1)] - where[g.argmax(-1)]).abs(), f.amax(-1) - g.amax(-1)


def variance_explained(g: Tensor, group: Tensor, groups: int, noise_std: float | Tensor) -> Tensor:
    """Information of ``z = g + noise`` about a group label, as if z were Gaussian within each group, ``... x n``.

    ``0.5 log Var z - sum_b p_b 0.5 log Var(z | b)`` from joint samples.

    Args:
        g: samples, ``... x S x n``.
        group: the label of each sample, ``... x S`` integers below ``groups``.
        groups: how many labels there may be.
        noise_std: of the observation.
    """
    one_hot = torch.nn.functional.one_hot(group, groups).to(g).mT  # ... groups S
    size = one_hot.sum(-1, keepdim=True)
    centered = g - g.mean(-2, keepdim=True)
    first, second = (one_hot @ part / size.clamp_min(1.0) for part in (centered, centered.square()))
    within = ((second - first.square()).clamp_min(0.0) * size / (size - 1).clamp_min(1.0)) + noise_std**2
    total = centered.square().sum(-2) / (g.shape[-2] - 1) + noise_std**2
    return 0.5 * total.log() - (size / g.shape[-2] * 0.5 * within.log()).sum(-2)


class SampledInformation(IndirectPolicy):
    """Asks for information on ``f*`` itself, or on where it is, from joint samples of f and g.

    Args:
        space: what the learner knows; points of one coordinate.
        about: ``"value"`` (``f*``) or ``"place"`` (``x*``).
        draws: how many joint samples.
        groups: into how many groups they are cut: of equal size by ``f*``, or of equal width by ``x*``.
        options: those of ``IndirectPolicy``.
    """

    def __init__(
        self, space: Space, *, about: str = "value", draws: int = 256, groups: int = 8, **options: Any
    ) -> None:
        if about not in ("value", "place"):
            raise ValueError(f"about must be 'value' or 'place', got {about!r}")
        super().__init__(space, **options)
        self.about, self.draws, self.groups = about, draws, groups

    def scores(self) -> Tensor:
        """The estimated information."""
        paths = self.belief.draw(self.draws, self.generators)
        g, f = paths[..., : self.n], paths[..., self.n : len(self.places)]
        if self.about == "value":
            rank = f.amax(-1).argsort(-1).argsort(-1)
            group = rank * self.groups // self.draws
        else:
            where = self.space.points[:, 0]
            share = (where - where.min()) / (where.max() - where.min())
            group = (share[f.argmax(-1)] * self.groups).long().clamp_max(self.groups - 1)
        return self.padded(variance_explained(g, group, self.groups, float(self.noise[0])))


def true_information(paths: Tensor, n: int, noise_std: float, groups: int = 20, bins: int = 240) -> Tensor:
    """``I(z; f*)`` of every action, by Monte Carlo and quadrature, ``n`` in nats.

    Samples of ``f*`` are cut into groups of equal size; within each the density of ``z = g + noise`` is the histogram
    of g, smoothed by the noise. Cutting loses a little information; a finite sample adds a little.

    Args:
        paths: joint samples of g at actions and f at points, ``S x (n + m)``.
        n: how many actions.
        noise_std: of the observation.
        groups: how many groups.
        bins: of the histogram.
    """
    g, best = paths[:, :n], paths[:, n:].amax(-1)
    per = len(paths) // groups
    order = best.argsort()[: per * groups].reshape(groups, per)
    low, high = g.amin(0) - 5 * noise_std, g.amax(0) + 5 * noise_std
    step = (high - low) / bins
    gaps = torch.arange(bins).to(g)
    gaps = (gaps - gaps.unsqueeze(-1)).square()
    information = torch.empty(n).to(g)
    for a in range(n):
        place = ((g[:, a] - low[a]) / step[a]).long().clamp(0, bins - 1)
        counts = torch.zeros(groups, bins).to(g)
        counts.scatter_add_(1, place[order], torch.ones_like(order).to(g))
        density = counts @ (-0.5 * gaps * (step[a] / noise_std).square()).exp()
        density = density / density.sum(-1, keepdim=True)
        entropy = -(density * density.clamp_min(1e-300).log()).sum(-1)
        whole = density.mean(0)
        information[a] = -(whole * whole.clamp_min(1e-300).log()).sum() - entropy.mean()
    return information


#: What is asked by whom, in ``efficiency``.
CHOICES = ("Eq. 14", "Appendix A", "I(z; f*), normal groups", "I(z; x*), normal groups", "deviation of g")


def informed(problem: BatchProblem, seeds: Sequence[int], count: int, draws: int = 20_000) -> tuple[Tensor, Tensor]:
    """After ``count`` random answers: the true ``I(z; f*)`` of every action, and what other rules take for it.

    Args:
        problem: of the family.
        seeds: one a function.
        count: how many answers.
        draws: joint samples a function.

    Returns:
        ``replicates x n`` in nats, and the scores of ``CHOICES``, ``choices x replicates x n``.
    """
    space = problem.space
    policy = RandomQueries(space, prior=known_prior(space, LENGTH), initial=count)
    simulate(problem, policy, count, seeds, progress=False)
    paths = policy.belief.draw(draws, policy.generators)
    n = space.n
    truth = torch.stack([true_information(part, n, NOISE) for part in paths])
    few = paths[:, :2048]
    best = few[..., n:].amax(-1)
    mean, std = policy.mean[:, :n], policy.std[:, :n]
    by_value = best.argsort(-1).argsort(-1) * 16 // few.shape[1]
    by_place = few[..., n:].argmax(-1) * 16 // space.m
    scores = [
        conditional_max_value_entropy(mean, std, best[:, :256]),
        conditional_max_value_entropy(mean, std, best[:, :256], NOISE),
        *(variance_explained(few[..., :n], group, 16, NOISE) for group in (by_value, by_place)),
        std,
    ]
    return truth, torch.stack(scores)


def efficiency(
    blur: float, seeds: Sequence[int] = range(12), counts: Sequence[int] = (3, 10), draws: int = 20_000
) -> np.ndarray[Any, Any]:
    """The true information of what each of ``CHOICES`` asks, as a share of the most there is; last, chance.

    Args:
        blur: in lengthscales of f.
        seeds: one a function.
        counts: answers before the choice.
        draws: see ``informed``.

    Returns:
        ``counts x replicates x (choices + 1)``.
    """
    problem, parts = drawn_problem(blur, seeds), []
    for count in counts:
        truth, scores = informed(problem, seeds, count, draws)
        chosen = truth.gather(1, scores.argmax(-1).mT)  # replicates x choices
        parts.append(torch.cat([chosen, truth.mean(-1, keepdim=True)], -1) / truth.amax(-1, keepdim=True))
    return torch.stack(parts).numpy().astype(np.float32)


def family(blur: float, seeds: Sequence[int] = range(SEEDS), steps: int = STEPS) -> dict[str, np.ndarray[Any, Any]]:
    """All policies at one blur: regrets ``replicates x columns`` by policy, and ``distance`` and ``gap``.

    Args:
        blur: in lengthscales of f.
        seeds: one a function.
        steps: rounds.
    """
    problem = drawn_problem(blur, seeds)
    space = problem.space
    usual: dict[str, Any] = {"prior": known_prior(space, LENGTH), "initial": 1}
    # g is stationary: its variance and its lengthscale follow from those of f.
    wide = LENGTH**2 * (1 + 2 * blur**2)
    on_g = GaussianProcess(rbf_kernel(wide**0.5, (LENGTH**2 / wide) ** 0.5), NOISE)
    policies: dict[str, IndirectPolicy] = {
        "CMES": CMES(space, **usual),
        "CMES, Appendix A": NoisyCMES(space, **usual),
        "information on f*": SampledInformation(space, about="value", **usual),
        "information on x*": SampledInformation(space, about="place", **usual),
        "random": RandomQueries(space, **usual),
    } | usual_policies(ActionPolicy, space, action_prior=on_g, **usual)
    distance, gap = mismatch(problem)
    return {"distance": distance.numpy(), "gap": gap.numpy()} | _recommended(problem, policies, seeds, steps, ROUNDS)


def _recommended(
    problem: BatchProblem | IndirectProblem,
    policies: Mapping[str, IndirectPolicy],
    seeds: Sequence[int],
    steps: int,
    rounds: Sequence[int],
) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for name, policy in policies.items():
        history = simulate(problem, policy, steps, seeds, progress=False)
        columns = [at_rounds(notion(history, problem), rounds) for notion in _NOTIONS]
        found[name] = torch.cat(columns, -1).numpy().astype(np.float32)
    return found


def peaks(
    blur: float, kernels: str, seeds: Sequence[int] = range(40), steps: int = 60
) -> dict[str, np.ndarray[Any, Any]]:
    """The two peaks of the first page, ``recommended regret after 20, 40, 60 and mean`` by policy.

    Args:
        blur: standard deviation of ``p(x | a)``; the broad hill is the best action from about 0.1 on.
        kernels: ``"chosen"`` (by hand: 0.15 for f, 0.4 for g), ``"matched"`` (that of g follows from that of f) or
            ``"fitted"`` (lengthscale and variance learned online, of f and of g).
        seeds: of noise and choices.
        steps: rounds.

    Raises:
        ValueError: for other kernels.
    """
    x = torch.linspace(-0.5, 3.5, 201, dtype=torch.float64)[:, None]
    conditional = ClippedGaussian(lambda a: a, blur)
    space = Space(x, conditional=conditional, points=x, noise_std=0.02)
    problem = IndirectProblem(space, two_peaks)
    policies: dict[str, Any]
    if kernels == "fitted":
        grid = [(length, size) for length in (0.1, 0.15, 0.22, 0.33, 0.5) for size in (0.1, 0.3)]
        bank = [known_prior(space, length, size) for length, size in grid]
        on_g = [GaussianProcess(rbf_kernel(length, size), 0.02) for length, size in grid]
        usual: dict[str, Any] = {"bank": bank, "initial": 2}
        policies = {"CMES": online(CMES)(space, **usual), "random": online(RandomQueries)(space, **usual)}
        policies |= usual_policies(online(ActionPolicy), space, action_bank=on_g, **usual)
    elif kernels in ("chosen", "matched"):
        usual = {"prior": known_prior(space, 0.15, 0.3), "initial": 2}
        wide = math.sqrt(0.15**2 + 2 * blur**2)
        action_prior = GaussianProcess(
            rbf_kernel(0.4, 0.3) if kernels == "chosen" else rbf_kernel(wide, 0.3 * 0.15 / wide), 0.02
        )
        policies = {"CMES": CMES(space, **usual), "random": RandomQueries(space, **usual)}
        policies |= usual_policies(ActionPolicy, space, action_prior=action_prior, **usual)
    else:
        raise ValueError(f"kernels must be 'chosen', 'matched' or 'fitted', got {kernels!r}")
    return _recommended(problem, policies, seeds, steps, (20, 40, 60))


def stored(path: str | Path = STORED) -> dict[str, np.ndarray[Any, Any]]:
    """What the command wrote: ``peaks/<blur>/<kernels>/<policy>``, ``family/<blur>/<policy, distance or gap>``."""
    return unpack_arrays(Path(path).read_bytes())
