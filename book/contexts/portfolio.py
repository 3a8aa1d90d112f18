"""The objective of the portfolio problem: a Gaussian process through the runs of a trading simulation.

The objective of [Huang2024] is the posterior mean of a Gaussian process on 3,000 runs of a simulation by
[Cakmak2020], whose data cannot be shipped. Ours passes through 3,000 runs of a small simulation of our own, which
``book/_tools/sample_portfolio.py`` describes and makes. Whoever has the original runs, or others, gives them to
``load_portfolio``.
"""

from __future__ import annotations

import io
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from book.contexts.quadrature import QuadratureDistribution
from book.files import write_atomically
from cbo_lib.measure import Function

#: The surrogate of our simulation.
DATA = Path(__file__).with_name("portfolio.npz")
_DECISIONS, _DIM = 3, 5


class Surrogate(torch.nn.Module):
    """The posterior mean of a Gaussian process with an RBF kernel, as a function of points ``... x 5``.

    ``mean + sum_i w_i exp(-|(z - z_i) / lengthscale|^2 / 2)`` with the weights of the posterior mean.

    Args:
        x: the centers ``z_i``, ``n x 5``.
        weights: ``w_i``, the kernel's variance included, ``n``.
        lengthscale: of each coordinate, ``5``.
        mean: the prior mean.
    """

    x: Tensor
    weights: Tensor
    lengthscale: Tensor
    mean: Tensor

    def __init__(self, x: Tensor, weights: Tensor, lengthscale: Tensor, mean: Tensor) -> None:
        super().__init__()
        for name, tensor in (("x", x), ("weights", weights), ("lengthscale", lengthscale), ("mean", mean)):
            self.register_buffer(name, tensor.detach())

    def forward(self, points: Tensor) -> Tensor:
        """The objective, ``...``, in percent a year."""
        return self.mean + _mix(points, self.x, self.lengthscale, self.weights)

    def expectation(self, distribution: QuadratureDistribution) -> Function:
        """``E f(x, c)`` as a function of decisions ``... x 3``, for contexts with independent marginals.

        The kernel is a product over coordinates. So the expectation is a sum over the centers again, whose weights
        hold the expected kernel of each context coordinate, a one-dimensional integral.
        """
        weights = self.weights
        for k in range(distribution.dim):
            c, mass = distribution.marginal_nodes(k)
            gap = (c - self.x[:, _DECISIONS + k, None]) / self.lengthscale[_DECISIONS + k]
            weights = weights * ((-0.5 * gap.square()).exp() @ mass)
        return _Expectation(self.x[:, :_DECISIONS], weights, self.lengthscale[:_DECISIONS], self.mean)


class _Expectation(Surrogate):
    """A surrogate of the decisions alone."""


def _mix(points: Tensor, centers: Tensor, lengthscale: Tensor, weights: Tensor) -> Tensor:
    flat, scaled = points.reshape(-1, points.shape[-1]) / lengthscale, centers / lengthscale
    square = scaled.square().sum(-1)
    # exp(-|a - b|^2 / 2) with the part of the centers in the weights, in slices, so that memory stays small.
    parts = []
    for part in flat.split(max(1, 2**23 // len(scaled))):
        gap = part @ scaled.mT - 0.5 * square - 0.5 * part.square().sum(-1, keepdim=True)
        parts.append(gap.exp() @ weights)
    return torch.cat(parts).reshape(points.shape[:-1])


def fit_surrogate(x: Tensor, y: Tensor, subset: int = 600, noise: float = 1e-4) -> Surrogate:
    """A Gaussian process through points and values.

    The lengthscales and the variance maximize the marginal likelihood of the first ``subset`` points, by BoTorch with
    its default priors; then the process is conditioned on all points.

    Args:
        x: points in the unit box, ``n x 5``, in random or quasirandom order.
        y: their values, ``n``.
        subset: how many points choose the hyperparameters. Default 600, some seconds.
        noise: the least variance of the noise, relative to that of ``y``. Default ``1e-4``.

    Raises:
        ValueError: if a shape is wrong, a number is not finite, or a point lies outside of the unit box.
    """
    if x.dim() != 2 or x.shape[-1] != _DIM or y.shape != x.shape[:1] or len(x) < 2:
        raise ValueError(f"x and y must have shapes (n, {_DIM}) and (n,), got {tuple(x.shape)} and {tuple(y.shape)}")
    if not bool(torch.isfinite(x).all()) or not bool(torch.isfinite(y).all()):
        raise ValueError("x and y must be finite, got a NaN or an infinity")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError(f"x must lie in the unit box, got values from {x.min().item():g} to {x.max().item():g}")
    if not bool(y.std() > 0):
        raise ValueError(f"y must vary, got {len(y)} times {y[0].item():g}")
    x, y = x.double(), y.double()
    model = SingleTaskGP(x[:subset], y[:subset, None], outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    model.eval()
    with torch.no_grad():
        level, scale = y.mean(), y.std()
        constant = model.mean_module.constant.double()
        kernel = model.covar_module(x).to_dense()
        variance = model.likelihood.noise.squeeze().clamp_min(noise)
        chol = torch.linalg.cholesky(kernel + variance * torch.eye(len(x), dtype=x.dtype))
        weights = torch.cholesky_solve(((y - level) / scale - constant).unsqueeze(-1), chol).squeeze(-1)
        lengthscale = model.covar_module.lengthscale.squeeze(0)
    return Surrogate(x, scale * weights, lengthscale, level + scale * constant)


def save_surrogate(surrogate: Surrogate, path: str | Path) -> None:
    """Write a surrogate as ``.npz``, the centers in single precision."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in surrogate.state_dict().items()}
    arrays["x"] = arrays["x"].astype(np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def load_portfolio(path: str | Path | None = None, device: torch.device | None = None) -> Surrogate:
    """The objective of the portfolio problem.

    Args:
        path: runs of a simulation, through which a Gaussian process is then fitted (some seconds):

            - the folder ``port_evals`` of [Cakmak2020]'s published code as it is: files ``port_n=100_seed=1`` to ``30``
              that ``torch.save`` wrote, each with ``X``, ``n x 1 x 5``, and ``Y``, ``n x 1 x 1``. The script beside
              them asks for ``negate=True``, so ``Y`` is minus the return, and its sign is turned here; or
            - ``.npz`` with the arrays ``x``, ``n x 5``, and ``y``, ``n``; or
            - ``.csv`` with six comma-separated columns and an optional line of names, the value last.

            The coordinates are risk aversion, trade aversion, holding cost multiplier, bid-ask spread and borrowing
            cost, each scaled to [0, 1] as by [Cakmak2020]; the value is a return, the larger the better. Default:
            our own simulation, stored with its fit.
        device: of the result. Default: the CPU.

    Raises:
        ValueError: if the file or folder has another form, or its content does not fit (see ``fit_surrogate``).
        FileNotFoundError: if there is no such file or folder.
    """
    path = DATA if path is None else Path(path)
    if path.is_dir():
        return _fitted(path, _read_folder(path), device)
    if path.suffix == ".csv":
        return _fitted(path, _read_csv(path), device)
    if path.suffix != ".npz":
        raise ValueError(f"path must end in .npz or .csv, got {path.name}")
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: torch.from_numpy(np.atleast_1d(content[name])).double() for name in content.files}
    except (ValueError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"path must be an .npz file of plain arrays, {path.name} is not: {error}") from error
    if {"x", "weights", "lengthscale", "mean"} <= arrays.keys():
        stored = Surrogate(arrays["x"], arrays["weights"], arrays["lengthscale"], arrays["mean"].squeeze(0))
        return stored.to(device)
    if not {"x", "y"} <= arrays.keys():
        raise ValueError(f"path must hold the arrays x and y, {path.name} holds {sorted(arrays)}")
    return _fitted(path, (arrays["x"], arrays["y"]), device)


def _read_folder(path: Path) -> tuple[Tensor, Tensor]:
    """The published runs: tensors alone, so that a file cannot run code of its own."""
    files = [file for file in path.glob("port_n=*_seed=*") if file.is_file()]
    if not files:
        raise ValueError(f"path must hold files port_n=..._seed=..., {path.name} has none")
    points, values = [], []
    for file in sorted(files, key=lambda file: (len(file.name), file.name)):  # 9 before 10
        try:
            runs = torch.load(file, map_location="cpu", weights_only=True)
            x, y = runs["X"].double(), runs["Y"].double()
        except (UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"path must hold files with tensors X and Y, {file.name} does not") from error
        if x.shape[1:] != (1, _DIM) or y.shape != (len(x), 1, 1):
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"X and Y must have shapes (n, 1, {_DIM}) and (n, 1, 1), {file.name} has {shapes}")
        points.append(x.squeeze(1))
        values.append(-y.flatten())
    return torch.cat(points), torch.cat(values)


def _read_csv(path: Path) -> tuple[Tensor, Tensor]:
    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
    try:
        [float(cell) for cell in first.split(",")]
        skipped = 0
    except ValueError:
        skipped = 1
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=skipped, ndmin=2)
    except ValueError as error:
        raise ValueError(f"path must hold a table of numbers, {path.name} does not: {error}") from error
    if table.shape[1] != _DIM + 1:
        raise ValueError(f"path must hold {_DIM + 1} columns, {path.name} holds {table.shape[1]}")
    return torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])


def _fitted(path: Path, data: tuple[Tensor, Tensor], device: torch.device | None) -> Surrogate:
    try:
        return fit_surrogate(*data).to(device)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
