"""Two doubts at once: contexts whose distribution nobody tells, and a prior that is one of several.

Elimination of candidate priors inside SBO-KDE, on a grid of decisions and contexts, written out so that it can be read
from top to bottom. No paper has this combination.

    python -m book run synthesis.combined --scale paper --publish    # under a minute
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from book.files import load_table
from book.ledger import Claim, RegretLedger
from book.verdict import paired
from cbo_lib.search import argmax_finite

#: Decisions and contexts: each is one of so many equally spaced values of [0, 1].
SIDE = 20
NOISE, FAILURE, HORIZON = 0.1, 0.1, 60
RESULTS = Path(__file__).parent / "results" / "combined.json"
#: What a policy makes of the scores ``runs x U x SIDE`` of (candidate, decision): the scores that it maximizes.
Rule = Callable[[Tensor, "State"], Tensor]


@dataclass(frozen=True, eq=False)
class Family:
    """Candidate priors on the grid: names, means ``U x n`` and covariances ``U x n x n`` with ``n = SIDE^2``."""

    names: tuple[str, ...]
    means: Tensor
    kernels: Tensor


@dataclass(eq=False)
class State:
    """What is known of the candidates: who is left, and the log likelihood of the data, each ``runs x U``."""

    alive: Tensor
    likelihood: Tensor
    truth: Tensor


@dataclass(frozen=True, eq=False)
class World:
    """What is true: ``f`` is ``runs x SIDE x SIDE``, the law of the contexts ``runs x SIDE``, the rest ``runs x T``."""

    f: Tensor
    law: Tensor
    contexts: Tensor
    noise: Tensor
    truth: Tensor


def grid() -> Tensor:
    """The values of a decision or a context, ``SIDE``."""
    return (torch.arange(SIDE, dtype=torch.float64) + 0.5) / SIDE


def _rbf(lengthscale: float) -> Tensor:
    points = torch.cartesian_prod(grid(), grid())
    return torch.exp(-torch.cdist(points, points).square() / (2 * lengthscale**2))


def lengthscales(values: tuple[float, ...] = (0.1, 0.25, 0.6)) -> Family:
    """Candidates that differ in the lengthscale."""
    kernels = torch.stack([_rbf(value) for value in values])
    names = tuple(f"lengthscale {value}" for value in values)
    return Family(names, torch.zeros(len(values), SIDE**2, dtype=torch.float64), kernels)


def hills(height: float = 3.0, extra: float = 2.0) -> Family:
    """Candidates that differ in which of five hills of decisions is higher than the others."""
    places = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    bumps = torch.exp(-((grid() - places[:, None]) ** 2) / (2 * 0.04**2))  # 5 SIDE
    means = torch.stack([(height * bumps.sum(0) + extra * bump).repeat_interleave(SIDE) for bump in bumps])
    return Family(tuple(f"hill at {place:.1f}" for place in places.tolist()), means, _rbf(0.25).expand(5, -1, -1))


def worlds(family: Family, truth: Tensor, seed: int) -> World:
    """Draws: f from its true candidate, and contexts from a bell around a random center."""
    generator, runs = torch.Generator().manual_seed(seed), len(truth)
    roots = torch.linalg.cholesky(family.kernels + 1e-6 * torch.eye(SIDE**2).double())
    z = torch.randn(runs, SIDE**2, 1, generator=generator, dtype=torch.float64)
    f = family.means[truth] + (roots[truth] @ z)[..., 0]
    center = 0.2 + 0.6 * torch.rand(runs, 1, generator=generator, dtype=torch.float64)
    law = torch.exp(-((grid() - center) ** 2) / (2 * 0.15**2))
    law = law / law.sum(1, keepdim=True)
    contexts = torch.multinomial(law.cpu(), HORIZON, replacement=True, generator=generator).to(law.device)
    noise = NOISE * torch.randn(runs, HORIZON, generator=generator, dtype=torch.float64)
    return World(f.view(runs, SIDE, SIDE), law, contexts, noise, truth)


def density(seen: Tensor) -> Tensor:
    """The kernel density estimate on the grid from contexts ``runs x t``, with Silverman's bandwidth."""
    if seen.shape[1] == 0:
        return torch.full((len(seen), SIDE), 1 / SIDE, dtype=torch.float64)
    values = grid()[seen]
    spread = values.std(1, correction=0).clamp_min(0.05)
    bandwidth = (1.06 * spread * seen.shape[1] ** -0.2)[:, None, None]
    bumps = torch.exp(-((grid()[None, :, None] - values[:, None, :]) ** 2) / (2 * bandwidth**2)).sum(-1)
    return bumps / bumps.sum(1, keepdim=True)


def theory(t: int) -> float:
    """The multiplier under which all bands hold with probability ``1 - FAILURE / 2``."""
    return math.sqrt(2 * math.log(SIDE**2 * math.pi**2 * t**2 / (3 * FAILURE)))


def two(t: int) -> float:
    """The multiplier that practice uses."""
    return 2.0


def threshold(candidates: int, t: int) -> float:
    """The threshold of sums of noise, kept by all of them with probability ``1 - FAILURE / 2``."""
    return 2 * NOISE**2 * math.log(candidates * math.pi**2 * t**2 / (3 * FAILURE))


def _only(scores: Tensor, which: Tensor) -> Tensor:
    """Scores of one candidate a run; of the others minus infinity."""
    chosen = torch.nn.functional.one_hot(which, scores.shape[1]).bool()
    return scores.masked_fill(~chosen[..., None], -torch.inf)


def eliminate(scores: Tensor, state: State) -> Tensor:
    """Optimism over the candidates that are left."""
    return scores.masked_fill(~state.alive[..., None], -torch.inf)


def likeliest(scores: Tensor, state: State) -> Tensor:
    """The candidate under which the data are most likely."""
    return _only(scores, argmax_finite(state.likelihood))


def averaged(scores: Tensor, state: State) -> Tensor:
    """The average of all candidates' scores, weighted by how likely they are; entered in the place of the first."""
    mean = (torch.softmax(state.likelihood, 1)[..., None] * scores).sum(1, keepdim=True)
    return torch.cat([mean, torch.full_like(scores[:, 1:], -torch.inf)], 1)


def told(scores: Tensor, state: State) -> Tensor:
    """SBO-KDE that is told the true candidate."""
    return _only(scores, state.truth)


def play(family: Family, world: World, rule: Rule, sqrt_beta: Callable[[int], float]) -> dict[str, Tensor]:
    """One policy in all runs at once.

    Returns:
        By name ``runs x T``: the regret, the six terms of its account (see ``ledger``), the responsible candidate
        and its decision, the half width of its band where it played, whether all bands of the truth held, whether the
        candidate was dropped, whether the truth was left.
    """
    f, law, truth = world.f, world.law, world.truth
    runs, U, row = len(f), len(family.names), torch.arange(len(f))
    mean, variance = family.means.expand(runs, -1, -1), family.kernels.diagonal(dim1=1, dim2=2).expand(runs, -1, -1)
    rows = torch.zeros(runs, U, HORIZON, SIDE**2, dtype=torch.float64)
    state = State(torch.ones(runs, U, dtype=torch.bool), torch.zeros(runs, U).double(), truth)
    errors, allowed, count = (torch.zeros(runs, U, dtype=torch.float64) for _ in range(3))
    log: dict[str, list[Tensor]] = {}

    def under(p: Tensor, values: Tensor) -> Tensor:  # an average over contexts
        return (p * values).sum(-1)

    worth = under(law[:, None, :], f)
    best = worth.argmax(1)
    for t in range(HORIZON):
        b, estimate = sqrt_beta(t + 1), density(world.contexts[:, :t])
        width = b * variance.clamp_min(0).sqrt()
        ucb = (mean + width).view(runs, U, SIDE, SIDE)
        flat = argmax_finite(rule(under(estimate[:, None, None, :], ucb), state).flatten(1))
        u, x, c = flat // SIDE, flat % SIDE, world.contexts[:, t]
        i, f_star, f_x, g = x * SIDE + c, f[row, best], f[row, x], ucb[row, u, x]
        y = f_x[row, c] + world.noise[:, t]
        off = (f.flatten(1) - mean[row, truth]).abs()
        entry = {
            "regret": worth[row, best] - worth[row, x],
            "density at x*": under(law - estimate, f_star),
            "optimism": under(estimate, f_star) - under(estimate, g),
            "density at x_t": under(estimate - law, g),
            "luck of the bound": under(law, g) - g[row, c],
            "width": g[row, c] - f_x[row, c],
            "luck of f": f_x[row, c] - under(law, f_x),
            "bands": (off <= width[row, truth] + 1e-9).all(1),
            "candidate": u,
            "decision": x,
        }
        errors[row, u] += y - mean[row, u, i]
        allowed[row, u] += width[row, u, i]
        count[row, u] += 1
        state.alive = state.alive & (errors.abs() <= (threshold(U, t + 1) * count).sqrt() + allowed)
        entry |= {
            "half width": width[row, u, i],
            "dropped": ~state.alive[row, u],
            "truth left": state.alive[row, truth],
        }
        for name, value in entry.items():
            log.setdefault(name, []).append(value)
        # Conditioning in one point, for every candidate: one more row of the whitened covariances.
        at = i[:, None, None].expand(runs, U, 1)
        past = rows[:, :, :t].gather(3, at[..., None].expand(runs, U, t, 1))
        covariance = family.kernels.transpose(0, 1)[i] - (past * rows[:, :, :t]).sum(2)
        scale = (covariance.gather(2, at) + NOISE**2).sqrt()
        surprise = (y[:, None, None] - mean.gather(2, at)) / scale
        state.likelihood = state.likelihood - (0.5 * surprise**2 + scale.log())[..., 0]
        rows[:, :, t] = covariance / scale
        mean, variance = mean + rows[:, :, t] * surprise, variance - rows[:, :, t] ** 2
    return {name: torch.stack(values, 1) for name, values in log.items()}


#: The terms of the account, in the order of the chain.
TERMS = ("density at x*", "optimism", "density at x_t", "luck of the bound", "width", "luck of f")


def ledger(played: dict[str, Tensor], candidates: int) -> RegretLedger:
    """The account of a run of ``eliminate``: six terms that add up to the regret, and the claims about them."""
    kept = (~played["dropped"]).double()
    noise = torch.tensor([2 * math.sqrt(candidates * threshold(candidates, t) * t) for t in range(1, HORIZON + 1)])
    good = (played["bands"].cumprod(1) * played["truth left"].cumprod(1)).bool()
    zero = torch.zeros_like(played["regret"])
    claims = {
        "optimism": Claim(played["optimism"], zero, "the truth is left and its bands hold", 1.0, good),
        "widths": Claim(
            (kept * played["width"]).cumsum(1),
            noise + 2 * (kept * played["half width"]).cumsum(1),
            "sums of noise are small",
            1 - FAILURE,
        ),
        "truth is left": Claim(1 - played["truth left"].double(), zero, "survival", 1 - FAILURE),
    }
    terms = {name: played[name].cumsum(1) for name in TERMS}
    return RegretLedger(played["regret"].cumsum(1), terms, {}, claims, identity=True)


def cases(runs: int) -> dict[str, tuple[Family, Tensor]]:
    """The families and true candidates of the map."""
    scales, five = lengthscales(), hills()
    found = {f"truth: {name}": (scales, torch.full((runs,), u)) for u, name in enumerate(scales.names)}
    return {**found, "truth: one of five hills": (five, torch.arange(runs) % 5)}


def study(case: str, runs: int = 100) -> list[dict[str, Any]]:
    """A case under both multipliers: regret averaged over rounds, and elimination against each rival."""
    table, (family, truth) = [], cases(runs)[case]
    world = worlds(family, truth, 0)
    for label, sqrt_beta in {"2": two, "theory": theory}.items():
        rules = {"eliminate": eliminate, "likeliest": likeliest, "averaged": averaged, "told": told}
        games = {name: play(family, world, rule, sqrt_beta) for name, rule in rules.items()}
        regret = {name: game["regret"].mean(1) for name, game in games.items()}
        row: dict[str, Any] = {"case": case, "multiplier": label, "runs": runs}
        row["truth left"] = float(games["eliminate"]["truth left"][:, -1].double().mean())
        first = games["eliminate"]["candidate"] == 0
        row["first chosen"] = float(first.double().mean())
        row["first dropped"] = float((first & games["eliminate"]["dropped"]).any(1).double().mean())
        row["mean"] = {name: float(value.mean()) for name, value in regret.items()}
        row["worst"] = {name: float(value.max()) for name, value in regret.items()}
        late = {name: game["regret"][:, -10:].mean(1) for name, game in games.items()}
        row["stuck"] = {name: float((value > 0.5).double().mean()) for name, value in late.items()}
        for rival in ("likeliest", "averaged"):
            pair = paired(regret["eliminate"], regret[rival])
            row[rival] = {"mean": pair.mean, "low": pair.low, "high": pair.high, "median": pair.median}
            row[rival]["verdict"] = pair.verdict
        table.append(row)
    return table


def load() -> list[dict[str, Any]]:
    """The rows of the stored map."""
    return load_table(RESULTS).to_dict("records")
