"""Regret under unknown contexts: the paper's notions, its proofs' terms and its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from book.contexts.problem import ContextProblem
from book.ledger import Claim, RegretLedger
from cbo_lib.contexts.density import GaussianKDE, silverman_bandwidth
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE
from cbo_lib.contexts.worst_case import tv_worst_case
from cbo_lib.former.history import History
from cbo_lib.former.partial import PartialPosterior
from cbo_lib.gp import Posterior
from cbo_lib.measure import Function, Measure


def instantaneous_regret(history: History, problem: ContextProblem) -> Tensor:
    """``E_p f(x*, c) - E_p f(x_t, c)``, ``replicates x T``, with the initial design ([Huang2024], Definition 1)."""
    return problem.optimum.unsqueeze(-1) - history["value"]


def cumulative_regret(history: History, problem: ContextProblem) -> Tensor:
    """``R_t`` ([Huang2024], Eq. 1), ``replicates x T``; the initial design counts, as in the paper's figures."""
    return instantaneous_regret(history, problem).cumsum(-1)


def cumulative_reward(history: History) -> Tensor:
    """The sum of the values seen, ``replicates x T``: what [Huang2024] reports for Complicated Hartmann."""
    return history["observation"].cumsum(-1)


def density_error(contexts: Tensor, problem: ContextProblem, counts: Sequence[int], margin: float = 1.0) -> Tensor:
    """``|p - p_hat|_1`` of the density estimate from the first ``n`` contexts.

    Both densities are those before clipping; in one dimension on the context box and ``margin`` of its side beyond each
    end, in more everywhere, see ``sampled_distance``. Clipping brings two distributions no further apart, so this
    bounds the distance of the clipped ones but for the tails.

    Args:
        contexts: ``replicates x T x Dc``.
        problem: which knows the true density.
        counts: the ``n``, from 2 to ``T``.
        margin: see above.

    Returns:
        ``replicates x len(counts)``.
    """
    if contexts.shape[-1] > 1:
        return torch.stack([sampled_distance(contexts[:, :n], problem) for n in counts], -1)
    low, high = problem.space.contexts[:, 0].tolist()
    reach = margin * (high - low)
    density = problem.distribution.density
    ends = low - reach, high + reach
    return torch.stack([density_distance(GaussianKDE(contexts[:, :n]), density, *ends, 8193) for n in counts], -1)


def density_distance(estimate: GaussianKDE, density: Function, low: float, high: float, points: int = 4097) -> Tensor:
    """``int_low^high |p_hat(c) - p(c)| dc``, the L1 distance to a density in one dimension.

    The paper calls it total variation; the total variation in the usual sense is half of it. By the trapezoidal rule on
    equally spaced points.

    Args:
        estimate: ``p_hat``, from samples ``... x n x 1``.
        density: ``p``, from contexts ``m x 1`` to ``m``.
        low: where to begin.
        high: where to end, above ``low``.
        points: of the rule, at least 2.

    Returns:
        ``...``, one number a replicate.

    Raises:
        ValueError: if there is more than one dimension, a bandwidth is zero or a number is out of range.
    """
    samples = estimate.samples
    if samples.shape[-1] != 1:
        raise ValueError(f"samples must have one dimension, got {samples.shape[-1]}")
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    if points < 2:
        raise ValueError(f"points must be at least 2, got {points}")
    grid = torch.linspace(low, high, points, dtype=samples.dtype, device=samples.device).unsqueeze(-1)
    return torch.trapezoid((estimate.density(grid) - density(grid)).abs(), grid.squeeze(-1), dim=-1)


def sampled_distance(contexts: Tensor, problem: ContextProblem, points: int = 2048) -> Tensor:
    """``|p - p_hat|_1`` of the density estimate from contexts ``replicates x n x Dc``, ``replicates``.

    The mean of ``2 |p - p_hat| / (p + p_hat)`` under the half-half mixture of both, by at least so many Sobol points of
    each.
    """
    replicates, n, dim = contexts.shape
    sobol = torch.quasirandom.SobolEngine(dim, scramble=True, seed=1).draw(points, dtype=torch.float64).to(contexts)
    true = problem.distribution.from_uniform(sobol, clip=False).expand(replicates, -1, -1)
    free = torch.tensor([[-math.inf], [math.inf]]).to(contexts).expand(2, dim)
    parts = []
    for at in (true, density_nodes(contexts, free, math.ceil(points / n))):
        p, estimated = problem.distribution.density(at), GaussianKDE(contexts).density(at)
        parts.append(((p - estimated).abs() / (p + estimated)).mean(-1))
    return parts[0] + parts[1]


def context_cover(bounds: Tensor) -> Tensor:
    """Contexts of the box ``2 x Dc`` that stand for all: 257 on a line, or 1,024 Sobol points and the corners."""
    dim = bounds.shape[-1]
    if dim == 1:
        unit = torch.linspace(0, 1, 257, dtype=bounds.dtype, device=bounds.device).unsqueeze(-1)
    else:
        sobol = torch.quasirandom.SobolEngine(dim, scramble=False).draw(1024, dtype=bounds.dtype)
        unit = torch.cat([torch.cartesian_prod(*[torch.arange(2.0)] * dim).to(sobol), sobol]).to(bounds)
    return torch.lerp(bounds[0], bounds[1], unit)


def density_nodes(contexts: Tensor, bounds: Tensor, each: int = 32) -> Tensor:
    """Equally weighted nodes for expectations under the clipped density estimate.

    Each observed context gets ``each`` nodes: equally probable quantiles of its kernel in one dimension, Sobol points
    taken to it in more.

    Args:
        contexts: ``replicates x n x Dc``.
        bounds: the context box.
        each: nodes a context, at least 1.

    Returns:
        ``replicates x (n each) x Dc``.
    """
    dim = contexts.shape[-1]
    if dim == 1:
        uniform = (torch.arange(each, dtype=contexts.dtype, device=contexts.device)[:, None] + 0.5) / each
    else:
        sobol = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(each, dtype=contexts.dtype)
        uniform = sobol.to(contexts).clamp(1e-9, 1 - 1e-9)
    offsets = silverman_bandwidth(contexts)[..., None, None, :] * torch.special.ndtri(uniform)
    return (contexts.unsqueeze(-2) + offsets).flatten(-3, -2).clamp(bounds[0], bounds[1])


def worst_weights(values: Tensor, radius: float, count: int | None = None) -> Tensor:
    """The distribution in the ball that ``tv_worst_case`` finds for values ``... x N``, of the same shape.

    Args:
        values: at all contexts; the worst of them takes the mass.
        radius: L1.
        count: the first so many contexts carry the estimate, with equal weights. Default: all.
    """
    with torch.enable_grad():
        leaf = values.detach().requires_grad_()
        total = tv_worst_case(leaf[..., :count], leaf.amin(-1), radius).sum()
    return torch.autograd.grad(total, leaf)[0]


@dataclass(frozen=True)
class Constants:
    """What the bounds of [Huang2024] need to know.

    Args:
        a: of Assumption 1, ``P(sup |df / dz_i| > L) <= a exp(-(L / b)^2)`` for every coordinate.
        b: of Assumption 1, in the units of f over those of the inputs.
        side: ``r``, of the box.
        decision_dim: ``Dx``.
        context_dim: ``Dc``.
        noise_std: of the observations.
        density: ``C0 r^(Dc / 2)``: ``E |p - p_hat_t|_1 <= density * t^(-2 / (4 + Dc))``.
    """

    a: float
    b: float
    side: float
    decision_dim: int
    context_dim: int
    noise_std: float
    density: float

    def parts(self, t: int) -> int:
        """``tau_t``: into how many parts each coordinate of the decisions is divided, a whole number."""
        return math.ceil(t**2 * self.decision_dim * self.a * self.b * self.side * math.sqrt(math.pi) / 2)

    def beta(self, t: int) -> float:
        """``beta_t`` of Theorem 1; negative in the first rounds if ``tau_t`` is small."""
        return 2 * math.log(t**2 / math.sqrt(2 * math.pi)) + 2 * self.decision_dim * math.log(self.parts(t))

    def sqrt_beta(self, t: int) -> float:
        """The multiplier of the standard deviation in Theorem 1, zero where ``beta_t`` is negative."""
        return math.sqrt(max(0.0, self.beta(t)))

    @property
    def largest(self) -> float:
        """The bound of Lemma 4 on ``E max |f|``: ``a b D r sqrt(pi) / 2 + sqrt(2 / pi)``; also ``C4``."""
        dim = self.decision_dim + self.context_dim
        return self.a * self.b * dim * self.side * math.sqrt(math.pi) / 2 + math.sqrt(2 / math.pi)

    def theorem(self, gain: Tensor, radius: Callable[[int], float] | None = None) -> dict[str, Tensor]:
        """The terms of Theorem 1, or with a radius ``delta_t`` those of Theorem 2, each ``T``.

        ``C = 8 / log(1 + noise_std^-2)`` as in [Srinivas2010], Lemma 5.4; the paper prints ``noise_std^2``.

        Args:
            gain: an upper bound of the maximum information gain of 1, ..., T observations, ``T``.
            radius: ``delta_t``.
        """
        dc = self.context_dim
        t = torch.arange(1, len(gain) + 1, dtype=torch.float64)
        beta = torch.tensor([max(0.0, self.beta(int(i))) for i in t], dtype=t.dtype)
        c = 8 / math.log1p(self.noise_std**-2)
        c2 = c * max(1.0, self.density**2 * (4 + dc) / dc)
        root = (beta * gain.to(t) * c2).sqrt()
        terms = {
            "constant": torch.full_like(t, math.pi**2 / 3),
            "widths": root * (t ** (dc / (2 * (4 + dc))) + t.sqrt()),
            "estimate": 2 * self.largest * self.density * (4 + dc) / (2 + dc) * t ** ((2 + dc) / (4 + dc)),
        }
        if radius is not None:
            delta = torch.tensor([radius(int(i)) for i in t], dtype=t.dtype)
            terms["widths in the ball"] = root * (c / c2 * delta.square().cumsum(0)).sqrt()
            terms["radius"] = self.largest * delta.cumsum(0)
        return terms

    def proven(self, gain: Tensor, radius: Callable[[int], float] | None = None) -> dict[str, Tensor]:
        """What the corrected proofs give, by the term of the ledger that each bounds, each ``T``.

        With ``d_t = density * t^(-2 / (4 + Dc))``: ``grid`` and ``optimism`` are ``pi^2 / 6`` each, ``widths`` is
        ``sqrt(C beta_T gamma_T T) / 2``, ``widths moved`` ``sqrt(beta_T) / 2`` and ``estimate`` ``2 C4`` times the sum
        of ``d_t``, and with a radius ``delta_t`` the sum of it times ``C4 + sqrt(beta_T) / 2``.

        Args:
            gain: see ``theorem``.
            radius: ``delta_t``.
        """
        t = torch.arange(1, len(gain) + 1, dtype=torch.float64)
        root = torch.tensor([self.sqrt_beta(int(i)) for i in t], dtype=t.dtype)
        distance = (self.density * t ** (-2 / (4 + self.context_dim))).cumsum(0)
        terms = {
            "grid": (1 / t**2).cumsum(0),
            "optimism": (1 / t**2).cumsum(0),
            "widths": 0.5 * root * (8 / math.log1p(self.noise_std**-2) * gain.to(t) * t).sqrt(),
            "widths moved": 0.5 * root * distance,
            "estimate": 2 * self.largest * distance,
        }
        if radius is not None:
            delta = torch.tensor([radius(int(i)) for i in t], dtype=t.dtype)
            terms["radius"] = (self.largest + 0.5 * root) * delta.cumsum(0)
        return terms


def ledger(
    history: History,
    problem: ContextProblem,
    policy: SBOKDE,
    constants: Constants,
    gain: Tensor,
    each: int = 32,
) -> RegretLedger:
    """The accounts of a run with a known prior ([Huang2024], Eqs. 7 and 10; of DRBO-KDE Eqs. 18 and 20).

    The terms add up to the cumulative regret exactly. ``p_hat`` is the clipped density estimate; its expectations are
    averages over ``density_nodes``. With ``W[g]`` for the expectation under ``p_hat``, or of DRBO-KDE the worst one
    within its radius, and ``[x*]_t`` for the nearest point of the grid of the proof:

    - ``estimate at x*`` is ``E_p f(x*) - E_p_hat f(x*)``, ``estimate at x_t`` is ``E_p_hat f(x_t) - E_p f(x_t)``;
    - ``radius at x*`` and ``radius at x_t`` are what the ball costs; the second is never positive;
    - ``grid`` is ``W[f(x*)] - W[f([x*]_t)]``;
    - ``optimism`` is ``W[f([x*]_t)] - W[ucb_t([x*]_t)]``, which Lemmas 7 and 9 bound;
    - ``maximization`` is ``W[ucb_t([x*]_t)] - W[ucb_t(x_t)]``, at most zero for an exact maximizer;
    - ``width`` is ``W[ucb_t(x_t)] - W[f(x_t)]``, which Lemmas 8 and 10 bound.

    Args:
        history: of the policy.
        problem: with one context, whose f is a draw of the prior.
        policy: ``SBOKDE`` or ``DRBOKDE`` with a ``prior`` of batch shape ``()``.
        constants: for the grid and the bounds.
        gain: an upper bound of the maximum information gain of 1, 2, ... observations, at least as many as rounds.
        each: see ``density_nodes``.

    Returns:
        A ledger of the rounds after the initial design. Claims on expectations compare means over the replicates.

    Raises:
        ValueError: if nothing follows the initial design, or the policy has no prior.
    """
    start = int(history["initial"][0].sum())
    record = accounts(history, problem, policy, constants, each)
    radius = policy.radius if isinstance(policy, DRBOKDE) else None
    terms = {name: record[name].cumsum(-1) for name in _TERMS if radius is not None or "radius" not in name}
    schedule = radius if callable(radius) or radius is None else lambda _: radius
    promised = [term[start : history.steps] for term in constants.theorem(gain, schedule).values()]
    y = history["observation"]
    return RegretLedger(
        cumulative_regret(history, problem)[:, start:] - cumulative_regret(history, problem)[:, start - 1 : start],
        terms,
        bounds={f"Theorem {1 if radius is None else 2}": torch.stack(promised).sum(0).to(y)},
        claims=_claims(record, terms, constants, gain[start : history.steps].to(y), start),
        identity=True,
    )


def accounts(
    history: History, problem: ContextProblem, policy: SBOKDE, constants: Constants, each: int = 32
) -> dict[str, Tensor]:
    """Every quantity that the proofs speak of, in every round after the initial design, each ``replicates x rounds``.

    Args:
        history: see ``ledger``.
        problem: see ``ledger``.
        policy: see ``ledger``.
        constants: for the grid.
        each: see ``density_nodes``.

    Raises:
        ValueError: see ``ledger``.
    """
    start = int(history["initial"][0].sum())
    if history.steps <= start:
        raise ValueError("history must hold at least one round after its initial design, got none")
    if policy.prior is None:
        raise ValueError("policy must have the prior of f, got None")
    radius = policy.radius if isinstance(policy, DRBOKDE) else 0.0

    def delta(t: int) -> float:
        return radius(t) if callable(radius) else radius

    posterior = policy.prior.posterior(history.replicates)
    contexts, y = history["context"], history["observation"]
    rounds = []
    for step in range(history.steps):
        query, context = history["query"][:, step], contexts[:, step]
        if step >= start:
            t = step + 1
            setting = _Round(posterior, problem, contexts[:, :step], query, context, policy.multiplier(t))
            rounds.append(setting.account(constants.parts(t), delta(t), each))
        points = Measure.dirac(problem.space.join(query, context).unsqueeze(-2))
        posterior = posterior.extend(points, y[:, step : step + 1])
    return {name: torch.stack([part[name] for part in rounds], -1) for name in rounds[0]}


_TERMS = (
    "estimate at x*",
    "radius at x*",
    "grid",
    "optimism",
    "maximization",
    "width",
    "radius at x_t",
    "estimate at x_t",
)


@dataclass(frozen=True, eq=False)
class _Round:
    """One round, before its observation; tensors have the replicates in front."""

    posterior: Posterior
    problem: ContextProblem
    seen: Tensor
    query: Tensor
    context: Tensor
    sqrt_beta: float | Tensor

    def account(self, parts: int, radius: float, each: int) -> dict[str, Tensor]:
        """Every term and what the claims need, ``replicates`` each."""
        problem, space, count = self.problem, self.problem.space, len(self.query)
        low, high = space.decisions
        best = problem.maximizer.expand_as(self.query)
        step = (high - low) / parts
        near = low + (((best - low) / step).floor().clamp(0, parts - 1) + 0.5) * step  # the center of its cell
        x = torch.stack([best, near, self.query], 1)  # replicates 3 Dx
        nodes = density_nodes(self.seen, space.contexts, each)
        cover = context_cover(space.contexts)
        rule, weights = problem.expectation_nodes
        shared = torch.cat([cover, rule]).expand(count, -1, -1)
        contexts = torch.cat([nodes, shared, self.context.unsqueeze(-2)], -2)
        ends = [nodes.shape[-2], nodes.shape[-2] + len(cover)]
        f = problem.f(space.join(x.unsqueeze(-2), contexts.unsqueeze(-3)))  # replicates 3 N
        mean, std = self._moments(x, contexts)
        ucb = mean + self.sqrt_beta * std

        def worst(values: Tensor) -> Tensor:
            return tv_worst_case(values[..., : ends[0]], values[..., : ends[1]].amin(-1), radius)

        def under(values: Tensor, of: Tensor) -> Tensor:  # under the worst distribution for others
            return (worst_weights(of[..., : ends[1]], radius, ends[0]) * values[..., : ends[1]]).sum(-1)

        def extent(values: Tensor) -> Tensor:
            return values[..., : ends[1]].amax(-1) - values[..., : ends[1]].amin(-1)

        robust, bound, estimated = worst(f), worst(ucb), f[..., : ends[0]].mean(-1)
        plain, above = ucb[..., : ends[0]].mean(-1), (ucb - f)[:, 2]
        true = problem.value(x)
        spread = std[:, 2]
        return {
            "estimate at x*": true[:, 0] - estimated[:, 0],
            "radius at x*": estimated[:, 0] - robust[:, 0],
            "grid": robust[:, 0] - robust[:, 1],
            "optimism": robust[:, 1] - bound[:, 1],
            "maximization": bound[:, 1] - bound[:, 2],
            "width": bound[:, 2] - robust[:, 2],
            "radius at x_t": robust[:, 2] - estimated[:, 2],
            "estimate at x_t": estimated[:, 2] - true[:, 2],
            "excess": under((f - ucb)[:, 1].clamp_min(0.0), ucb[:, 1]),
            "mean width": self.sqrt_beta * (spread[:, ends[1] : -1] @ weights),
            "estimated width": self.sqrt_beta * spread[:, : ends[0]].mean(-1),
            "width seen": self.sqrt_beta * spread[:, -1],
            "width range": self.sqrt_beta * extent(spread),
            "above, under q": under(above, f[:, 2]),
            "above": above[:, : ends[0]].mean(-1),
            "above, range": extent(above),
            "average maximization": plain[:, 1] - plain[:, 2],
            "bound range": extent(ucb[:, 1]),
            "variance seen": spread[:, -1].square(),
            "largest variance": spread[:, ends[0] : ends[1]].amax(-1).square(),
            "distance": density_error(self.seen, problem, [self.seen.shape[-2]])[:, 0],
            "largest at x*": f[:, 0].abs().amax(-1),
            "largest at x_t": f[:, 2].abs().amax(-1),
            "range at x*": extent(f[:, 0]),
            "range at x_t": extent(f[:, 2]),
            "delta": torch.full_like(spread[:, 0], radius),
        }

    def _moments(self, x: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation, ``replicates x 3 x N``."""
        space = self.problem.space
        padded = space.join(x.new_zeros(space.decision_dim), contexts)
        partial = PartialPosterior(self.posterior, padded, space.controlled)
        mean, variance = partial.mean_and_variance(space.join(x, x.new_zeros(space.context_dim)))
        return mean, variance.sqrt()


def _claims(
    record: dict[str, Tensor], terms: dict[str, Tensor], constants: Constants, gain: Tensor, start: int
) -> dict[str, Claim]:
    """What the proofs assert on the way; see ``ledger``."""

    def average(values: Tensor) -> Tensor:
        return values.mean(0, keepdim=True)

    zero = torch.zeros_like(record["width"])
    limit = average(zero) + math.pi**2 / 6
    t = torch.arange(start + 1, start + 1 + zero.shape[-1]).to(zero)
    rate = constants.density * t ** (-2 / (4 + constants.context_dim))
    factor = 2 / math.log1p(constants.noise_std**-2)
    seen, largest = record["variance seen"].cumsum(-1), record["largest variance"].cumsum(-1)
    realized = 0.5 * torch.log1p(record["variance seen"] / constants.noise_std**2).cumsum(-1)
    claims = {
        f"estimate at {at}": Claim(
            record[f"estimate at {at}"].abs(),
            record["distance"] * record[f"largest at {at}"],
            "Lemma 5, proof",
            slack=1e-3,  # the rule for the estimate
        )
        for at in ("x*", "x_t")
    }
    claims |= {
        "distance, mean": Claim(average(record["distance"]), average(zero) + rate, "Lemma 1"),
        "maximizer": Claim(record["maximization"], zero, "Eq. 10"),
        "optimism, mean": Claim(
            average(record["excess"]).cumsum(-1), limit, "Lemma 9" if "radius at x*" in terms else "Lemma 7"
        ),
        "grid, mean": Claim(average(terms["grid"]), limit, "Eq. 11"),
        "variances seen": Claim(seen, factor * realized, "Srinivas et al., Lemma 5.4"),
        "largest variances": Claim(largest, factor * gain.expand_as(largest), "Lemma 8, proof"),
    }
    if "radius at x*" in terms:
        delta = record["delta"]
        claims["radius"] = Claim(record["radius at x*"], delta * record["largest at x*"], "Theorem 2, proof")
        claims["radius, half the range"] = Claim(
            record["radius at x*"], delta / 2 * record["range at x*"], "closed form"
        )
    return claims
