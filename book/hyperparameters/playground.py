"""HE-GP-UCB in the published page, without a kernel: readers set the truth's lengthscale, and the page runs it again.

``hegpucb.js`` computes and draws. What it needs stands in the page as JSON: the waves of one draw, which a slider
stretches, and the normals of the noise. Where no script runs, the page shows one round, which is computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from book import figures
from book.steppers import embed
from cbo_lib.confidence import noise_threshold
from cbo_lib.hyperparameters import HEGPUCB, Candidates, Space
from cbo_lib.kernels import rbf_kernel

#: The two candidates, by their lengthscales.
NAMES, LENGTHSCALES = ("short", "long"), (0.1, 0.4)
#: What the sliders offer: the lengthscale of the truth, and the multiplier of the deviation.
TRUTHS = [float(f"{0.05 * 16 ** (k / 24):.2g}") for k in range(25)]
MULTIPLIERS = [round(1 + k / 4, 2) for k in range(17)]
ROUNDS, POINTS, NOISE, FAILURE, WAVES, SEED = 30, 101, 0.1, 0.1, 60, 3
#: Of the values that are drawn.
LIMITS = (-4, 5)


@dataclass(frozen=True)
class Round:
    """One round of HE-GP-UCB.

    Attributes:
        mean, width: of each candidate at every point before the answer, ``2 x n``.
        alive: which are left before the round.
        followed: whose upper bound is followed.
        at: index of the point that is asked.
        answer: what is seen there.
        errors, allowed: both sides of line 12 for the one that was followed.
        dropped: whether it is dropped.
        regret: of this round.
    """

    mean: np.ndarray
    width: np.ndarray
    alive: list[bool]
    followed: int
    at: int
    answer: float
    errors: float
    allowed: float
    dropped: bool
    regret: float


def settings() -> dict[str, Any]:
    """What ``hegpucb.js`` runs with; the frequencies are normal, the phases uniform: features of the kernel."""
    random = np.random.default_rng(SEED)
    frequencies, phases = random.standard_normal(WAVES), random.uniform(0, 2 * math.pi, WAVES)
    return {
        "names": NAMES,
        "lengthscales": LENGTHSCALES,
        "frequencies": frequencies.round(3).tolist(),
        "phases": phases.round(3).tolist(),
        "normals": random.standard_normal(ROUNDS).round(3).tolist(),
        "noise": NOISE,
        "failure": FAILURE,
        "points": POINTS,
    }


def curve(given: dict[str, Any], lengthscale: float) -> np.ndarray:
    """The truth at the points: one sum of waves, an approximate draw of a prior, stretched to a lengthscale."""
    x = (np.linspace(0, 1, given["points"]) - 0.5) / lengthscale
    waves = np.cos(np.multiply.outer(x, given["frequencies"]) + given["phases"])
    return math.sqrt(2 / len(given["phases"])) * waves.sum(-1)


def rounds(given: dict[str, Any], lengthscale: float, multiplier: float, count: int) -> list[Round]:
    """The first rounds of HE-GP-UCB ([Ziomek2024], Algorithm 1), as ``hegpucb.js`` runs it, with the library's class.

    Args:
        given: the ``settings``.
        lengthscale: of the truth.
        multiplier: of the deviation, in every round.
        count: how many rounds.
    """
    points = torch.linspace(0, 1, given["points"], dtype=torch.float64)[:, None]
    candidates = Candidates(given["names"], tuple(rbf_kernel(one, 1.0) for one in given["lengthscales"]))
    policy: Any = HEGPUCB(
        Space(candidates, points=points, noise_std=given["noise"]), sqrt_beta=multiplier, failure=given["failure"],
        seeds=[0],
    )  # fmt: skip
    f, found = curve(given, lengthscale), []
    for t in range(1, count + 1):
        mean, std = (part[0].numpy() for part in policy.belief.moments())
        alive = policy.alive[0].tolist()
        x = policy.ask()
        u, at = int(policy.candidate), round(float(x) * (given["points"] - 1))
        answer = float(f[at] + given["noise"] * given["normals"][t - 1])
        policy.tell(x, torch.tensor([answer], dtype=torch.float64))
        xi = float(noise_threshold(t, given["noise"], len(candidates), given["failure"]))
        allowed = math.sqrt(xi * float(policy.rounds[0, u])) + float(policy.widths[0, u])
        errors, dropped = float(policy.errors[0, u]), alive[u] and not bool(policy.alive[0, u])
        regret = float(f.max() - f[at])
        found.append(Round(mean, multiplier * std, alive, u, at, answer, errors, allowed, dropped, regret))
    return found


def said(now: Round, t: int) -> str:
    """What a round did, in words; ``hegpucb.js`` says the same."""
    verdict = f"{abs(now.errors):.2f} {'>' if abs(now.errors) > now.allowed else '≤'} {now.allowed:.2f}"
    after = "is dropped" if now.dropped else "stays"
    return f"round {t}: {NAMES[now.followed]} is followed, sum of errors {verdict}, it {after}; regret {now.regret:.2f}"


def picture(given: dict[str, Any], lengthscale: float, made: list[Round]) -> Figure:
    """The last of some rounds as ``hegpucb.js`` draws it."""
    now, x = made[-1], np.linspace(0, 1, given["points"])
    figure, axes = figures.subplots(2, 1, figsize=(7.2, 5), height_ratios=(4, 1))
    above, below = axes[:, 0]
    for u in range(2):
        if now.alive[u]:
            strong, color = u == now.followed, figures.COLORS[u]
            low, high = (np.clip(now.mean[u] + sign * now.width[u], *LIMITS) for sign in (-1, 1))
            above.fill_between(x, low, high, color=color, alpha=0.3 if strong else 0.12, linewidth=0)
            above.plot(x, now.mean[u] + now.width[u], color=color, linewidth=2.4 if strong else 1)
    above.plot(x, curve(given, lengthscale), "--", color="black", linewidth=1.2)
    above.plot([x[one.at] for one in made[:-1]], [one.answer for one in made[:-1]], "o", color="black", markersize=4)
    above.plot(x[now.at], now.answer, "D", color="black", markersize=7)
    above.set(xlim=(0, 1), ylim=LIMITS, xlabel="x", ylabel="f (units of f)")
    for t, one in enumerate(made, start=1):
        below.plot(t, 1 - one.followed, "x" if one.dropped else "o", color=figures.COLORS[one.followed], markersize=6)
    below.set(xlim=(0.3, ROUNDS + 0.7), ylim=(-0.6, 1.6), xlabel="round (a cross: dropped)")
    below.set_yticks([1, 0], NAMES)
    figure.legend(
        [
            *(Patch(facecolor=figures.COLORS[u], alpha=0.3) for u in range(2)),
            Line2D([], [], color="black", linestyle="--"),
            Line2D([], [], color="black", marker="o", linestyle=""),
            Line2D([], [], color="black", marker="D", linestyle=""),
        ],
        [*(f"band of {name}, ℓ = {one:g}" for name, one in zip(NAMES, LENGTHSCALES, strict=True)), "f", "seen", "now"],
        loc="outside lower center",
        ncols=3,
        fontsize="small",
    )
    return figure


def hegpucb_playground(
    lengthscale: float = 0.1, multiplier: float = 2.0, start: int = 2, caption: str = "", name: str = ""
) -> HTML:
    """HE-GP-UCB with a short and a long candidate; readers set the truth's lengthscale, the multiplier and the round.

    Args:
        lengthscale: of the truth at first, one of ``TRUTHS``.
        multiplier: of the deviation at first, one of ``MULTIPLIERS``.
        start: the round that is shown at first, from 1; where no script runs it stays.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.

    Raises:
        ValueError: for a value that the sliders do not have.
    """
    if lengthscale not in TRUTHS or multiplier not in MULTIPLIERS or not 1 <= start <= ROUNDS:
        known = f"{lengthscale}, {multiplier} and {start}"
        raise ValueError(f"lengthscale, multiplier and start must be values of the sliders, got {known}")
    given = settings()
    made = rounds(given, lengthscale, multiplier, start)
    alt = (
        f"Two bands around f, whose lengthscale is {lengthscale:g}, with the multiplier {multiplier:g}, and below who "
        f"was followed in each round. {said(made[-1], start)}."
    )
    data = {"kind": "hegpucb", **given, "truths": TRUTHS, "multipliers": MULTIPLIERS, "limits": LIMITS, "start": start}
    data |= {"start_truth": TRUTHS.index(lengthscale), "start_multiplier": MULTIPLIERS.index(multiplier), "ms": 700}
    note = f"Round {start} of {ROUNDS}. The other rounds and the two sliders need JavaScript."
    still = str(figures.show(picture(given, lengthscale, made), alt).data)
    return embed(data, still, note, "cbo-stepper cbo-answer", caption, name)
