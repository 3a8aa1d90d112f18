"""How fast the terms of the theorems grow, measured on draws of a known prior with one, two and four contexts.

    python -m book.contexts.rates

computes both parts and stores them in ``rates.npz`` beside this file. With a GPU that takes two minutes, on two cores
some hours; ``--draws 3 --rounds 100`` tries it in a minute.

A draw of the prior is a sum of 1,024 random waves ([Rahimi2007]). Its expectation under a normal distribution, and
under a density estimate with normal kernels, is then a sum of waves too, so nothing here is integrated numerically.
Contexts are ``N(0.5, 0.15^2)`` in every coordinate and are not clipped.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

#: Where the results are stored.
STORED = Path(__file__).with_name("rates.npz")
DIMS = (1, 2, 4)
#: Numbers of contexts at which the estimate is judged, and rounds at which regret is stored.
COUNTS = tuple(sorted({round(10 ** (k / 6)) for k in range(6, 31)}))
POLICIES = ("estimate", "known", "empirical", "robust", "robust, constant", "estimate, theory")
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


def rule(contexts: Tensor) -> Tensor:
    """The rule of thumb for the bandwidth, ``... x n x Dc`` to ``... x Dc``."""
    n, dim = contexts.shape[-2:]
    return (4 / (dim + 2)) ** (1 / (dim + 4)) * contexts.std(-2) * n ** (-1 / (dim + 4))


def distance(contexts: Tensor, bandwidth: Tensor, rng: torch.Generator, samples: int = 2048) -> Tensor:
    """``|p - p_hat|_1`` by samples of both, ``draws``."""
    draws, n, dim = contexts.shape
    pick = torch.randint(n, (draws, samples), generator=rng).to(contexts.device)
    noise = torch.randn(2, draws, samples, dim, generator=rng, dtype=torch.float64).to(contexts)
    seen = contexts.gather(1, pick.unsqueeze(-1).expand(-1, -1, dim)) + bandwidth.unsqueeze(1) * noise[0]
    at = torch.cat([seen, CENTER + SPREAD * noise[1]], 1)
    root = math.sqrt(2 * math.pi)
    true = (-0.5 * ((at - CENTER) / SPREAD).square()).exp().div(SPREAD * root).prod(-1)
    total = torch.zeros_like(true)
    for part in contexts.split(500, 1):
        z = (at.unsqueeze(2) - part.unsqueeze(1)) / bandwidth[:, None, None]
        total += (-0.5 * z.square().sum(-1)).exp().sum(-1)
    estimated = total / n / (bandwidth * root).prod(-1).unsqueeze(-1)
    return 2 * ((true - estimated).abs() / (true + estimated)).mean(-1)


def estimation(dim: int, draws: int, rng: torch.Generator, device: str, decisions: int = 513) -> dict[str, Tensor]:
    """What the estimate costs where f is known, each ``draws x len(COUNTS)``.

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
    for n in COUNTS:
        fresh = CENTER + SPREAD * torch.randn(draws, n - seen.shape[1], dim, generator=rng, dtype=torch.float64)
        seen = torch.cat([seen, fresh.to(device)], 1)
        for part in fresh.to(device).split(200, 1):
            sums += waves.transform(part).sum(1)
        h = rule(seen)
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
        record.setdefault("distance", []).append(distance(seen[:30], h[:30], rng) if n <= 10_000 else nothing[:30])
    return {name: torch.stack(rows, -1) for name, rows in record.items()}


def theory_multiplier(t: int, a: float = 2.9, b: float = 10.0) -> float:
    """``sqrt(beta_t)`` of Theorem 1 with one decision in the unit box."""
    parts = math.ceil(t**2 * a * b * math.sqrt(math.pi) / 2)
    return math.sqrt(max(0.0, 2 * math.log(t**2 * parts / math.sqrt(2 * math.pi))))


def regret(
    dim: int, draws: int, rounds: int, rng: torch.Generator, device: str, decisions: int = 129, samples: int = 64
) -> dict[str, Tensor]:
    """Runs of ``POLICIES`` on the same draws, contexts and noise, each ``policies x draws x rounds``.

    Decisions are equally spaced. The average of the posterior mean is exact; that of the standard deviation is over
    ``samples`` contexts, as is the worst case, whose floor is the smallest of them.
    """
    waves, kinds = Waves.draw(draws, dim, rng, device), len(POLICIES)
    x = torch.linspace(0, 1, decisions, dtype=torch.float64, device=device)
    value = waves.average(waves.truth, x.expand(draws, -1))
    best, star = value.max(-1)
    seen = (CENTER + SPREAD * torch.randn(draws, rounds, dim, generator=rng, dtype=torch.float64)).to(device)
    noise = (NOISE * torch.randn(draws, rounds, generator=rng, dtype=torch.float64)).to(device)
    start = torch.randint(decisions, (draws, 3), generator=rng).to(device)
    batch = kinds * draws
    inverse = torch.zeros(batch, rounds, rounds, dtype=torch.float64, device=device)
    asked = torch.zeros(batch, rounds, dtype=torch.float64, device=device)
    y = torch.zeros(batch, rounds, dtype=torch.float64, device=device)
    sums = torch.zeros_like(waves.truth)
    record: dict[str, list[Tensor]] = {}
    lx, lc = LENGTHSCALES
    for t in range(rounds):
        if t < 3:
            pick = start[:, t].repeat(kinds)
            for name in ("at best", "at asked", "width"):
                record.setdefault(name, []).append(noise.new_zeros(kinds, draws))
        else:
            c = seen[:, :t]
            h = rule(c)
            widths = torch.stack([h, torch.full_like(h, SPREAD), 0 * h, h, h, h])  # kinds draws dim
            square = lc**2 + widths.square().unsqueeze(2)
            factor = (lc / square.sqrt()).prod(-1)  # kinds draws 1
            near = (c.unsqueeze(1) - c.unsqueeze(2)).square().unsqueeze(0)  # 1 draws t t dim
            embedding = torch.stack(
                [(-0.5 * (near[0] / square[k].unsqueeze(2)).sum(-1)).exp().mean(-1) for k in range(kinds)]
            )
            embedding[1] = (-0.5 * ((c - CENTER).square() / square[1]).sum(-1)).exp()
            embedding = (embedding * factor).flatten(0, 1)  # batch t
            index = torch.randint(t, (draws, samples), generator=rng).to(device)
            normal = torch.randn(draws, samples, dim, generator=rng, dtype=torch.float64).to(device)
            centers = c.gather(1, index.unsqueeze(-1).expand(-1, -1, dim))
            drawn = torch.stack([centers + w.unsqueeze(1) * normal for w in widths])
            drawn[1] = CENTER + SPREAD * normal
            kc = (-0.5 * ((drawn.unsqueeze(2) - c.unsqueeze(2)) / lc).square().sum(-1)).exp().flatten(0, 1)
            kx = (-0.5 * ((asked[:, :t].unsqueeze(-1) - x) / lx).square()).exp()  # batch t decisions
            solved = inverse[:, :t, :t]
            weights = (solved @ y[:, :t].unsqueeze(-1)).squeeze(-1)
            mean = (kx.mT @ (weights * embedding).unsqueeze(-1)).squeeze(-1)
            std = torch.empty(batch, decisions, samples, dtype=torch.float64, device=device)
            for g in range(0, decisions, 13):
                both = (kx[:, :, g : g + 13, None] * kc.unsqueeze(2)).flatten(2)
                gone = (both * (solved @ both)).sum(1).unflatten(-1, (-1, samples))
                std[:, g : g + 13] = (1 - gone).clamp_min(0).sqrt()
            root = x.new_full((kinds, 1, 1), 1.5)
            root[-1] = theory_multiplier(t + 1)
            root = root.expand(-1, draws, -1).flatten(0, 1)
            bound = mean + root * std.mean(-1)
            for kind, radius in ((3, (t + 1) ** (-2 / (4 + dim))), (4, CONSTANT)):
                robust = slice(kind * draws, (kind + 1) * draws)
                at = kx[robust].mT @ (weights[robust].unsqueeze(-1) * kc[robust])  # draws decisions samples
                bound[robust] = worst(at + 1.5 * std[robust], radius)
            pick = bound.argmax(-1)
            law = sums / t * waves.smoothing(h)
            gap = value - waves.average(law, x.expand(draws, -1))  # draws decisions
            picks = pick.unflatten(0, (kinds, draws))
            rows = {
                "at best": gap.gather(1, star[:, None])[:, 0].expand(kinds, -1),
                "at asked": -gap.expand(kinds, -1, -1).gather(2, picks.unsqueeze(-1))[..., 0],
                "width": (root * std.mean(-1)).gather(1, pick[:, None])[:, 0].unflatten(0, (kinds, draws)),
            }
            for name, row in rows.items():
                record.setdefault(name, []).append(row)
        picks = pick.unflatten(0, (kinds, draws))
        loss = best - value.expand(kinds, -1, -1).gather(2, picks.unsqueeze(-1))[..., 0]
        record.setdefault("regret", []).append(loss)
        c_now = seen[:, t : t + 1]
        asked[:, t] = x[pick]
        for k in range(kinds):
            own = slice(k * draws, (k + 1) * draws)
            y[own, t] = waves(asked[own, t : t + 1], c_now)[:, 0] + noise[:, t]
        old = seen[:, :t].repeat(kinds, 1, 1)
        column = (
            -0.5 * ((asked[:, :t] - asked[:, t : t + 1]) / lx).square()
            - 0.5 * ((old - c_now.repeat(kinds, 1, 1)) / lc).square().sum(-1)
        ).exp()
        grow(inverse, column, t)
        sums += waves.transform(c_now)[:, 0]
    return {name: torch.stack(rows, -1) for name, rows in record.items()}


def grow(inverse: Tensor, column: Tensor, t: int) -> None:
    """Add a row to the inverse of the kernel matrix with noise, in place."""
    v = (inverse[:, :t, :t] @ column.unsqueeze(-1)).squeeze(-1)
    left = 1 + NOISE**2 - (column * v).sum(-1)
    inverse[:, :t, :t] += v.unsqueeze(-1) * v.unsqueeze(1) / left[:, None, None]
    inverse[:, t, :t] = inverse[:, :t, t] = -v / left.unsqueeze(-1)
    inverse[:, t, t] = 1 / left


def worst(values: Tensor, radius: float) -> Tensor:
    """The worst average of equally weighted values ``... x M`` within an L1 radius, its floor the smallest of them."""
    ordered = values.sort(-1, descending=True).values
    count = values.shape[-1]
    moved = (radius / 2 * count - torch.arange(count, device=values.device)).clamp(0, 1) / count
    return (ordered * (1 / count - moved)).sum(-1) + moved.sum() * ordered[..., -1]


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


def main() -> None:
    """Compute and store."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=STORED)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arrays: dict[str, np.ndarray] = {}
    for dim in DIMS:
        rng = torch.Generator().manual_seed(dim)
        # Ten times as many draws for the estimate: they are cheap.
        for name, rows in estimation(dim, 10 * options.draws, rng, device).items():
            arrays[f"estimation/{dim}/{name}"] = rows.cpu().numpy().astype(np.float32)
        for name, rows in regret(dim, options.draws, options.rounds, rng, device).items():
            kept = rows if name == "regret" else rows[:1]  # the terms of SBO-KDE alone
            arrays[f"regret/{dim}/{name}"] = kept.cumsum(-1)[..., 19::20].cpu().numpy().astype(np.float32)
        print(f"{dim} contexts: done")
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
