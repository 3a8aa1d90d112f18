"""The reward curves of the paper on aggregated feedback, as problems."""

from __future__ import annotations

from typing import Literal

import torch

from book.aggregated.problem import CellProblem
from book.functions import posterior_mean_function
from cbo_lib.aggregated.space import Space
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Function

Curve = Literal["peaks", "periodic", "spike"]
#: Lengthscale of each reward curve, which the policies know ([Zhang2022], Appendix E).
LENGTHSCALES = {"peaks": 0.05, "periodic": 0.05, "spike": 0.01}
VARIANCE = 0.1
#: The box of all reward curves.
UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def aggregated_reward_curve(
    name: Curve, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Function:
    """A reward curve on [0, 1] from [Zhang2022], Appendix E.

    Each is the posterior mean of a Gaussian process (RBF kernel, variance 0.1, noise standard deviation 0.005) given
    the points that the appendix lists.

    Args:
        name: ``"peaks"``, three similar maxima (Figure 4, left; lengthscale 0.05); ``"periodic"``, a ripple and one
            peak (Figure 4, right; lengthscale 0.05); ``"spike"``, the ripple with a narrow spike (Figure 5;
            lengthscale 0.01).
        dtype: of the points that the curve takes.
        device: where the curve is evaluated. Default: the CPU.

    Raises:
        ValueError: for another name.
    """
    return posterior_mean_curve(name, LENGTHSCALES.get(name, 0.05), 0.005, dtype=dtype, device=device)


def posterior_mean_curve(
    name: Curve,
    lengthscale: float,
    noise_std: float,
    regions: int = 10,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Function:
    """A curve through the points of [Zhang2022], Appendix E, made by another kernel or noise than the text's.

    Args:
        name: see ``aggregated_reward_curve``.
        lengthscale: of the kernel that makes it.
        noise_std: with which it is conditioned on its points.
        regions: how many regions of [0, 0.9] the ripple has.
        dtype: of the points that the curve takes.
        device: where the curve is evaluated. Default: the CPU.

    Raises:
        ValueError: for another name.
    """
    size = 0.9 / regions
    centers = (torch.arange(regions, dtype=dtype, device=device) + 0.5) * size
    ripple_x = torch.stack([centers, centers + size * 2 / 3], -1).flatten()
    ripple_y = torch.tensor([0.1, 0.2], dtype=dtype, device=device).repeat(regions)
    if name == "peaks":
        x, y = [0.05, 0.2, 0.4, 0.65, 0.9], [0.85, 0.1, 0.87, 0.05, 0.98]
        ripple_x, ripple_y = ripple_x[:0], ripple_y[:0]
    elif name == "periodic":
        x, y = [0.95], [0.9]
    elif name == "spike":
        x, y = [0.95, 0.94, 0.945], [0.9, 0.1, 0.2]
    else:
        raise ValueError(f"name must be 'peaks', 'periodic' or 'spike', got {name!r}")
    points = torch.cat([ripple_x, torch.tensor(x, dtype=dtype, device=device)]).unsqueeze(-1)
    values = torch.cat([ripple_y, torch.tensor(y, dtype=dtype, device=device)])
    kernel = rbf_kernel(lengthscale, VARIANCE, dtype).to(points)
    return posterior_mean_function(kernel, points, values, noise_std)


def curve_problem(curve: Curve, points_per_cell: int = 10, branching: int = 2, noise_std: float = 0.1) -> CellProblem:
    """One of the paper's reward curves as a problem, with its noise of 0.1."""
    return CellProblem(Space(UNIT, branching, points_per_cell), aggregated_reward_curve(curve), noise_std)


def prior(curve: Curve, noise_std: float = 0.1) -> GaussianProcess:
    """The prior of a reward curve, with the noise of the observations."""
    return GaussianProcess(rbf_kernel(LENGTHSCALES[curve], VARIANCE), noise_std)
