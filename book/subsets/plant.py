"""How a small plant grows on four nutrients and a pH: a mechanistic model of our own.

The plant problem of [Hoang2024] is built on private data: the largest leaf area of Marchantia plants, depending on
calcium, boron, ammonia, potassium and pH. This model takes their place. Its pieces are textbook ones, its numbers are
chosen by us for round optima inside the ranges and fitted to no data; nothing here says how Marchantia grows.

* Each nutrient is short at a small supply and toxic at a large one: Haldane's law ``s / (k + s + s^2 / i)``, here over
  its maximum at ``s = sqrt(k i)``.
* The scarcest factor decides, Liebig's law of the minimum; a smooth minimum takes its place.
* Too sour and too alkaline media inhibit growth: Michaelis's pH function, over its maximum.
* Potassium relieves the toxicity of ammonium: its inhibition constant grows with the supply of potassium.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The inputs in the paper's order, and the ends of their ranges.
INPUTS = ("calcium (mM)", "boron (uM)", "ammonia (mM)", "potassium (mM)", "pH")
RANGES = ((0.1, 1.0, 0.1, 0.5, 4.0), (6.0, 100.0, 12.0, 25.0, 8.0))
# Of the first four: half-saturation and inhibition constants, in their units.
_HALF, _INHIBITION = (0.8, 8.0, 1.2, 4.0), (12.0, 70.0, 6.0, 60.0)
# Potassium at which the inhibition constant of ammonia has doubled, mM.
_RELIEF = 15.0
# The pH below and above which growth is halved by protons or their lack.
_SOUR, _ALKALINE = 4.8, 6.9
# The larger, the nearer to the minimum.
_SHARPNESS = 6.0


def plant_growth(x: Tensor) -> Tensor:
    """Relative leaf area, from 0 to 1, at points ``... x 5`` of the unit box (min-max scaled ``RANGES``), ``...``."""
    low, high = x.new_tensor(RANGES)
    supply, ph = torch.lerp(low, high, x).split([4, 1], -1)
    half, inhibition = x.new_tensor(_HALF), x.new_tensor(_INHIBITION)
    relief = 1 + supply[..., 3] / _RELIEF
    inhibition = torch.stack([i * relief if k == 2 else i.expand_as(relief) for k, i in enumerate(inhibition)], -1)
    best = 1 + 2 * (half / inhibition).sqrt()
    factors = supply * best / (half + supply + supply.square() / inhibition)
    minimum = factors.pow(-_SHARPNESS).mean(-1).pow(-1 / _SHARPNESS)
    return minimum * _ph_window(ph.squeeze(-1))


def _ph_window(ph: Tensor) -> Tensor:
    """Growth at a pH over that at the best pH, midway between the two limits."""
    best = 1 + 2 * 10 ** ((_SOUR - _ALKALINE) / 2)
    return best / (1 + 10 ** (_SOUR - ph) + 10 ** (ph - _ALKALINE))
