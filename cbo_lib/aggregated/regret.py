"""Regret under aggregated feedback: the paper's notions, its proof's terms and its bounds.

.. [Zhang2022] M. Zhang, R. Tsuchida, C. S. Ong. Gaussian Process Bandits with Aggregated Feedback. AAAI 2022.
.. [Munos2014] R. Munos. From Bandits to Monte-Carlo Tree Search. Foundations and Trends in Machine Learning 7(1), 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbo_lib.aggregated.policies import GPOO
from cbo_lib.aggregated.problem import CellProblem
from cbo_lib.history import History
from cbo_lib.ledger import Claim, RegretLedger
from cbo_lib.measure import Function
from cbo_lib.partition import node_order, split_longest_side

# A level of the tree is laid out whole up to this many cells.
_LEVEL_LIMIT = 2**20
# The event xi_2 is checked on all nodes of the tree down to the deepest level that keeps their number below this.
_NODE_LIMIT = 4096


def aggregated_regret(history: History, problem: CellProblem) -> Tensor:
    """``f* - mean of f over the recommended cell``, ``replicates x steps`` ([Zhang2022]_, Definition 2).

    Raises:
        ValueError: if the history holds no step.
    """
    if history.steps == 0:
        raise ValueError("history must hold at least one step, got none")
    return _optimum(problem) - history["recommended_value"]


def _optimum(problem: CellProblem) -> Tensor:
    """``f*`` with a dimension for the steps, ``1`` or ``replicates x 1``."""
    return problem.optimum.unsqueeze(-1)


def simple_regret(history: History, problem: CellProblem) -> Tensor:
    """``f* - max of f over the recommended cell's representative points``, ``replicates x steps``.

    The simple regret ([Zhang2022]_, Definition 1) of the best representative point, which the aggregated regret
    bounds from above.
    """
    points = problem.representatives(history["recommendation"])
    return _optimum(problem) - problem.f(points).amax(-1)


def level_values(problem: CellProblem, depth: int) -> Tensor:
    """The value of every cell of a level in order of their index, ``K^depth``, or ``replicates x K^depth``.

    Raises:
        ValueError: if the level has more than 2^20 cells.
    """
    count = problem.branching**depth
    if count > _LEVEL_LIMIT:
        raise ValueError(f"depth must leave at most {_LEVEL_LIMIT} cells in the level, got {count} at depth {depth}")
    tree = problem.partition()
    level = tree.complete(depth)
    return problem.values(tree.boxes[level])


def near_optimal_cells(problem: CellProblem, depth: int, slack: float) -> Tensor:
    """``|I_h|``: how many cells of a level have a value of at least ``f* - slack`` ([Zhang2022]_, Eq. 7)."""
    return (level_values(problem, depth) + slack >= _optimum(problem)).sum(-1)


@dataclass(frozen=True)
class NearOptimality:
    """An estimate of the near-optimality dimension.

    Args:
        scales: the ``epsilon`` of each packing.
        packing: the largest number of disjoint balls of radius ``eta * epsilon`` centered in the epsilon-optimal set.
        dimension: the slope of ``log packing`` against ``log 1 / epsilon``, not below 0.
        constant: the smallest ``C`` with ``packing <= C epsilon^(-dimension)`` at every scale.
    """

    scales: Tensor
    packing: Tensor
    dimension: float
    constant: float


def near_optimality(
    f: Function, bounds: Tensor, optimum: float, eta: float, scales: Sequence[float], grid: int = 2**16
) -> NearOptimality:
    """Estimate the near-optimality dimension of a function of one variable ([Munos2014]_; [Zhang2022]_, Definition 4).

    In one dimension the best packing is greedy: from the left, take every epsilon-optimal grid point that is at least
    two radii from the last one taken.

    Args:
        f: the function, points ``... x 1`` to values ``...``.
        bounds: the interval, ``2 x 1``.
        optimum: the maximum of f.
        eta: radius of the balls per unit of epsilon, positive.
        scales: the values of epsilon, positive, at least two.
        grid: how many grid points.

    Raises:
        ValueError: if f has several variables or a scale is not positive.
    """
    if len(scales) < 2 or min(scales) <= 0 or eta <= 0:
        raise ValueError(f"scales must be two or more positive numbers and eta positive, got {list(scales)} and {eta}")
    if bounds.shape != (2, 1):
        raise ValueError(f"bounds must have shape (2, 1): one variable, got {tuple(bounds.shape)}")
    fractions = torch.linspace(0, 1, grid, dtype=bounds.dtype, device=bounds.device).unsqueeze(-1)
    x = torch.lerp(bounds[0], bounds[1], fractions)
    values = f(x)
    counts = []
    for scale in scales:
        inside = x[values >= optimum - scale, 0].cpu()
        count, position = 0, 0
        while position < len(inside):
            count += 1
            step = inside[position] + 2 * eta * scale * (1 - 1e-12)
            position = int(torch.searchsorted(inside, step))
        counts.append(max(count, 1))
    epsilon, packing = torch.tensor(scales, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    log_x, log_y = -epsilon.log(), packing.log()
    centered = log_x - log_x.mean()
    dimension = max(0.0, float((centered * log_y).sum() / centered.square().sum()))
    return NearOptimality(epsilon, packing, dimension, float((packing * epsilon**dimension).max()))


def theorem_depth(
    steps: int,
    beta: float,
    counts: Sequence[float],
    delta: Tensor,
    branching: int,
    noise_std: float,
    printed: bool = False,
) -> int:
    """``h_N``: the smallest depth whose split nodes can absorb ``N`` draws, so that a node of that depth was split.

    A node of depth ``h`` is drawn at most ``T(h) = 2 + beta sigma^2 / delta(h)^2`` times before it is split. Every node
    that was drawn is the root or a child of a split node, so ``N <= T(0) + K sum_{h <= h_N} |I_h| T(h + 1)``.

    The paper's Eq. 8 has ``K sum_h |I_h| beta sigma^2 / delta(h)^2`` in its place ([Zhang2022]_): it forgets the two
    draws, and counts the draws of a leaf with the ``delta`` of its parent, which is larger.

    Args:
        steps: the budget ``N``.
        beta: the squared multiplier ``beta_N`` at the end of the budget.
        counts: an upper bound of ``|I_h|`` for h = 0, ..., ``max_depth - 1``; deeper nodes may be drawn without limit.
        delta: the smoothness function at h = 0, ..., ``max_depth``, one level more than ``counts``.
        branching: ``K``.
        noise_std: the noise ``sigma``.
        printed: whether to use Eq. 8 as printed.

    Returns:
        ``h_N``; ``max_depth`` if the levels above it do not absorb ``N`` draws, and -1 if the root may have absorbed
        all of them, so that nothing need have been split.

    Raises:
        ValueError: if ``delta`` does not have one level more than ``counts``.
    """
    if len(delta) != len(counts) + 1:
        raise ValueError(f"delta must have one level more than counts, {len(counts) + 1}, got {len(delta)}")
    ratio = (beta * noise_std**2 / delta.square()).tolist()
    absorbed = 0.0 if printed else 2 + ratio[0]
    if absorbed >= steps:
        return -1
    for depth, count in enumerate(counts):
        absorbed += branching * count * (ratio[depth] if printed else 2 + ratio[depth + 1])
        if absorbed >= steps:
            return depth
    return len(counts)


def corollary_bound(
    steps: Tensor, beta: Tensor, rho: float, near: NearOptimality, branching: int, noise_std: float
) -> dict[str, Tensor]:
    """The regret bound for ``delta(h) = c rho^h``, whatever ``c`` ([Zhang2022]_, Corollary 1).

    It comes as printed and as Eq. 8 gives it (``derived``). Both start from Eq. 8, which itself needs a correction (see
    ``theorem_depth``). Summing Eq. 8 as a geometric series gives ``delta(h_N) <= (c2 beta_N / N)^(1/(d+2))`` with
    ``c2 = c1 rho^-(d+2)`` and the paper's ``c1 = 3^-d K C sigma^2 / (rho^-(d+2) - 1)``; Theorem 1 then gives three
    times that. The paper prints ``c1 (beta_N / N)^(1/(d+2))``.

    Args:
        steps: the budgets ``N``.
        beta: ``beta_N``, the same shape.
        rho: in (0, 1).
        near: the near-optimality dimension and constant.
        branching: ``K``.
        noise_std: the noise ``sigma``.
    """
    if not 0 < rho < 1:
        raise ValueError(f"rho must lie in (0, 1), got {rho}")
    power = near.dimension + 2
    c1 = 3**-near.dimension * branching * near.constant * noise_std**2 / (rho**-power - 1)
    ratio = beta / steps
    return {"printed": c1 * ratio ** (1 / power), "derived": 3 * (c1 * rho**-power * ratio) ** (1 / power)}


def lipschitz_constant(problem: CellProblem, delta: Tensor) -> float:
    """The largest ``L`` for which ``delta`` satisfies Assumption 3 of [Zhang2022]_ at every given depth.

    ``L`` times the largest L1 distance from a representative point to any point of its cell is at most ``delta(h)``.

    Raises:
        ValueError: if the problem has a split rule of its own and a level has more than 2^20 cells. (The equal split
            gives all cells of a level one shape, so one cell is enough.)
    """
    largest = math.inf
    tree = problem.partition()
    equal = problem.split is split_longest_side
    level = torch.zeros(1, dtype=torch.long, device=tree.depth.device)
    for width in delta.tolist():
        if len(level) > _LEVEL_LIMIT:
            raise ValueError(f"delta must reach no level of more than {_LEVEL_LIMIT} cells, got {len(delta)} levels")
        cells = tree.boxes[level].unsqueeze(1)  # m 1 2 d
        points = problem.representatives(tree.boxes[level])  # m S d
        distance = torch.maximum(points - cells[..., 0, :], cells[..., 1, :] - points).sum(-1).max()
        largest = min(largest, width / float(distance))
        children = tree.children(level)
        level = children[:, 0] if equal else children.flatten()
    return largest


def ledger(history: History, problem: CellProblem, policy: GPOO | None = None) -> RegretLedger:
    """The accounts of a run.

    The aggregated regret splits exactly into two nonnegative terms: ``resolution``, what the best cell of the
    recommended depth misses, and ``choice``, what recommending another cell of that depth loses.

    With the ``GPOO`` policy that made the history, every inequality of the paper's proof is evaluated at every step:
    the events xi_1 and xi_2, Proposition 2, Lemmas 3 and 4, Definition 2's ordering and ``3 delta`` of Theorem 1. The
    probability promised for xi_2 supposes that f is a draw of the policy's prior; it is NaN if the policy does not use
    Lemma 1's multiplier or the problem's noise. xi_2 is checked on the levels that hold at most 4096 nodes.

    Args:
        history: of a run on ``problem``.
        problem: the cells.
        policy: the GPOO policy of the run; only its settings are used.
    """
    regret = aggregated_regret(history, problem)
    depths = history["recommended_depth"]
    levels = torch.stack([level_values(problem, h).amax(-1) for h in range(int(depths.max()) + 1)], -1)
    best = levels.expand(history.replicates, -1).gather(-1, depths)
    terms = {"resolution": _optimum(problem) - best, "choice": best - history["recommended_value"]}
    claims: dict[str, Claim] = {}
    bounds: dict[str, Tensor] = {}
    if problem.feedback == "points":  # an average over other points is not below their maximum
        claims["simple <= aggregated"] = Claim(simple_regret(history, problem), regret, "Definition 2")
    if policy is not None:
        bounds, more = _gpoo_claims(history, problem, policy, regret)
        claims.update(more)
    return RegretLedger(regret, terms, bounds, claims, identity=True)


def _gpoo_claims(
    history: History, problem: CellProblem, policy: GPOO, regret: Tensor
) -> tuple[dict[str, Tensor], dict[str, Claim]]:
    depth, expanded = history["depth"], history["expanded"]
    delta = policy.delta(torch.arange(policy.max_depth + 2, device=depth.device)).to(regret)
    sqrt_beta = regret.new_tensor([policy.sqrt_beta(t) for t in range(1, history.steps + 1)])
    noise = policy.noise_std
    held = _HeldAtEachStep(history, problem, policy, sqrt_beta)
    draws_bound = (sqrt_beta * noise).square() / delta[depth].square()
    may_expand = depth <= policy.max_depth
    draws = held.draws.to(regret)
    deepest = torch.where(expanded, depth, -1).cummax(-1).values
    three_delta = 3 * delta[deepest.clamp_min(0)]
    three_delta[deepest < 0] = torch.inf
    unknown = math.nan  # the paper's constant a is not given for any kernel
    promised = policy.follows_lemma_1 and policy.noise_std == problem.noise_std
    last = 1 if policy.expand_after else 2
    claims = {
        "xi_1": Claim(*_xi_1(history, problem, delta), "event xi_1", unknown),
        "xi_2": Claim(
            held.worst_interval, torch.ones_like(regret), "event xi_2", 1 - policy.failure if promised else unknown
        ),
        "std <= sigma/sqrt(T)": Claim(held.worst_std, torch.ones_like(regret), "Proposition 2"),
        "expanded in I_h": Claim(
            _optimum(problem).expand_as(regret), history["value"] + 3 * delta[depth], "Lemma 3", unknown, expanded
        ),
        "draws, printed": Claim(draws, draws_bound, "Lemma 4 as printed", unknown, may_expand),
        # The draw before the last one did not expand the node, with a width made from the draws before it: two more,
        # for a multiplier that does not decrease.
        "draws, derived": Claim(draws, last + draws_bound, "Lemma 4 as it follows", applies=may_expand),
        "regret <= 3 delta": Claim(regret, three_delta, "Theorem 1, h of the tree", unknown, deepest >= 0),
        "recommended node was expanded": Claim(
            1 - history["recommended_was_expanded"].to(regret),
            torch.zeros_like(regret),
            "Algorithm 1, line 11",
            unknown,
        ),
    }
    return {"3 delta(deepest expanded)": three_delta}, claims


class _HeldAtEachStep:
    """The posterior of all nodes, replayed from the recorded observations.

    Attributes:
        worst_interval: the largest ``|mean - value| / width`` over all nodes before each step, ``replicates x steps``.
        worst_std: the largest ``std sqrt(T) / sigma`` over drawn nodes before each step.
        draws: how often the drawn node had been drawn, this step included.
    """

    def __init__(self, history: History, problem: CellProblem, policy: GPOO, sqrt_beta: Tensor) -> None:
        tree = problem.partition()
        level = 0
        while level < policy.max_depth and sum(problem.branching**h for h in range(level + 2)) <= _NODE_LIMIT:
            level += 1
        tree.complete(level)
        boxes, queries = tree.boxes, history["query"]
        depth, index = history["depth"], history["index"]
        # Nodes below the laid-out levels join as they were drawn.
        offsets = depth.new_tensor([sum(problem.branching**h for h in range(d)) for d in range(level + 1)])
        node = offsets[depth.clamp_max(level)] + index
        deep = depth > level
        if bool(deep.any()):
            distinct, inverse = node_order(depth[deep], index[deep]).unique(return_inverse=True)
            node[deep] = len(tree) + inverse
            extra = queries.new_zeros(len(distinct), *queries.shape[-2:])
            extra[inverse] = queries[deep]
            boxes = torch.cat([boxes, extra])
        in_xi_2 = torch.arange(len(boxes), device=depth.device) < len(tree)
        truth = problem.values(boxes)
        with torch.no_grad():
            posterior = policy.prior.posterior(history.replicates).track(problem.measure(boxes))
            counts = torch.zeros(history.replicates, len(boxes), dtype=torch.long, device=depth.device)
            rows = torch.arange(history.replicates, device=depth.device)
            interval, stds, draws = [], [], []
            for t in range(history.steps):
                std = posterior.variance.sqrt()
                ratio = (posterior.mean - truth).abs() / (sqrt_beta[t] * std)
                interval.append(ratio[:, in_xi_2].amax(-1))
                stds.append((std * counts.to(std).sqrt() / policy.noise_std).amax(-1))
                posterior.observe(node[:, t], history["observation"][:, t])
                counts[rows, node[:, t]] += 1
                draws.append(counts[rows, node[:, t]])
        self.worst_interval = torch.stack(interval, -1)
        self.worst_std = torch.stack(stds, -1)
        self.draws = torch.stack(draws, -1)


def _xi_1(history: History, problem: CellProblem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides of event xi_1 at every step: the drop of f, and ``L`` times the distance, ``R x T x S``.

    The leaf that holds the maximizer is found from the expansions before the step.
    """
    lipschitz = lipschitz_constant(problem, delta)
    tree = problem.partition()
    x = problem.maximizer.expand(history.replicates, -1)
    path = torch.stack([tree.locate(x, h) for h in range(len(delta))], 1)  # replicates depths: ancestors of x*
    depth, expanded = history["depth"], history["expanded"]
    within = depth.clamp_max(len(delta) - 1)
    on_path = expanded & (depth < len(delta)) & (tree.index[path].gather(1, within) == history["index"])
    leaf_depth = (on_path.long().cumsum(-1) - on_path.long()).clamp_max(len(delta) - 1)  # before the step
    points = problem.representatives(tree.boxes[path])  # replicates depths S d
    drop = _optimum(problem).unsqueeze(-1) - problem.f(points)
    distance = (points - x[:, None, None]).abs().sum(-1)
    at = leaf_depth.unsqueeze(-1).expand(-1, -1, points.shape[-2])
    return drop.gather(1, at), lipschitz * distance.gather(1, at)
