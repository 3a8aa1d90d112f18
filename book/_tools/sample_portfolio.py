"""Run the trading simulation of the portfolio problem and store its surrogate, book/contexts/portfolio.npz.

    python book/_tools/sample_portfolio.py [--out FILE]

A trader holds a few risky assets and cash. Every day, a forecast of the coming returns is known, and the trader moves
from the positions v to those positions w, within limits, that maximize

    forecast' w - risk_aversion w' Sigma w - trade_aversion cost(w - v) - holding_multiplier borrowing |w|_short,

single-period optimization with the costs of [Boyd2017]. Then the returns come and the costs are paid. The result is the
mean logarithm of the daily growth over four years, in percent a year. The three multipliers are the decisions; the
bid-ask spread and the borrowing cost are the contexts. All five have the ranges of [Cakmak2020], scaled to [0, 1]: the
contexts linearly, the multipliers by their logarithm, since the risk aversion spans four decades.

The market is synthetic, since the data of [Cakmak2020] cannot be shipped: one common factor, own noise, and a part of
each return that decays slowly and is seen with an error. The forecast promises more than it keeps, so that a bold
trader loses by trading too much. Nothing here says anything about a real market.

[Boyd2017] S. Boyd et al. Multi-Period Trading via Convex Optimization. Foundations and Trends in Optimization, 2017.
[Cakmak2020] S. Cakmak, R. Astudillo, P. Frazier, E. Zhou. Bayesian Optimization of Risk Measures. NeurIPS 2020.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from book.contexts.portfolio import DATA, fit_surrogate, save_surrogate

#: Ends of the ranges: risk aversion, trade aversion, holding cost multiplier, bid-ask spread, daily borrowing cost.
LOW, HIGH = (0.1, 5.5, 0.1, 1e-4, 1e-4), (1000.0, 8.0, 100.0, 1e-2, 1e-3)
ASSETS, DAYS, SAMPLES = 6, 1000, 3000
DECAY = 0.95  # of the predictable part of a return, from day to day
PREDICTABLE = 3e-4  # its standard deviation
OPTIMISM = 2.5  # how much more the forecast promises
IMPACT = 5e-3  # what trading a share u of the wealth costs beyond the spread: IMPACT u^2
LIMIT = 1.0  # of each position, as a share of the wealth


class Market:
    """The returns, their forecasts and their covariance; always the same for the same arguments."""

    def __init__(self, days: int = DAYS, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        loading, own = rng.uniform(0.5, 1.5, ASSETS), rng.uniform(0.006, 0.014, ASSETS)
        self.covariance = torch.as_tensor(np.outer(loading, loading) * 0.007**2 + np.diag(own**2))
        signal = rng.standard_normal((days, ASSETS))
        for today, yesterday in zip(signal[1:], signal, strict=False):
            today[:] = DECAY * yesterday + np.sqrt(1 - DECAY**2) * today
        noise = 0.007 * rng.standard_normal((days, 1)) * loading + own * rng.standard_normal((days, ASSETS))
        drift = 2e-4 * loading
        # Without its mean: four lucky or unlucky years would hide what the multipliers do.
        self.returns = torch.as_tensor(drift + PREDICTABLE * signal + noise - noise.mean(0))
        seen = signal + rng.standard_normal((days, ASSETS))  # half of its variance is error
        self.forecast = torch.as_tensor(OPTIMISM * (drift + PREDICTABLE / 2 * seen) / (1 - DECAY))


def unscale(points: Tensor) -> Tensor:
    """The parameters of points ``b x 5`` in the unit box, in their own units."""
    low, high = torch.tensor([LOW, HIGH], dtype=points.dtype)
    multipliers = torch.lerp(low[:3].log(), high[:3].log(), points[:, :3]).exp()
    return torch.cat([multipliers, torch.lerp(low[3:], high[3:], points[:, 3:])], -1)


def best_positions(
    held: Tensor, forecast: Tensor, covariance: Tensor, parameters: Tensor, iterations: int = 100
) -> Tensor:
    """The positions that a day begins with, for many traders at once, by an accelerated proximal gradient method.

    Args:
        held: positions before the trade, ``b x n``.
        forecast: of the returns until the signal has decayed, ``n``.
        covariance: of the daily returns, ``n x n``.
        parameters: in their own units, ``b x 5``.
        iterations: of the method.

    Returns:
        ``b x n``.
    """
    risk, trade, holding, spread, borrowing = (part.unsqueeze(-1) for part in parameters.unbind(-1))
    risk, kink, short = risk / (1 - DECAY), trade * spread / 2, holding * borrowing
    step = 1 / (2 * risk * torch.linalg.eigvalsh(covariance)[-1] + 2 * trade * IMPACT)
    # The rest has kinks at zero and at held: its slope is -kink - short, then between, then kink.
    left, right = held.clamp_max(0.0), held.clamp_min(0.0)
    between = torch.where(held > 0, -kink, kink - short)
    w, y, momentum = held, held, 1.0
    for _ in range(iterations):
        z = y - step * (2 * risk * (y @ covariance) + 2 * trade * IMPACT * (y - held) - forecast)
        z = torch.minimum(
            z + step * (kink + short),
            torch.maximum(left, torch.minimum(z - step * between, torch.maximum(right, z - step * kink))),
        ).clamp(-LIMIT, LIMIT)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        y = z + (momentum - 1) / following * (z - w)
        w, momentum = z, following
    return w


def simulate(points: Tensor, market: Market) -> Tensor:
    """The growth of points ``b x 5`` in the unit box, ``b``, in percent a year."""
    parameters = unscale(points)
    spread, borrowing = parameters[:, 3], parameters[:, 4]
    held, total = torch.zeros(len(points), ASSETS, dtype=points.dtype), torch.zeros(len(points), dtype=points.dtype)
    for returns, forecast in zip(market.returns, market.forecast, strict=True):
        chosen = best_positions(held, forecast, market.covariance, parameters)
        traded = chosen - held
        cost = spread / 2 * traded.abs().sum(-1) + IMPACT * traded.square().sum(-1)
        cost = cost + borrowing * (-chosen).clamp_min(0.0).sum(-1)
        total += torch.log1p(chosen @ returns - cost)
        held = chosen
    return 100 * 250 * total / len(market.returns)


def main() -> None:
    """Sample, fit and store."""
    parser = argparse.ArgumentParser(description="Run the trading simulation and store its surrogate.")
    parser.add_argument("--out", type=Path, default=DATA)
    out = parser.parse_args().out
    engine = torch.quasirandom.SobolEngine(5, scramble=True, seed=0)
    x = engine.draw(SAMPLES, dtype=torch.float64).float().double()  # stored in single precision
    y = simulate(x, Market())
    print(f"{SAMPLES} runs, from {y.min():.2f} to {y.max():.2f} percent a year, mean {y.mean():.2f}")
    surrogate = fit_surrogate(x, y)
    save_surrogate(surrogate, out)
    residual = (surrogate(x) - y).std() / y.std()
    print(f"lengthscales {surrogate.lengthscale.tolist()}, residual {residual:.4f} of the standard deviation")
    print(f"wrote {out}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
