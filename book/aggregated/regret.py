"""Regret under aggregated feedback: the notions of [Zhang2022] and the terms of its proof."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from book.aggregated.problem import CellProblem
from book.ledger import Claim, RegretLedger
from cbo_lib.aggregated.policies import GPOO
from cbo_lib.former.history import History
from cbo_lib.partition import PartitionTree, split_longest_side

# A level of the tree is laid out whole up to this many cells.
_LEVEL_LIMIT = 2**20
# The event xi_2 is checked on all nodes of the tree down to the deepest level that keeps their number below this.
_NODE_LIMIT = 4096


def aggregated_regret(history: History, problem: CellProblem) -> Tensor:
    """``f* - mean of f over the recommended cell``, ``replicates x steps`` ([Zhang2022], Definition 2).

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

    The simple regret ([Zhang2022], Definition 1) of the best representative point, which the aggregated regret
    bounds from above.
    """
    points = problem.space.representatives(history["recommendation"])
    return _optimum(problem) - problem.f(points).amax(-1)


def level_values(problem: CellProblem, depth: int) -> Tensor:
    """The value of every cell of a level in order of their index, ``K^depth``, or ``replicates x K^depth``.

    Raises:
        ValueError: if the level has more than 2^20 cells.
    """
    count = problem.space.branching**depth
    if count > _LEVEL_LIMIT:
        raise ValueError(f"depth must leave at most {_LEVEL_LIMIT} cells in the level, got {count} at depth {depth}")
    tree = problem.space.partition()
    level = tree.complete(depth)
    return problem.values(tree.boxes[level])


def lipschitz_constant(problem: CellProblem, delta: Tensor) -> float:
    """The largest ``L`` for which ``delta`` satisfies Assumption 3 of [Zhang2022] at every given depth.

    ``L`` times the largest L1 distance from a representative point to any point of its cell is at most ``delta(h)``.

    Raises:
        ValueError: if the problem has a split rule of its own and a level has more than 2^20 cells. (The equal split
            gives all cells of a level one shape, so one cell is enough.)
    """
    largest = math.inf
    tree = problem.space.partition()
    equal = problem.space.split is split_longest_side
    level = torch.zeros(1, dtype=torch.long, device=tree.depth.device)
    for width in delta.tolist():
        if len(level) > _LEVEL_LIMIT:
            raise ValueError(f"delta must reach no level of more than {_LEVEL_LIMIT} cells, got {len(delta)} levels")
        cells = tree.boxes[level].unsqueeze(1)  # m 1 2 d
        points = problem.space.representatives(tree.boxes[level])  # m S d
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
        policy: the GPOO policy of the run, with a prior; only its settings are used.

    Raises:
        ValueError: if the history holds no step, or the policy fits its prior.
    """
    regret = aggregated_regret(history, problem)
    depths = history["recommended_depth"]
    levels = torch.stack([level_values(problem, h).amax(-1) for h in range(int(depths.max()) + 1)], -1)
    best = levels.expand(history.replicates, -1).gather(-1, depths)
    terms = {"resolution": _optimum(problem) - best, "choice": best - history["recommended_value"]}
    claims: dict[str, Claim] = {}
    bounds: dict[str, Tensor] = {}
    if problem.space.feedback == "points":  # an average over other points is not below their maximum
        claims["simple <= aggregated"] = Claim(simple_regret(history, problem), regret, "Definition 2")
    if policy is not None:
        bounds, more = _gpoo_claims(history, problem, policy, regret)
        claims.update(more)
    return RegretLedger(regret, terms, bounds, claims, identity=True)


def _gpoo_claims(
    history: History, problem: CellProblem, policy: GPOO, regret: Tensor
) -> tuple[dict[str, Tensor], dict[str, Claim]]:
    if policy.prior is None:
        raise ValueError("policy must have a prior, what it fits differs from round to round")
    depth, expanded, noise = history["depth"], history["expanded"], policy.prior.noise_std
    delta = policy.delta_at(torch.arange(policy.max_depth + 2, device=depth.device)).to(regret)
    sqrt_beta = regret.new_tensor([policy.multiplier(t) for t in range(1, history.steps + 1)])
    held = _HeldAtEachStep(history, problem, policy, sqrt_beta)
    draws_bound = (sqrt_beta * noise).square() / delta[depth].square()
    may_expand = depth <= policy.max_depth
    draws = held.draws.to(regret)
    deepest = torch.where(expanded, depth, -1).cummax(-1).values
    three_delta = 3 * delta[deepest.clamp_min(0)]
    three_delta[deepest < 0] = torch.inf
    unknown = math.nan  # the paper's constant a is not given for any kernel
    promised = policy.follows_lemma_1 and noise == problem.noise_std
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
        "draws, derived": Claim(draws, 2 + draws_bound, "Lemma 4 as it follows", applies=may_expand),
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
        tree = problem.space.partition()
        level = 0
        while level < policy.max_depth and sum(problem.space.branching**h for h in range(level + 2)) <= _NODE_LIMIT:
            level += 1
        tree.complete(level)
        boxes, queries = tree.boxes, history["query"]
        depth, index = history["depth"], history["index"]
        # Nodes below the laid-out levels join as they were drawn.
        offsets = depth.new_tensor([sum(problem.space.branching**h for h in range(d)) for d in range(level + 1)])
        node = offsets[depth.clamp_max(level)] + index
        deep = depth > level
        if bool(deep.any()):
            distinct, inverse = torch.stack([depth[deep], index[deep]], -1).unique(dim=0, return_inverse=True)
            node[deep] = len(tree) + inverse
            extra = queries.new_zeros(len(distinct), *queries.shape[-2:])
            extra[inverse] = queries[deep]
            boxes = torch.cat([boxes, extra])
        in_xi_2 = torch.arange(len(boxes), device=depth.device) < len(tree)
        truth = problem.values(boxes)
        with torch.no_grad():
            assert policy.prior is not None
            posterior = policy.prior.posterior(history.replicates).track(problem.space.measure(boxes))
            counts = torch.zeros(history.replicates, len(boxes), dtype=torch.long, device=depth.device)
            rows = torch.arange(history.replicates, device=depth.device)
            interval, stds, draws = [], [], []
            for t in range(history.steps):
                std = posterior.variance.sqrt()
                ratio = (posterior.mean - truth).abs() / (sqrt_beta[t] * std)
                interval.append(ratio[:, in_xi_2].amax(-1))
                stds.append((std * counts.to(std).sqrt() / policy.prior.noise_std).amax(-1))
                posterior.observe(node[:, t], history["observation"][:, t])
                counts[rows, node[:, t]] += 1
                draws.append(counts[rows, node[:, t]])
        self.worst_interval = torch.stack(interval, -1)
        self.worst_std = torch.stack(stds, -1)
        self.draws = torch.stack(draws, -1)


def locate(tree: PartitionTree, x: Tensor, depth: int) -> Tensor:
    """The node of the given depth that contains each point ``m x d``; a shared face belongs to the upper cell."""
    if not bool(((x >= tree.boxes[0, 0]) & (x <= tree.boxes[0, 1])).all()):
        raise ValueError(f"x must lie in the root box, got {x.tolist()}")
    node = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for _ in range(depth):
        child = tree.children(node)
        holds = (tree.boxes[child, 0] <= x.unsqueeze(1)).all(-1) & (x.unsqueeze(1) <= tree.boxes[child, 1]).all(-1)
        last = holds.shape[1] - 1 - holds.flip(1).to(torch.uint8).argmax(1)
        node = child.gather(1, last.unsqueeze(1)).squeeze(1)
    return node


def _xi_1(history: History, problem: CellProblem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides of event xi_1 at every step: the drop of f, and ``L`` times the distance, ``R x T x S``.

    The leaf that holds the maximizer is found from the expansions before the step.
    """
    lipschitz = lipschitz_constant(problem, delta)
    tree = problem.space.partition()
    x = problem.maximizer.expand(history.replicates, -1)
    path = torch.stack([locate(tree, x, h) for h in range(len(delta))], 1)  # replicates depths: ancestors of x*
    depth, expanded = history["depth"], history["expanded"]
    within = depth.clamp_max(len(delta) - 1)
    on_path = expanded & (depth < len(delta)) & (tree.index[path].gather(1, within) == history["index"])
    leaf_depth = (on_path.long().cumsum(-1) - on_path.long()).clamp_max(len(delta) - 1)  # before the step
    points = problem.space.representatives(tree.boxes[path])  # replicates depths S d
    drop = _optimum(problem).unsqueeze(-1) - problem.f(points)
    distance = (points - x[:, None, None]).abs().sum(-1)
    at = leaf_depth.unsqueeze(-1).expand(-1, -1, points.shape[-2])
    return drop.gather(1, at), lipschitz * distance.gather(1, at)
