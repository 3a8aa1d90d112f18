"""The airfoil problem of [Hoang2024] for those who have its data: the self-noise readings of the UCI repository.

Wind-tunnel measurements of NACA 0012 blade sections [Brooks1989], 1503 rows in ``airfoil_self_noise.dat``. The file is
not shipped; it is read from the reader's disk.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from book.functions import posterior_mean_function
from cbo_lib.measure import Function

#: The inputs, in the order of the file; frequency and thickness are taken by their logarithms ([Hoang2024], App. C).
INPUTS = ("frequency (Hz)", "angle of attack (degrees)", "chord (m)", "velocity (m/s)", "thickness (m)")
LOGARITHMIC = [0, 4]


def load_airfoil(path: str | Path) -> tuple[Tensor, Tensor]:
    """Inputs in the unit box, ``n x 5``, and standardized sound levels, ``n``.

    Args:
        path: of a text file with six numbers a row between white space: the five ``INPUTS`` and the level in dB.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it does not hold six finite numbers a row, or an input that is not positive or does not vary.
    """
    try:
        table = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise ValueError(f"path must name a file of numbers, six a row, got {path} ({error})") from error
    right = table.shape[1] == 6 and len(table) > 1 and np.isfinite(table).all()
    right = right and (np.ptp(table, 0) > 0).all() and (table[:, LOGARITHMIC] > 0).all()
    if not right:
        expected = "six finite numbers a row that vary, frequencies and thicknesses positive"
        raise ValueError(f"path must name a file of {expected}, got {path} of shape {table.shape}")
    table[:, LOGARITHMIC] = np.log(table[:, LOGARITHMIC])
    inputs, levels = torch.from_numpy(table).split([5, 1], 1)
    low, high = inputs.aminmax(dim=0)
    return (inputs - low) / (high - low), ((levels - levels.mean()) / levels.std()).squeeze(1)


def airfoil_objective(inputs: Tensor, levels: Tensor) -> Function:
    """The posterior mean of BoTorch's ``SingleTaskGP``, fitted to what ``load_airfoil`` gives; some minutes for all."""
    model = SingleTaskGP(inputs, levels.unsqueeze(-1), outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    center, noise_std = model.mean_module.constant.detach(), float(model.likelihood.noise.detach().sqrt())
    kernel = model.covar_module.requires_grad_(False)
    mean = posterior_mean_function(kernel, inputs, levels - center, noise_std)
    return lambda x: center.to(x) + mean(x)
