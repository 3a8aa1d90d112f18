"""How fast the terms of the theorems grow, measured on draws of a known prior with one, two and four contexts.

    python -m book run contexts.rates --scale paper --publish

computes both parts and stores them in ``rates.npz`` beside this file. With ``--device cuda`` that took two to three
minutes, on two cores some hours.

A draw of the prior is a sum of 1,024 random waves ([Rahimi2007]). Its expectation under a normal distribution, and
under a density estimate with normal kernels, is then a sum of waves too, so nothing here is integrated numerically.
Contexts are ``N(0.5, 0.15^2)`` in every coordinate and are not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from book.contexts.regret import Constants
from cbo_lib.contexts.density import GaussianKDE, silverman_bandwidth
from cbo_lib.contexts.policies import TotalVariationRadius
from cbo_lib.contexts.worst_case import tv_average
from cbo_lib.distributions import Normal

#: Where the results are stored.
STORED = Path(__file__).with_name("rates.npz")
DIMS = (1, 2, 4)
#: Numbers of contexts at which the estimate is judged, and rounds at which regret is stored.
COUNTS = tuple(sorted({round(10 ** (k / 6)) for k in range(6, 31)}))
POLICIES = ("estimate", "known", "empirical", "robust", "robust, constant", "estimate, theory")
KNOWN = POLICIES.index("known")
#: The radius that does not shrink.
CONSTANT = 0.3
LENGTHSCALES = 0.2, 0.5
CENTER, SPREAD, NOISE = 0.5, 0.15, 0.1


@dataclass(frozen=True)
class Waves:
    """Draws of a Gaussian process with an RBF kernel, as sums of waves ``sqrt(2 / m) cos(w x + v c + b)``.

    Args:
        x: frequencies in the one decision, ``draws x m``.
        c: frequencies in the contexts, ``draws x m x Dc``.
        phase: ``draws x m``.
        height: ``draws x m``.
    """

    x: Tensor
    c: Tensor
    phase: Tensor
    height: Tensor

    @classmethod
    def draw(cls, draws: int, dim: int, rng: torch.Generator, device: str, waves: int = 1024) -> Waves:
        """Independent draws."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(draws, waves, *shape, generator=rng, dtype=torch.float64).to(device)

        phase = 2 * math.pi * torch.rand(draws, waves, generator=rng, dtype=torch.float64).to(device)
        height = normal() * math.sqrt(2 / waves)
        return cls(normal() / LENGTHSCALES[0], normal(dim) / LENGTHSCALES[1], phase, height)

    def __call__(self, x: Tensor, c: Tensor) -> Tensor:
        """Values at decisions ``draws x k`` and contexts ``draws x k x Dc``, ``draws x k``."""
        angle = x.unsqueeze(-1) * self.x.unsqueeze(1) + c @ self.c.mT + self.phase.unsqueeze(1)
        return (angle.cos() @ self.height.unsqueeze(-1)).squeeze(-1)

    def transform(self, contexts: Tensor) -> Tensor:
        """``exp(i v c)`` of contexts ``draws x n x Dc``, ``draws x n x m``."""
        return torch.polar(*torch.broadcast_tensors(contexts.new_ones(()), contexts @ self.c.mT))

    @property
    def truth(self) -> Tensor:
        """``E exp(i v c)`` under the true distribution, ``draws x m``."""
        return torch.polar((-0.5 * SPREAD**2 * self.c.square().sum(-1)).exp(), CENTER * self.c.sum(-1))

    def smoothing(self, bandwidth: Tensor) -> Tensor:
        """What a normal kernel of bandwidths ``draws x Dc`` does to a wave, ``draws x m``."""
        return (-0.5 * (self.c * bandwidth.unsqueeze(1)).square().sum(-1)).exp()

    def average(self, transform: Tensor, x: Tensor) -> Tensor:
        """Expected values of decisions ``draws x k`` where ``E exp(i v c)`` is ``draws x m``, ``draws x k``."""
        weight = self.height * torch.polar(torch.ones_like(self.phase), self.phase) * transform
        angle = x.unsqueeze(-1) * self.x.unsqueeze(1)
        return (angle.cos() @ weight.real.unsqueeze(-1) - angle.sin() @ weight.imag.unsqueeze(-1)).squeeze(-1)


def distance(estimate: GaussianKDE, rng: torch.Generator, samples: int = 2048) -> Tensor:
    """``|p - p_hat|_1`` by samples of both, ``draws``."""
    draws, dim = estimate.bandwidth.shape
    ours = estimate.sample(samples, rng)
    theirs = CENTER + SPREAD * torch.randn(draws, samples, dim, generator=rng, dtype=torch.float64).to(ours)
    at = torch.cat([ours, theirs], 1)
    p, estimated = Normal(CENTER, SPREAD).density(at).prod(-1), estimate.density(at)
    return 2 * ((p - estimated).abs() / (p + estimated)).mean(-1)


def estimation(
    dim: int,
    draws: int,
    rng: torch.Generator,
    device: str,
    decisions: int = 513,
    counts: Sequence[int] = COUNTS,
) -> dict[str, Tensor]:
    """What the estimate costs where f is known, each ``draws x len(counts)``.

    ``error`` is ``E_p f(x*) - E_p_hat f(x*)``, ``regret`` the regret of the best decision under the estimate,
    ``bias`` and ``deviation`` the two parts of the error by the proposition, and ``distance`` in L1, of 30 draws and up
    to 10,000 contexts, NaN beyond. The first two also for the empirical law.
    """
    waves = Waves.draw(draws, dim, rng, device)
    x = torch.linspace(0, 1, decisions, dtype=torch.float64, device=device).expand(draws, -1)
    value = waves.average(waves.truth, x)
    best, place = value.max(-1, keepdim=True)
    at = x.gather(1, place)
    sums = torch.zeros_like(waves.truth)
    seen = torch.empty(draws, 0, dim, dtype=torch.float64, device=device)
    record: dict[str, list[Tensor]] = {}
    for n in counts:
        fresh = CENTER + SPREAD * torch.randn(draws, n - seen.shape[1], dim, generator=rng, dtype=torch.float64)
        seen = torch.cat([seen, fresh.to(device)], 1)
        for part in fresh.to(device).split(200, 1):
            sums += waves.transform(part).sum(1)
        h = silverman_bandwidth(seen)
        laws = {"": sums / n * waves.smoothing(h), "empirical ": sums / n}
        for name, law in laws.items():
            found = waves.average(law, x)
            record.setdefault(name + "error", []).append((value - found).gather(1, place)[:, 0])
            record.setdefault(name + "regret", []).append(best[:, 0] - value.gather(1, found.argmax(-1)[:, None])[:, 0])
        bias = (waves.average(waves.truth * (1 - waves.smoothing(h)), at))[:, 0]
        record.setdefault("bias", []).append(bias)
        sample = CENTER + SPREAD * torch.randn(draws, 500, dim, generator=rng, dtype=torch.float64).to(device)
        smooth = Waves(waves.x, waves.c, waves.phase, waves.height * waves.smoothing(h))
        deviation = smooth(at.expand(-1, 500), sample).std(-1)
        record.setdefault("deviation", []).append(deviation / math.sqrt(n))
        nothing = torch.full_like(bias, math.nan)
        record.setdefault("distance", []).append(distance(GaussianKDE(seen[:30]), rng) if n <= 10_000 else nothing[:30])
    return {name: torch.stack(rows, -1) for name, rows in record.items()}


@dataclass(eq=False)
class Runs:
    """Runs of ``POLICIES`` with the known prior, on the same contexts: what was seen, and the inverse of ``K + noise``.

    The library's policies average the mean over samples too, and search a whole box. Here that average is exact and
    the decisions are given, so that all policies on all draws are one batch for a thousand rounds.

    Args:
        contexts: of all rounds, ``draws x rounds x Dc``.
    """

    contexts: Tensor

    def __post_init__(self) -> None:
        """Nothing is seen yet."""
        shape = len(POLICIES), *self.contexts.shape[:2]
        self.count = 0
        self.asked, self.y = self.contexts.new_zeros(shape), self.contexts.new_zeros(shape)
        self.inverse = self.contexts.new_zeros(*shape, shape[-1])

    @property
    def seen(self) -> Tensor:
        """Contexts so far, ``draws x count x Dc``."""
        return self.contexts[:, : self.count]

    @property
    def widths(self) -> Tensor:
        """What each policy takes for the width of a normal distribution, ``policies x draws x 1 x Dc``.

        Its center is every context seen, but ``CENTER`` where the density is known.
        """
        h = silverman_bandwidth(self.seen).unsqueeze(1)
        return torch.stack([h, torch.full_like(h, SPREAD), torch.zeros_like(h), h, h, h])

    @property
    def roots(self) -> Tensor:
        """The multipliers of the standard deviation, ``policies x 1 x 1``."""
        constants = Constants(2.9, 10.0, 1.0, 1, self.contexts.shape[-1], NOISE, math.nan)
        roots = [constants.sqrt_beta(self.count + 1) if "theory" in name else 1.5 for name in POLICIES]
        return self.contexts.new_tensor(roots)[:, None, None]

    def draw(self, samples: int, rng: torch.Generator) -> Tensor:
        """Contexts as each policy believes them, from the same random numbers, ``policies x draws x samples x Dc``."""
        draws, dim = len(self.contexts), self.contexts.shape[-1]
        index = torch.randint(self.count, (draws, samples), generator=rng).to(self.contexts.device)
        normal = torch.randn(draws, samples, dim, generator=rng, dtype=torch.float64).to(self.contexts)
        drawn = self.seen.gather(1, index.unsqueeze(-1).expand(-1, -1, dim)) + self.widths * normal
        drawn[KNOWN] = CENTER + SPREAD * normal
        return drawn

    def embedding(self) -> Tensor:
        """The average of the context kernel with every context seen, ``policies x draws x count``."""
        c, square = self.seen, LENGTHSCALES[1] ** 2 + self.widths.square()
        near = (c.unsqueeze(1) - c.unsqueeze(2)).square()  # draws count count Dc
        averages = torch.stack([(-0.5 * (near / s.unsqueeze(2)).sum(-1)).exp().mean(-1) for s in square])
        averages[KNOWN] = (-0.5 * ((c - CENTER).square() / square[KNOWN]).sum(-1)).exp()
        return averages * (LENGTHSCALES[1] / square.sqrt()).prod(-1)

    def bounds(self, x: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """What the policies maximize over decisions ``k``, and its average width, each ``policies x draws x k``.

        The average of the posterior mean is exact, that of the deviation is over ``drawn``, and so is the worst case.
        """
        t, roots = self.count, self.roots
        solved = self.inverse[..., :t, :t]
        weights = solved @ self.y[..., :t, None]  # policies draws t 1
        kx = (-0.5 * ((self.asked[..., :t, None] - x) / LENGTHSCALES[0]).square()).exp()  # policies draws t k
        apart = (drawn.unsqueeze(-3) - self.seen.unsqueeze(-2)) / LENGTHSCALES[1]
        kc = (-0.5 * apart.square().sum(-1)).exp()  # policies draws t samples
        parts = []
        for part in kx.split(13, -1):
            both = (part.unsqueeze(-1) * kc.unsqueeze(-2)).flatten(-2)
            gone = (both * (solved @ both)).sum(-2).unflatten(-1, (-1, kc.shape[-1]))
            parts.append((1 - gone).clamp_min(0).sqrt())
        std = torch.cat(parts, -2)  # policies draws k samples
        width = roots * std.mean(-1)
        bound = (kx.mT @ (weights * self.embedding().unsqueeze(-1))).squeeze(-1) + width
        shrinking = TotalVariationRadius(self.contexts.shape[-1])(t + 1)
        for name, radius in (("robust", shrinking), ("robust, constant", CONSTANT)):
            k = POLICIES.index(name)
            at = kx[k].mT @ (weights[k] * kc[k]) + roots[k] * std[k]  # draws k samples
            bound[k] = tv_average(at, at.amin(-1), radius, radius)
        return bound, width

    def tell(self, x: Tensor, y: Tensor) -> None:
        """Decisions and values of the next round, ``policies x draws`` each."""
        t, context = self.count, self.contexts[:, self.count]
        near = ((self.seen - context.unsqueeze(1)) / LENGTHSCALES[1]).square().sum(-1)
        column = (-0.5 * ((self.asked[..., :t] - x.unsqueeze(-1)) / LENGTHSCALES[0]).square() - 0.5 * near).exp()
        grow(self.inverse, column, t)
        self.asked[..., t], self.y[..., t], self.count = x, y, t + 1


def grow(inverse: Tensor, column: Tensor, t: int) -> None:
    """Add a row to the inverse of the kernel matrix with noise, in place."""
    v = (inverse[..., :t, :t] @ column.unsqueeze(-1)).squeeze(-1)
    left = 1 + NOISE**2 - (column * v).sum(-1, keepdim=True)
    inverse[..., :t, :t] += v.unsqueeze(-1) * v.unsqueeze(-2) / left.unsqueeze(-1)
    inverse[..., t, :t] = inverse[..., :t, t] = -v / left
    inverse[..., t, t] = 1 / left.squeeze(-1)


def regret(
    dim: int, draws: int, rounds: int, rng: torch.Generator, device: str, decisions: int = 129, samples: int = 64
) -> dict[str, Tensor]:
    """Runs of ``POLICIES`` on the same draws, contexts and noise, each ``policies x draws x rounds``.

    Decisions are equally spaced, the first three random; ``samples`` contexts are drawn from the estimate a round.
    """
    waves, kinds = Waves.draw(draws, dim, rng, device), len(POLICIES)
    x = torch.linspace(0, 1, decisions, dtype=torch.float64, device=device)
    value = waves.average(waves.truth, x.expand(draws, -1)).expand(kinds, -1, -1)
    best, star = value.max(-1, keepdim=True)
    contexts = (CENTER + SPREAD * torch.randn(draws, rounds, dim, generator=rng, dtype=torch.float64)).to(device)
    noise = (NOISE * torch.randn(draws, rounds, generator=rng, dtype=torch.float64)).to(device)
    start = torch.randint(decisions, (draws, 3), generator=rng).to(device)
    runs, sums = Runs(contexts), torch.zeros_like(waves.truth)
    record: dict[str, list[Tensor]] = {}
    for t in range(rounds):
        gap = width = torch.zeros_like(value)
        pick = start[:, t : t + 1].expand(kinds, -1, -1)  # policies draws 1
        if t >= 3:
            bound, width = runs.bounds(x, runs.draw(samples, rng))
            pick = bound.argmax(-1, keepdim=True)
            law = sums / t * waves.smoothing(silverman_bandwidth(runs.seen))
            gap = value - waves.average(law, x.expand(draws, -1))
        rows = {"at best": gap.gather(-1, star), "at asked": -gap.gather(-1, pick), "width": width.gather(-1, pick)}
        for name, row in (rows | {"regret": best - value.gather(-1, pick)}).items():
            record.setdefault(name, []).append(row.squeeze(-1))
        asked, now = x[pick], contexts[:, t : t + 1]
        y = torch.stack([waves(own, now) for own in asked]).squeeze(-1) + noise[:, t]
        runs.tell(asked.squeeze(-1), y)
        sums += waves.transform(now)[:, 0]
    return {name: torch.stack(rows, -1) for name, rows in record.items()}


def load(part: str, dim: int, path: Path = STORED) -> dict[str, Tensor]:
    """What is stored of ``"estimation"`` or ``"regret"`` for so many contexts, by name.

    Regret and its terms are summed up to rounds 20, 40, .... The policies are those of ``POLICIES``; the terms
    ``at best`` and ``at asked`` (the estimate's) and ``width`` are those of the first.
    """
    start = f"{part}/{dim}/"
    with np.load(path, allow_pickle=False) as file:
        return {
            key.removeprefix(start): torch.as_tensor(file[key]).double() for key in file.files if key.startswith(start)
        }


def exponent(t: Tensor, rows: Tensor, repetitions: int = 200) -> tuple[float, float]:
    """The slope of the mean over draws on double logarithmic axes, and its standard error by resampling draws.

    Args:
        t: where, ``n``.
        rows: positive on average, ``draws x n``.
        repetitions: of the resampling.
    """
    x = t.double().log()
    x = (x - x.mean()) / (x - x.mean()).square().sum()
    pick = torch.randint(len(rows), (repetitions, len(rows)), generator=torch.Generator().manual_seed(0))
    again = rows[pick].mean(1).log() @ x
    return float(rows.mean(0).log() @ x), float(again.std())


def arrays_of(dim: int, draws: int, rounds: int) -> dict[str, np.ndarray]:
    """What is stored for so many contexts; ten times as many draws for the estimate, they are cheap."""
    rng, device = torch.Generator().manual_seed(dim), str(torch.zeros(()).device)
    arrays = {}
    counts = [n for n in COUNTS if n <= max(10, rounds**2 // 10)]
    for name, rows in estimation(dim, 10 * draws, rng, device, counts=counts).items():
        arrays[f"estimation/{dim}/{name}"] = rows.cpu().numpy().astype(np.float32)
    for name, rows in regret(dim, draws, rounds, rng, device).items():
        kept = rows if name == "regret" else rows[:1]  # the terms of SBO-KDE alone
        sums = kept.cumsum(-1)[..., min(rounds, 20) - 1 :: 20]
        arrays[f"regret/{dim}/{name}"] = sums.cpu().numpy().astype(np.float32)
    return arrays
