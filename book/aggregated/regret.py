"""Regret under aggregated feedback, and both sides of every step of its proof on runs of GPOO ([Zhang2022])."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from book.aggregated.census import MapSpace
from book.aggregated.problem import CellProblem
from book.ledger import Claim
from cbo_lib.partition import split_longest_side
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import History

#: A level of the tree is laid out whole up to this many cells.
_LEVEL_LIMIT = 2**20
#: The six quantities of Lemma 3, the largest first.
LINKS = ("average", "μ - width", "b - 3δ", "b* - 3δ", "average* + δ* - 3δ", "f* - 3δ")


def simple_regret(history: History, problem: CellProblem) -> Tensor:
    """``f* - max of f over the recommended cell's representative points``, ``replicates x rounds`` (Definition 1)."""
    points = problem.space.representatives(history["recommendation"])
    return problem.optimum.unsqueeze(-1) - problem.f(points).amax(-1)


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


def near_optimal_cells(problem: CellProblem, depth: int, slack: float) -> Tensor:
    """``|I_h|``: how many cells of a level have a value of at least ``f* - slack`` ([Zhang2022], Eq. 7)."""
    return (level_values(problem, depth) + slack >= problem.optimum.unsqueeze(-1)).sum(-1)


def lipschitz_constant(problem: CellProblem, delta: Tensor) -> float:
    """The steepest slope ``L`` that ``delta`` covers at every given depth, where cells are boxes of inputs.

    ``L`` times the largest L1 distance from a representative point to any point of its cell is at most ``delta(h)``
    ([Zhang2022], Assumption 3).

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


def address(problem: CellProblem) -> Tensor:
    """Where the maximizer of f lies in the root cell, ``d`` or ``replicates x d``: on a map, in its order of places."""
    if isinstance(problem.space, MapSpace):
        places = problem.space.points
        return ((problem.f_at(places).argmax(-1, keepdim=True) + 0.5) / len(places)).to(places)
    return problem.maximizer


@dataclass(frozen=True, eq=False)
class Walk:
    """Both sides of every step of the proof of Theorem 1, in every round of runs of GPOO.

    The leaf of the maximizer carries a star. All are ``replicates x rounds``, ``links`` with a last dimension.

    Args:
        depth: of the cell that was asked.
        draws: how often it had been asked, this round included.
        split: whether it was split after the answer.
        allowed: its ``delta``.
        variance: its posterior variance before the answer.
        prior_variance: ``kappa``, its prior variance.
        fall: ``f*`` minus the average over the leaf of the maximizer (Step 1).
        allowed_star: ``delta`` of that leaf.
        error: the largest ``|mean - average| / width`` over the leaves (Step 2).
        links: the six quantities of ``LINKS`` (Step 3), which need not descend unless the cell was split.
        late: sign (c) with the posterior after the answer: the b-value of the cell minus that of the starred leaf.
        deepest: depth of the deepest split node after the round, -1 without any.
        regret: of the recommended cell after the round.
        resolution: what the best cell of the recommended depth misses of ``f*``.
        allowed_deepest: ``delta(deepest)``, infinite without any.
    """

    depth: Tensor
    draws: Tensor
    split: Tensor
    allowed: Tensor
    variance: Tensor
    prior_variance: Tensor
    fall: Tensor
    allowed_star: Tensor
    error: Tensor
    links: Tensor
    late: Tensor
    deepest: Tensor
    regret: Tensor
    resolution: Tensor
    allowed_deepest: Tensor

    def claims(self, squared_multiplier: Tensor, noise_std: float, failure: float) -> dict[str, Claim]:
        """What each step says; ``squared_multiplier`` is ``beta`` of every round."""
        drawn, noise = self.draws.to(self.regret), noise_std**2
        few = squared_multiplier * noise / self.allowed.square()
        gap = self.links[..., -1] + 3 * self.allowed - self.links[..., 0]  # f* minus the average
        return {
            "Step 1": Claim(self.fall, self.allowed_star, "event xi_1", math.nan),
            "Step 2": Claim(self.error, torch.ones_like(self.error), "event xi_2", 1 - failure),
            "Step 3": Claim(gap, 3 * self.allowed, "Lemma 3", math.nan, self.split),
            "Proposition 2": Claim(self.variance, noise / (drawn - 1), "Proposition 2", applies=self.draws > 1),
            "Step 5": Claim(drawn, 2 + few, "Lemma 4, corrected"),
            "Lemma 4 as printed": Claim(drawn, few, "Lemma 4 as printed"),
            "theorem": Claim(self.regret, 3 * self.allowed_deepest, "Theorem 1", math.nan, self.deepest >= 0),
        }


@torch.no_grad()
def walk(problem: CellProblem, policy: Any, rounds: int, seeds: Sequence[int]) -> Walk:
    """Run GPOO as ``simulate`` does, and note both sides of every step."""
    batch, noise = policy.start(list(seeds)), ReplicateGenerators(seeds, stream=0)
    row = torch.arange(len(seeds))
    x_star, optimum = address(problem).expand(len(seeds), -1).unsqueeze(1), problem.optimum.expand(len(seeds))
    best_of_level: list[Tensor] = []
    kappa = batch.y.new_zeros(0)
    value = draws = batch.y.new_zeros(len(seeds), 0)
    found: dict[str, list[Tensor]] = {field.name: [] for field in fields(Walk)}
    for t in range(1, rounds + 1):
        query, (mean, std) = batch.ask(), batch.belief()
        tree, node, leaf, width, delta = batch.tree, batch.node, batch.leaf.clone(), batch.width, batch.allowed
        new = tree.boxes[len(kappa) :]
        if len(new):
            kappa = torch.cat([kappa, batch.prior.posterior().variance(problem.space.measure(new)).flatten()])
            value = torch.cat([value, problem.values(new).expand(len(seeds), -1)], 1)
            draws = torch.nn.functional.pad(draws, (0, len(new)))
        inside = ((tree.boxes[:, 0] <= x_star) & (x_star <= tree.boxes[:, 1])).all(-1)
        star = (leaf & inside).byte().argmax(-1)
        b, three = mean + width + delta, 3 * delta[row, node]
        draws[row, node] += 1

        batch.tell(query, problem.observe(query, noise.at(t)))

        after, spread = batch.belief()
        late = after + batch.sqrt_beta(t) * spread
        late = late[:, : len(kappa)] + delta
        best = batch.recommend()
        deepest = torch.where(batch.split, tree.depth, -1).amax(-1)
        level = deepest.clamp_min(0)
        while len(best_of_level) <= int(level.max()):
            best_of_level.append(level_values(problem, len(best_of_level)).amax(-1).expand(len(seeds)))
        shallow = batch.delta(torch.arange(len(best_of_level))).expand(len(seeds), -1)
        entries = {
            "depth": tree.depth[node],
            "draws": draws[row, node],
            "split": batch.split[row, node],
            "allowed": delta[row, node],
            "variance": std[row, node].square(),
            "prior_variance": kappa[node],
            "fall": optimum - value[row, star],
            "allowed_star": delta[row, star],
            "error": torch.where(leaf, (mean - value).abs() / width, 0.0).amax(-1),
            "links": torch.stack(
                [
                    value[row, node],
                    (mean - width)[row, node],
                    b[row, node] - three,
                    b[row, star] - three,
                    (value + delta)[row, star] - three,
                    optimum - three,
                ],
                -1,
            ),
            "late": late[row, node] - late[row, star],
            "deepest": deepest,
            "regret": optimum - problem.value(best.unsqueeze(1)).squeeze(1),
            "resolution": optimum - torch.stack(best_of_level, -1)[row, level],
            "allowed_deepest": torch.where(deepest < 0, torch.inf, shallow[row, level]),
        }
        for name, entry in entries.items():
            found[name].append(entry)
    return Walk(**{name: torch.stack(parts, 1) for name, parts in found.items()})


def most_draws(beta: float, delta: Tensor, noise_std: float, prior_variance: Tensor | None = None) -> list[float]:
    """``T(h)``: a node of depth h is drawn fewer times than this, or once, before it is split.

    ``2 + beta sigma^2 / delta^2``; with the prior variance ``kappa`` of the cells' averages ``sigma^2 / kappa`` less,
    not below 1.

    Args:
        beta: the squared multiplier at the end of the budget.
        delta: the smoothness function of every depth.
        noise_std: the noise.
        prior_variance: ``kappa`` of every depth. Default: infinite.
    """
    draws = 2 + beta * noise_std**2 / delta.square()
    if prior_variance is not None:
        draws = (draws - noise_std**2 / prior_variance).clamp_min(1.0)
    return draws.tolist()


def absorbed(draws: Sequence[float], counts: Sequence[float], branching: int) -> list[float]:
    """How many rounds a tree absorbs whose split nodes have depths below 0, below 1, and so on.

    ``[T(0), T(0) + K |I_0| T(1), ...]``, for ``T`` as ``draws`` and ``|I_h|`` as ``counts``.
    """
    levels = [branching * count * more for count, more in zip(counts, draws[1:], strict=False)]
    return list(accumulate([draws[0], *levels]))


def depth_reached(rounds: float, draws: Sequence[float], counts: Sequence[float], branching: int) -> int:
    """``h_N``: a node of this depth was split after ``rounds``; -1 if none need have been."""
    totals = absorbed(draws, counts, branching)
    return next((i for i, total in enumerate(totals) if total >= rounds), len(totals)) - 1


def printed_depth(
    rounds: int, beta: float, counts: Sequence[float], delta: Tensor, branching: int, noise_std: float
) -> int:
    """``h_N`` as printed: the smallest depth with ``N <= K sum_{h <= h_N} |I_h| beta sigma^2 / delta(h)^2`` (Eq. 8).

    It forgets two draws of every node, and counts the draws of a leaf with the ``delta`` of its parent.
    """
    of_parent = (beta * noise_std**2 / delta[: len(counts)].square()).tolist()
    return depth_reached(rounds, [0.0, *of_parent], counts, branching)
