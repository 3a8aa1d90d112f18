"""Airfoil self-noise: the semi-empirical model behind the airfoil problem, and the data set for those who have it.

The problem of [Hoang2024] is built on the airfoil self-noise data of the UCI Machine Learning Repository: wind-tunnel
measurements of NACA 0012 blade sections [Brooks1989]. The same report fits a model to the measurements. Here the model
takes the place of the data, which are not shipped; ``load_airfoil`` reads them from the reader's disk.

The data set's sound level is the report's *scaled* one-third-octave level: the level less
``10 log10(M^5 delta* L / r^2)``, with the Mach number M, the suction-side displacement thickness delta*, the span L and
the distance r. Directivity is 1 for an observer above the trailing edge. The model follows the data set in two more
points. The boundary layers are tripped, so that laminar vortex shedding makes no noise; the report's formulas for them
give the data set's thicknesses to the last digit. And the thickness of the suction side is an input of its own,
although in the tunnel it follows from angle, chord and velocity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel
from scipy.optimize import minimize
from torch import Tensor

from book.functions import posterior_mean_function
from cbo_lib.measure import Function

#: The inputs, in the order of the data set, and their smallest and largest values there.
INPUTS = ("frequency (Hz)", "angle of attack (degrees)", "chord (m)", "velocity (m/s)", "thickness (m)")
RANGES = ((200.0, 0.0, 0.0254, 31.7, 0.000400682), (20000.0, 22.2, 0.3048, 71.3, 0.0584113))
#: Frequency and thickness are taken by their logarithms ([Hoang2024], Appendix C).
LOGARITHMIC = (0, 4)
#: Level of the tunnel, dB, which is added to the model; the quietest reading of the data set is 103.38 dB.
BACKGROUND = 100.0
#: What ``fit_airfoil(sample_airfoil())`` found, rounded: one lengthscale an input, and the noise.
LENGTHSCALES, NOISE_STD = (0.32, 0.19, 1.3, 1.9, 0.32), 0.17
#: The same for the public data file, and the best values of the problem's seven control sets by variance of the free
#: variables, ``problems.airfoil("cheap", variance, data=load_airfoil(path)).best_values``.
MEASURED_LENGTHSCALES, MEASURED_NOISE_STD = (0.11, 0.21, 0.12, 0.72, 0.21), 0.10
MEASURED = {
    0.02: (5.454, 5.816, 6.112, 6.264, 6.190, 6.648, 6.364),
    0.04: (5.295, 5.568, 5.879, 5.789, 5.623, 6.323, 5.758),
}

#: Speed of sound (m/s) and kinematic viscosity of air (m^2/s), as in the report's computer code.
SPEED_OF_SOUND, VISCOSITY = 340.46, 1.4529e-5

# How many rows ``fit_airfoil`` begins with.
_FIRST = 500

_Shape = Callable[[Tensor], Tensor]
# The natural logarithm of a power ratio of 1 dB.
_NEPER = math.log(10) / 10


@dataclass(frozen=True)
class AirfoilData:
    """Sound levels at some conditions.

    Args:
        inputs: ``n x 5`` in the units and order of ``INPUTS``.
        levels: scaled one-third-octave sound levels, ``n``, dB.
        ranges: what is mapped to the unit box, ``2 x 5``, smallest values first.
    """

    inputs: Tensor
    levels: Tensor
    ranges: Tensor

    def to(self, like: Tensor) -> AirfoilData:
        """The same data in the dtype and on the device of another tensor."""
        return AirfoilData(self.inputs.to(like), self.levels.to(like), self.ranges.to(like))

    @property
    def unit(self) -> Tensor:
        """The inputs in the unit box, ``n x 5``: logarithms of frequency and thickness, then min-max scaling."""
        low, high = _logarithms(self.ranges)
        return (_logarithms(self.inputs) - low) / (high - low)

    @property
    def standardized(self) -> Tensor:
        """The levels less their mean, over their standard deviation, ``n``."""
        return (self.levels - self.levels.mean()) / self.levels.std()


def sample_airfoil(count: int = 512, dtype: torch.dtype = torch.float64) -> AirfoilData:
    """The model at the first points of a fixed scrambled Sobol sequence over ``RANGES``.

    Away from the conditions of the tunnel the model's level falls without end, where a microphone would hear the
    tunnel; ``BACKGROUND`` is added to its power.

    Args:
        count: how many, at least 2; a power of two is best. Default 512.
        dtype: of the data.
    """
    if count < 2:
        raise ValueError(f"count must be at least 2, got {count}")
    ranges = torch.tensor(RANGES, dtype=dtype)
    low, high = _logarithms(ranges)
    unit = torch.quasirandom.SobolEngine(5, scramble=True, seed=0).draw(count, dtype=dtype)
    inputs = torch.lerp(low, high, unit)
    inputs = torch.stack([c.exp() if k in LOGARITHMIC else c for k, c in enumerate(inputs.unbind(-1))], -1)
    level = scaled_sound_level(*inputs.unbind(-1))
    return AirfoilData(inputs, torch.logaddexp(level * _NEPER, level.new_tensor(BACKGROUND * _NEPER)) / _NEPER, ranges)


def load_airfoil(path: str | Path, dtype: torch.dtype = torch.float64) -> AirfoilData:
    """The airfoil self-noise data set from a file of the UCI repository (``airfoil_self_noise.dat``).

    Args:
        path: of a text file with six numbers a row between white space: the five ``INPUTS`` and the sound level in dB.
            The data set has 1503 rows.
        dtype: of the data.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no text, a row does not hold six finite numbers, there are fewer than two rows, an input is
            the same in all of them, or a frequency or thickness is not positive.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"path must name a file of numbers as text, got {path}, which is none") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = [float(word) for word in line.split()]
        except ValueError as error:
            raise ValueError(f"path must name a file of numbers, got {line!r} in line {number} of {path}") from error
        if len(row) not in (0, 6) or not all(math.isfinite(x) for x in row):
            raise ValueError(
                f"path must name a file of six finite numbers a row, got {line!r} in line {number} of {path}"
            )
        if row:
            rows.append(row)
    if len(rows) < 2:
        raise ValueError(f"path must name a file of two or more rows, got {len(rows)} in {path}")
    data = torch.tensor(rows, dtype=torch.float64).to(dtype)
    ranges = torch.stack([data[:, :5].amin(0), data[:, :5].amax(0)])
    if not bool((ranges[0] < ranges[1]).all()):
        raise ValueError(f"path must name a file in which every input varies, got ranges {ranges.tolist()} in {path}")
    if not bool((ranges[0, list(LOGARITHMIC)] > 0).all()):
        raise ValueError(f"path must name a file with positive frequencies and thicknesses, got {ranges[0].tolist()}")
    return AirfoilData(data[:, :5], data[:, 5], ranges)


def fit_airfoil(data: AirfoilData) -> tuple[tuple[float, ...], float]:
    """Lengthscales and noise of BoTorch's default ``SingleTaskGP``, as [Hoang2024] fits its objective.

    That model has a squared exponential kernel of variance 1, a constant mean and log-normal priors for lengthscales
    and noise. Its posterior density is maximized here with a gradient in closed form, of every few rows first, about
    ``500``, and from there of all: the 1503 rows of the data set take a few seconds.

    Returns:
        One lengthscale an input, in units of the box, and the standard deviation of the noise.
    """
    x, y = data.unit.double(), data.standardized.double()
    dim = x.shape[-1]
    model = SingleTaskGP(x[:2], y[:2].unsqueeze(-1))  # for its priors and limits
    kernel, noise = model.covar_module, model.likelihood.noise_covar
    constraints = [kernel.raw_lengthscale_constraint] * dim + [noise.raw_noise_constraint]
    priors = [(kernel.lengthscale_prior.loc, kernel.lengthscale_prior.scale)] * dim
    priors.append((noise.noise_prior.loc, noise.noise_prior.scale))
    center, spread = (torch.stack([torch.as_tensor(row[k]).double().squeeze() for row in priors]) for k in (0, 1))

    def loss(parameters: Any, x: Tensor, y: Tensor) -> tuple[float, Any]:
        """Minus the log of the density at log lengthscales, log noise variance and mean, and its gradient."""
        theta = torch.as_tensor(parameters, dtype=torch.float64)
        logs, shift = theta[:-1], theta[-1]
        squares = ((x.unsqueeze(1) - x) / logs[:-1].exp()).square()  # n x n x d
        smooth = (-squares.sum(-1) / 2).exp()
        factor = torch.linalg.cholesky(smooth + logs[-1].exp() * torch.eye(len(x)).to(x))
        inverse = torch.cholesky_inverse(factor)
        solved = inverse @ (y - shift)
        prior = (logs + ((logs - center) / spread).square() / 2).sum()
        value = (y - shift) @ solved / 2 + factor.diagonal().log().sum() + prior
        slope = (inverse - torch.outer(solved, solved)) / 2
        own = torch.cat([torch.einsum("ij,ijk->k", slope * smooth, squares), slope.trace()[None] * logs[-1].exp()])
        return float(value), torch.cat([own + 1 + (logs - center) / spread.square(), -solved.sum()[None]]).numpy()

    found: Any = [*(center - spread.square()).clamp_min(-1.0).tolist(), 0.0]
    limits = [(math.log(float(c.lower_bound)), math.log(100.0)) for c in constraints] + [(-10.0, 10.0)]
    for step in sorted({max(1, math.ceil(len(y) / _FIRST)), 1}, reverse=True):
        found = minimize(loss, found, (x[::step], y[::step]), jac=True, bounds=limits, options={"ftol": 1e-10}).x
    return tuple(math.exp(v) for v in found[:dim]), math.exp(found[dim] / 2)


def airfoil_objective(
    data: AirfoilData, lengthscales: tuple[float, ...] = LENGTHSCALES, noise_std: float = NOISE_STD
) -> Function:
    """The posterior mean of the standardized sound level on the unit box, ``... x 5`` to ``...``.

    Args:
        data: measured or sampled levels.
        lengthscales: of an RBF kernel of variance 1, one an input. Default: those of the sampled model.
        noise_std: of the standardized levels.
    """
    kernel = RBFKernel(ard_num_dims=5).to(data.levels)
    kernel.lengthscale = torch.tensor(lengthscales, dtype=data.levels.dtype, device=data.levels.device)
    return posterior_mean_function(kernel.requires_grad_(False), data.unit, data.standardized, noise_std)


def _logarithms(inputs: Tensor) -> Tensor:
    """Inputs ``... x 5`` with the logarithms of frequency and thickness."""
    return torch.stack([c.log() if k in LOGARITHMIC else c for k, c in enumerate(inputs.unbind(-1))], -1)


def displacement_thickness(angle: Tensor, chord: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Displacement thicknesses at the trailing edge under tripped boundary layers ([Brooks1989], eqs. 3, 9, 12).

    Args:
        angle: of attack, degrees, 0 to 25.
        chord: m.
        velocity: of the free stream, m/s.

    Returns:
        The thickness of the pressure side and of the suction side, m.
    """
    reynolds = (chord * velocity / VISCOSITY).log10()
    slow = 0.0601 * 10 ** (-0.114 * reynolds)
    fast = 10 ** (3.411 - 1.5397 * reynolds + 0.1059 * reynolds.square())
    flat = chord * torch.where(reynolds <= math.log10(0.3e6), slow, fast)
    pressure = 10 ** (-0.0432 * angle + 0.00113 * angle.square())
    attached, separating, stalled = 0.0679 * angle, 0.1516 * angle, 0.0258 * angle
    suction = torch.where(
        angle <= 5, 10**attached, torch.where(angle <= 12.5, 0.381 * 10**separating, 14.296 * 10**stalled)
    )
    return flat * pressure, flat * suction


def scaled_sound_level(frequency: Tensor, angle: Tensor, chord: Tensor, velocity: Tensor, thickness: Tensor) -> Tensor:
    """Scaled one-third-octave level of trailing-edge and separation noise, dB ([Brooks1989], section 5.1.2).

    The sum of the powers of three sources: the turbulent boundary layers of the pressure side and of the suction side,
    and the separated flow of the suction side. Beyond a limit angle the separated flow is the only one.

    Args:
        frequency: center of the band, Hz.
        angle: of attack, degrees.
        chord: m.
        velocity: of the free stream, m/s.
        thickness: displacement thickness of the suction side, m. That of the pressure side follows from the others.
    """
    mach, reynolds = velocity / SPEED_OF_SOUND, chord * velocity / VISCOSITY
    pressure_side = displacement_thickness(angle, chord, velocity)[0]
    strouhal_p, strouhal_s = frequency * pressure_side / velocity, frequency * thickness / velocity
    peak = 0.02 * mach**-0.6  # eq. 31
    shift = 10 ** (0.0054 * (angle - 1.33).square())
    peak_alpha = peak * torch.where(angle < 1.33, 1.0, torch.where(angle <= 12.5, shift, 4.72))  # eq. 34
    peak_s = (peak + peak_alpha) / 2  # eq. 33

    k1 = _amplitude(reynolds)
    reynolds_p = velocity * pressure_side / VISCOSITY
    delta_k1 = torch.where(reynolds_p <= 5000, angle * (1.43 * reynolds_p.log10() - 5.29), 0.0)  # eq. 48
    k2 = k1 + _separation(angle, mach)
    pressure = _spectrum_a(strouhal_p / peak, reynolds) + k1 - 3 + delta_k1 + 10 * (pressure_side / thickness).log10()
    suction = _spectrum_a(strouhal_s / peak_s, reynolds) + k1 - 3
    separated = _spectrum_b(strouhal_s / peak_alpha, reynolds) + k2
    stalled = _spectrum_a(strouhal_s / peak_alpha, 3 * reynolds) + k2  # eq. 30
    attached = (torch.stack([pressure, suction, separated]) * _NEPER).logsumexp(0) / _NEPER
    limit = (23.43 * mach + 4.651).clamp(max=12.5)
    return torch.where(angle <= limit, attached, stalled)


def _amplitude(reynolds: Tensor) -> Tensor:
    """K1, dB ([Brooks1989], eq. 47)."""
    log = reynolds.log10()
    return torch.where(
        reynolds < 2.47e5,
        156.3 - 4.31 * log,
        torch.where(reynolds <= 8e5, 181.6 - 9.0 * log, torch.full_like(log, 128.5)),
    )


def _separation(angle: Tensor, mach: Tensor) -> Tensor:
    """K2 - K1, dB ([Brooks1989], eqs. 49 and 50).

    Past the top of its ellipse the report's formula falls below the -12 dB that it states for larger angles, and jumps
    there; here the two are joined where they meet.
    """
    width, center = 27.094 * mach + 3.31, 23.43 * mach + 4.651
    height, base = 72.65 * mach + 10.74, -34.19 * mach - 13.82
    inside = (1 - ((angle - center) / width).square()).clamp(min=0)
    ellipse = height * inside.sqrt() + base
    return torch.where(angle < center - width, -1000.0, torch.where(angle > center, ellipse.clamp(min=-12), ellipse))


def _spectrum_a(ratio: Tensor, reynolds: Tensor) -> Tensor:
    """The spectral shape A of a Strouhal number over its peak, dB ([Brooks1989], eqs. 35 to 40)."""
    low = (reynolds - 8.57e5).square() * -9.57e-13 + 1.13
    middle = torch.where(reynolds < 9.52e4, 0.57, torch.where(reynolds <= 8.57e5, low, 1.13))
    return _interpolate(_a_min, _a_max, ratio.log10().abs(), middle)


def _spectrum_b(ratio: Tensor, reynolds: Tensor) -> Tensor:
    """The spectral shape B of a Strouhal number over its peak, dB ([Brooks1989], eqs. 41 to 46)."""
    low = (reynolds - 8.57e5).square() * -4.48e-13 + 0.56
    middle = torch.where(reynolds < 9.52e4, 0.30, torch.where(reynolds <= 8.57e5, low, 0.56))
    return _interpolate(_b_min, _b_max, ratio.log10().abs(), middle)


def _interpolate(lower: _Shape, upper: _Shape, a: Tensor, middle: Tensor) -> Tensor:
    """Between two shapes so that the level at ``middle`` is -20 dB, as eqs. 39, 40, 45 and 46 do."""
    share = (-20 - lower(middle)) / (upper(middle) - lower(middle))
    return lower(a) + share * (upper(a) - lower(a))


def _cubic(a: Tensor, c3: float, c2: float, c1: float, c0: float) -> Tensor:
    return ((c3 * a + c2) * a + c1) * a + c0


def _cap(a: Tensor, radius: float, center: float) -> Tensor:
    """The top of a spectrum; the clamp keeps gradients finite where another piece is taken."""
    return (radius - 886.788 * a.square()).clamp(min=1e-6).sqrt() - center


def _a_min(a: Tensor) -> Tensor:
    flank = torch.where(a <= 0.244, 3.981 - 32.665 * a, _cubic(a, -142.795, 103.656, -57.757, 6.006))
    return torch.where(a < 0.204, _cap(a, 67.552, 8.219), flank)


def _a_max(a: Tensor) -> Tensor:
    flank = torch.where(a <= 0.321, 1.098 - 15.901 * a, _cubic(a, -4.669, 3.491, -16.699, 1.149))
    return torch.where(a < 0.13, _cap(a, 67.552, 8.219), flank)


def _b_min(b: Tensor) -> Tensor:
    flank = torch.where(b <= 0.145, 8.138 - 83.607 * b, _cubic(b, -817.810, 355.210, -135.024, 10.619))
    return torch.where(b < 0.13, _cap(b, 16.888, 4.109), flank)


def _b_max(b: Tensor) -> Tensor:
    flank = torch.where(b <= 0.187, 1.854 - 31.330 * b, _cubic(b, -80.541, 44.174, -39.381, 2.344))
    return torch.where(b < 0.10, _cap(b, 16.888, 4.109), flank)
