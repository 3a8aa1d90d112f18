"""The experiments of the paper and two applications, and how they are drawn.

``scale="paper"`` runs 30 replicates (the paper shows 5), ``scale="reader"`` the first 10 of the same seeds.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from botorch.test_functions import Branin
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cbo_lib import figures
from cbo_lib.functions import Function, prior_samples
from cbo_lib.generators import ReplicateGenerators, standard_normal
from cbo_lib.gp import GaussianProcess, rbf_kernel
from cbo_lib.history import History
from cbo_lib.indirect.embedding import cross_validate, draw_data, embedding_weights, estimated_prior, known_prior
from cbo_lib.indirect.policies import CMES, ActionPolicy, DirectMES, IndirectPolicy, RandomQueries
from cbo_lib.indirect.problem import ClippedGaussian, FinitePolicies, IndirectProblem, cosine_map, unit_grid
from cbo_lib.indirect.regret import at_cost, instant_regret, recommendation_regret, simple_regret
from cbo_lib.indirect.schedule import BlurredProblem, ScheduledUCB
from cbo_lib.indirect.tree import CMETS, Nodes
from cbo_lib.measure import Measure
from cbo_lib.simulate import simulate

Scale = Literal["reader", "paper"]
Transformation = Literal["linear", "cosine"]
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
#: ``tau`` of section 7, in units of the box, whose sides are 15.
TAU = math.sqrt(0.5) / 15


def replicates(scale: Scale) -> int:
    """How many replicates a scale has."""
    if scale not in ("reader", "paper"):
        raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")
    return 30 if scale == "paper" else 10


@cache
def _branin_moments() -> tuple[float, float]:
    values = _branin(unit_grid(128))
    return float(values.mean()), float(values.std())


def _branin(u: Tensor) -> Tensor:
    problem = Branin(dtype=u.dtype).to(u)
    bounds = torch.as_tensor(problem.bounds).to(u)
    # The formula also holds outside the box, where the call would refuse; unclipped averages need it there.
    return -problem._evaluate_true(torch.lerp(bounds[0], bounds[1], u.reshape(-1, 2))).reshape(u.shape[:-1])


def branin(u: Tensor) -> Tensor:
    """Branin's function on the unit square, to be maximized, with mean zero and standard deviation one there."""
    mean, std = _branin_moments()
    return (_branin(u) - mean) / std


def transformation(name: Transformation) -> Function:
    """``h`` of section 7 in units of the box: the identity, or ``cos(pi a / 2)`` in each coordinate."""
    if name not in ("linear", "cosine"):
        raise ValueError(f"transformation must be 'linear' or 'cosine', got {name!r}")
    return (lambda a: a[..., :2]) if name == "linear" else (lambda a: cosine_map(a[..., :2]))


def branin_problem(name: Transformation = "linear", noise_std: float = 0.1, count: int = 24) -> IndirectProblem:
    """Section 7: Branin seen through ``x = h(a) + tau * noise``, clipped to the box, on a grid of actions."""
    grid = unit_grid(count)
    return IndirectProblem(branin, grid, grid, ClippedGaussian(transformation(name), TAU, UNIT), noise_std)


@dataclass(frozen=True)
class Hyperparameters:
    """What the learners of one experiment share.

    Args:
        lengthscale: of the kernel of f.
        action_lengthscale: of the kernel on actions that the embedding uses.
        regularization: ``lambda`` of the embedding.
        baseline_lengthscale: of the kernel of g on actions that the baselines use.
    """

    lengthscale: float
    action_lengthscale: float
    regularization: float
    baseline_lengthscale: float


def fit_hyperparameters(problem: IndirectProblem, count: int = 500, pilot: int = 40) -> Hyperparameters:
    """Lengthscales from a pilot study, the same for all policies and replicates.

    The embedding's are chosen by leave-one-out error on a ``D1`` of ``count`` pairs, those of f and g by the marginal
    likelihood of ``pilot`` noisy observations of random actions. Seeds are of the pilot alone.
    """
    seeds = [10**6]
    x, a = (part[0] for part in draw_data(problem, count, seeds, UNIT))
    action_lengthscale, regularization = cross_validate(
        x, a, rbf_kernel(0.2), (0.05, 0.1, 0.2, 0.4, 0.8), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    )
    generators = ReplicateGenerators(seeds, stream=5).generators
    chosen = torch.randint(problem.n, (pilot,), generator=generators[0])
    noise = problem.noise[chosen]
    z = problem.table[chosen] + noise * standard_normal(generators, (pilot,), problem.table)[0]
    weights = embedding_weights(a, rbf_kernel(action_lengthscale), regularization, problem.actions[chosen])
    averages, points = Measure(x.expand(pilot, -1, -1), weights), Measure.dirac(problem.actions[chosen])
    grid = torch.linspace(0.08, 0.6, 14).tolist()

    def best(measure: Measure) -> float:
        def likelihood(length: float) -> float:
            return float(GaussianProcess(rbf_kernel(length), noise).condition(measure, z).log_marginal_likelihood)

        return max(grid, key=likelihood)

    return Hyperparameters(best(averages), action_lengthscale, regularization, best(points))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of one experiment.

    Args:
        problems: by policy; they share f.
        histories: by policy.
    """

    problems: Mapping[str, IndirectProblem]
    histories: Mapping[str, History]

    def regrets(self, kind: Literal["simple", "instant", "recommendation"]) -> dict[str, Tensor]:
        """One notion of regret of each policy, ``replicates x T``."""
        notion = {"simple": simple_regret, "instant": instant_regret, "recommendation": recommendation_regret}[kind]
        return {name: notion(history, self.problems[name]) for name, history in self.histories.items()}


def figure_1(
    name: Transformation,
    scale: Scale = "paper",
    count: int = 300,
    steps: int = 100,
    initial: int = 5,
    noise_std: float = 0.1,
    only: Sequence[str] | None = None,
    hyperparameters: Hyperparameters | None = None,
) -> Comparison:
    """Fixed resolution, fixed noise ([Zhang2025]_, Figure 1).

    Args:
        name: of the transformation.
        scale: 30 or 10 replicates; each draws its own ``D1``.
        count: size ``N`` of ``D1``.
        steps: rounds, the initial design included.
        initial: random actions that all policies start with.
        noise_std: of the observations, in standard deviations of f.
        only: which policies. Default all.
        hyperparameters: default ``fit_hyperparameters``.
    """
    problem, seeds = branin_problem(name, noise_std), range(replicates(scale))
    fit = hyperparameters or fit_hyperparameters(problem, max(count, 50))
    x, a = draw_data(problem, count, seeds, UNIT)
    prior = estimated_prior(problem, x, a, fit.lengthscale, fit.action_lengthscale, fit.regularization)
    known = known_prior(problem, fit.lengthscale)
    on_actions = GaussianProcess(rbf_kernel(fit.baseline_lengthscale), noise_std)
    policies: dict[str, IndirectPolicy] = {
        "CMES": CMES(problem, prior, initial),
        "MES on g": ActionPolicy(problem, prior, on_actions, "mes", initial),
        "UCB on g": ActionPolicy(problem, prior, on_actions, "ucb", initial),
        "EI on g": ActionPolicy(problem, prior, on_actions, "ei", initial),
        "random": RandomQueries(problem, prior, initial),
        "CMES, p known": CMES(problem, known, initial),
        "MES on f, direct": DirectMES(problem, known),
    }
    if only is not None and not set(only) <= set(policies):
        raise ValueError(f"only must name some of {list(policies)}, got {list(only)}")
    chosen = {label: policy for label, policy in policies.items() if only is None or label in only}
    runs = {label: simulate(problem, policy, steps, seeds) for label, policy in chosen.items()}
    return Comparison(dict.fromkeys(runs, problem), runs)


def figure_2(
    name: Transformation, scale: Scale = "paper", budget: float = 60.0, levels: int = 6, windows: bool = False
) -> Comparison:
    """Cost and noise by resolution under a budget ([Zhang2025]_, Figure 2).

    Actions are the nodes of a tree with four children each. A node of level ``l`` costs ``(l + 1) / 2``, and its noise
    has standard deviation ``0.5 / cost``. CMETS may ask its active nodes; the others ask the deepest level, a random
    node first, and CMES also all nodes. ``p(x | a)`` is known.

    Args:
        name: of the transformation.
        scale: 30 or 10 replicates.
        budget: total cost.
        levels: ``l_max``.
        windows: whether a node also averages over a wider window the higher it stands (``tau`` half its radius), as in
            section 5.2. Default: the same ``tau`` for all, as in section 7.
    """
    nodes = Nodes.complete(UNIT, levels)
    spread: float | Callable[[Tensor], Tensor] = (lambda a: a[..., 2] / 2) if windows else TAU
    conditional = ClippedGaussian(transformation(name), spread, UNIT)
    cost, deepest = nodes.cost(), nodes.level == levels
    grid = unit_grid(24)
    tree = IndirectProblem(branin, grid, nodes.actions, conditional, 0.5 / cost, cost)
    fine = IndirectProblem(branin, grid, nodes.actions[deepest], conditional, 0.5 / cost[deepest], cost[deepest])
    fit = fit_hyperparameters(branin_problem(name))
    prior, prior_fine = known_prior(tree, fit.lengthscale), known_prior(fine, fit.lengthscale)
    on_actions = GaussianProcess(rbf_kernel(fit.baseline_lengthscale), 0.1)
    policies: dict[str, tuple[IndirectProblem, IndirectPolicy]] = {
        "CMETS": (tree, CMETS(tree, nodes, prior, budget)),
        "CMES, all nodes": (tree, CMES(tree, prior, 0, budget)),
        "CMES": (fine, CMES(fine, prior_fine, 1, budget)),
        "MES on g": (fine, ActionPolicy(fine, prior_fine, on_actions, "mes", 1, budget)),
        "UCB on g": (fine, ActionPolicy(fine, prior_fine, on_actions, "ucb", 1, budget)),
        "EI on g": (fine, ActionPolicy(fine, prior_fine, on_actions, "ei", 1, budget)),
        "random": (fine, RandomQueries(fine, prior_fine, 1, budget)),
    }
    seeds, runs = range(replicates(scale)), {}
    for label, (problem, policy) in policies.items():
        steps = int(budget / float(problem.costs[: problem.n].amin() if problem is fine else 1.0))
        runs[label] = simulate(problem, policy, steps, seeds)
    return Comparison({label: problem for label, (problem, _) in policies.items()}, runs)


def two_peaks(x: Tensor) -> Tensor:
    """A function whose average over a window of standard deviation 0.3 peaks elsewhere (after Figure 3)."""
    u = x[..., 0]
    return (-0.5 * ((u - 0.5) / 0.12).square()).exp() + 0.8 * (-0.5 * ((u - 2.0) / 0.5).square()).exp()


def bandit_problem(count: int = 60, arms: int = 12, noise_std: float = 0.1, seed: int = 0) -> IndirectProblem:
    """Agents who pull arms by policies of their own ([Zhang2025]_, section 3.1).

    Arm ``i`` stands at ``i / (arms - 1)``, and its reward is a draw of an RBF prior of lengthscale 0.15. Agent ``a`` in
    [0, 1] prefers arms near ``a``: a softmax of ``-20 (x - a)^2`` with some preference for the middle.

    Args:
        count: how many agents may be asked, equally spaced.
        arms: ``K``.
        noise_std: of an agent's average.
        seed: of the rewards.
    """
    positions = torch.linspace(0, 1, arms, dtype=torch.float64)[:, None]
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    reward = prior_samples(rbf_kernel(0.15), bounds, [seed])

    def probabilities(a: Tensor) -> Tensor:
        logits = -20 * (positions[:, 0] - a).square() - 2 * (positions[:, 0] - 0.5).square()
        return logits.softmax(-1)

    agents = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    conditional = FinitePolicies(probabilities, positions)
    return IndirectProblem(
        lambda x: reward(x.reshape(1, -1, 1)).reshape(x.shape[:-1]), positions, agents, conditional, noise_std, order=1
    )


@dataclass(frozen=True)
class Districts:
    """Administrative districts: the cells of random centers in the unit square, each an even average of its pixels.

    Args:
        centers: ``n x 2``.
        pixels: ``m x 2``.
    """

    centers: Tensor
    pixels: Tensor

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The pixels nearest to each center, evenly weighted; a center of an empty cell counts its nearest pixel."""
        owner = torch.cdist(self.pixels, self.centers).argmin(-1)
        mine = (owner == torch.cdist(actions, self.centers).argmin(-1).unsqueeze(-1)).to(actions)
        nearest = torch.cdist(actions, self.pixels).argmin(-1)
        alone = torch.nn.functional.one_hot(nearest, len(self.pixels)).to(actions)
        mine = torch.where(mine.sum(-1, keepdim=True) > 0, mine, alone)
        weights = mine / mine.sum(-1, keepdim=True)
        return Measure(self.pixels.expand(*weights.shape, 2), weights)

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One pixel of each district."""
        weights = self.measure(actions).weights.cpu()
        drawn = [w.multinomial(1, generator=g).squeeze(-1) for w, g in zip(weights, generators, strict=True)]
        return self.pixels[torch.stack(drawn).to(self.pixels.device)]


def incidence(x: Tensor) -> Tensor:
    """A simulated incidence rate on the unit square: a broad slope, a wide focus and a small hot one."""
    wide = 0.8 * (-((x - 0.3).square().sum(-1)) / (2 * 0.18**2)).exp()
    hot = 1.2 * (-((x - torch.tensor([0.75, 0.65]).to(x)).square().sum(-1)) / (2 * 0.07**2)).exp()
    return wide + hot + 0.3 * x[..., 0]


def district_problem(count: int = 60, noise_std: float = 0.05, seed: int = 0) -> IndirectProblem:
    """Find the pixel of the highest incidence from surveys of whole districts: an application of our own."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    pixels = unit_grid(32)
    return IndirectProblem(incidence, pixels, centers, Districts(centers, pixels), noise_std)


def application(problem: IndirectProblem, lengthscale: float, scale: Scale = "paper", steps: int = 40) -> Comparison:
    """CMES, random queries and a usual policy on g, with known ``p(x | a)``.

    Args:
        problem: the bandit or the districts.
        lengthscale: of the kernel of f; actions have the same.
        scale: 30 or 10 replicates of the noise.
        steps: rounds.
    """
    prior, seeds = known_prior(problem, lengthscale), range(replicates(scale))
    on_actions = GaussianProcess(rbf_kernel(lengthscale), float(problem.noise[0]))
    policies: dict[str, IndirectPolicy] = {
        "CMES": CMES(problem, prior),
        "MES on g": ActionPolicy(problem, prior, on_actions, "mes"),
        "UCB on g": ActionPolicy(problem, prior, on_actions, "ucb"),
        "random": RandomQueries(problem, prior),
    }
    runs = {label: simulate(problem, policy, steps, seeds) for label, policy in policies.items()}
    return Comparison(dict.fromkeys(runs, problem), runs)


def schedules(scale: Scale = "paper", steps: int = 100, lengthscale: float = 0.15) -> dict[str, tuple[Tensor, Tensor]]:
    """Theorem 2: GP-UCB with blurred queries, on draws of a prior of one variable.

    Args:
        scale: 30 or 10 replicates.
        steps: rounds.
        lengthscale: of the prior, of variance 1.

    Returns:
        For each schedule of ``tau_t``, ``f* - g_t(a_t)`` (``replicates x T``) and the cost so far (``T``); a query
        costs ``1 / tau_t`` in units of the first.
    """
    seeds = range(replicates(scale))
    wide = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    f = prior_samples(rbf_kernel(lengthscale), wide, seeds, grid=257)
    points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    problem = BlurredProblem(f, points)
    best = problem.values(len(seeds)).amax(-1, keepdim=True)
    start = lengthscale / 2
    rates: dict[str, Callable[[int], float]] = {
        "constant": lambda t: start,
        "slower: t^-1/8": lambda t: start * t**-0.125,
        "Theorem 2: t^-1/4 (log t)^1/4": lambda t: start * t**-0.25 * max(1.0, math.log(t)) ** 0.25,
        "faster: t^-1": lambda t: start / t,
    }
    result = {}
    for label, tau in rates.items():
        policy = ScheduledUCB(problem, lengthscale, tau, lambda t: math.sqrt(2 * math.log(200 * t**2 * 1.65 / 0.1)))
        history = simulate(problem, policy, steps, seeds)
        cost = torch.tensor([start / tau(t) for t in range(1, steps + 1)]).cumsum(0)
        result[label] = best - history["value"], cost
    return result


def plot_comparison(comparison: Comparison, by_cost: float | None = None) -> Figure:
    """Simple and instant regret of each policy, mean and standard error over replicates.

    Args:
        comparison: what to draw.
        by_cost: the budget, if the horizontal axis is the cost. Default: the round.
    """
    figure, axes = figures.subplots(1, 2, figsize=(10, 3.8))
    for axis, kind in zip(axes.flat, ("simple", "instant"), strict=True):
        curves = comparison.regrets(kind)  # type: ignore[arg-type]
        for name, dash in zip(curves, ["-", "--", "-", "-", ":", "-.", "-"], strict=False):
            values, x = curves[name], None
            if by_cost is not None:
                history = comparison.histories[name]
                budgets = torch.linspace(float(history["cost"][:, 0].max()), by_cost, 60)
                values, x = at_cost(values, history, budgets), budgets.tolist()
            figures.plot_replicates(axis, values.clamp_min(1e-4), name, x, spread="standard error", linestyle=dash)
        axis.set(xlabel="round" if by_cost is None else "cost", ylabel=f"{kind} regret (sd of f)", yscale="log")
    axes[0, 0].legend(fontsize="x-small")
    return figure


def plot_square(axes: Axes, values: Tensor, title: str) -> None:
    """A function on the square grid of cell centers as colors."""
    count = math.isqrt(len(values))
    image = axes.imshow(np.asarray(values.reshape(count, count).T), origin="lower", extent=(0, 1, 0, 1), cmap="cividis")
    axes.set(title=title)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes)


def tree_steps(
    problem: IndirectProblem, policy: CMETS, steps: int, seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """Nodes asked, and posterior means of g on the leaves and of f, round by round, for ``figures.slider``.

    Args:
        problem: in two dimensions.
        policy: to run for one replicate.
        steps: how many rounds.
        seed: of the replicate.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    noise, choices = ReplicateGenerators([seed], 0), ReplicateGenerators([seed], 1)
    with torch.no_grad():
        policy.start(choices.at(0))
        for step in range(1, steps + 1):
            choices.at(step)
            query = policy.ask()
            observation = problem.observe(query, noise.at(step))
            policy.tell(query, observation)
            x, y, radius = policy.nodes.actions[query[0]].tolist()
            level, best = int(policy.nodes.level[query[0]]), problem.points[policy.recommend()[0] - problem.n].tolist()
            figure, axes = figures.subplots(1, 2, figsize=(9, 3.9))
            for axis, title in zip(axes.flat, ("g on the leaves, posterior mean", "f, posterior mean"), strict=True):
                axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="x1", ylabel="x2", aspect="equal")
                axis.grid(False)
                axis.set_title(title)
            leaves = policy.leaf[0].nonzero().flatten()
            means = policy.mean[0, leaves]
            scale = {"vmin": -2.0, "vmax": 1.2}
            axes[0, 0].set_facecolor("0.9")
            for leaf, mean in zip(leaves.tolist(), means.tolist(), strict=True):
                cx, cy, r = policy.nodes.actions[leaf].tolist()
                axes[0, 0].imshow([[mean]], extent=(cx - r, cx + r, cy - r, cy + r), cmap="cividis", **scale)
            corner = (x - radius, y - radius)
            axes[0, 0].add_patch(_rectangle(corner, 2 * radius))
            axes[0, 0].set(xlim=(0, 1), ylim=(0, 1))
            count = math.isqrt(len(problem.points))
            field = np.asarray(policy.mean[0, problem.n :].reshape(count, count).T)
            image = axes[0, 1].imshow(field, origin="lower", extent=(0, 1, 0, 1), cmap="cividis", **scale)
            axes[0, 1].plot(*best, "*", color=figures.COLORS[1], markersize=13, label="recommended")
            axes[0, 1].legend(fontsize="small", loc="upper right")
            figure.colorbar(image, ax=axes, label="sd of f")
            frames.append(figure)
            labels.append(f"round {step}: level {level} at ({x:.2f}, {y:.2f})")
            alts.append(
                f"Round {step}. The node of level {level} centered at ({x:.2f}, {y:.2f}) is asked and "
                f"{float(observation[0]):.2f} is seen. The tree has {len(leaves)} leaves; "
                f"the point ({best[0]:.2f}, {best[1]:.2f}) is recommended."
            )
    return frames, labels, alts


def _rectangle(corner: tuple[float, float], side: float):  # type: ignore[no-untyped-def]
    from matplotlib.patches import Rectangle

    return Rectangle(corner, side, side, fill=False, edgecolor=figures.COLORS[1], linewidth=3)
