"""One choice of Algorithm 1 in the published page, without a kernel: readers set alpha and the prices.

``choice.js`` computes and draws. What it needs stands in the page as JSON: bounds and plays of one run in the garden.
Where no script runs, the page shows one choice, which is computed here.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from IPython.display import HTML
from matplotlib.figure import Figure

from book import figures
from book.steppers import embed
from book.subsets import regret
from book.subsets.drawing import named
from book.subsets.garden import COSTS, garden, prior
from cbo_lib.subsets import CheapestGoodSubset

#: Rounds of exploration, plays in all, and what is given up, at first.
TAU, PLAYS, ALPHA = 12, 110, 0.1


@cache
def settings() -> dict[str, Any]:
    """What ``choice.js`` chooses from: the bounds before every tenth play of the exploitation of one run."""
    problem = garden(1e6)
    policy = CheapestGoodSubset(problem.space, prior=prior(), alpha=ALPHA, rounds=TAU, horizon=PLAYS)
    run = regret.walk(problem, policy, PLAYS, [0])
    states = []
    for t in range(problem.space.m * TAU, PLAYS, 10):
        upper, lower, plays = (run[name][0, t] for name in ("upper", "lower", "plays"))
        state = {"t": t, "upper": [round(u, 3) for u in upper.tolist()], "lower": round(float(lower), 3)}
        states.append(state | {"plays": plays.tolist()})
    return {"names": named(problem), "prices": list(COSTS), "horizon": PLAYS, "states": states, "alpha": ALPHA}


def choose(state: dict[str, Any], T: int, prices: list[float], alpha: float) -> tuple[list[bool], list[float], int]:
    """``S_1``, cost bounds and the set that is played ([Hoang2024], Algorithm 1), as ``choice.js`` has them."""
    upper = state["upper"]
    good = [u > (1 - alpha) * state["lower"] for u in upper]  # line 16
    bound = [
        max(c - math.sqrt(2 * math.log(T) / n), 0) for c, n in zip(prices, state["plays"], strict=True)
    ]  # 22 to 24
    least = min(b for b, ok in zip(bound, good, strict=True) if ok)
    tied = [i for i, ok in enumerate(good) if ok and bound[i] <= least + 1e-12]  # line 25
    return good, bound, max(tied, key=lambda i: (round(upper[i], 9), -i))  # line 26


def picture(given: dict[str, Any], place: int) -> Figure:
    """One choice as ``choice.js`` draws it."""
    state = given["states"][place]
    good, bound, chosen = choose(state, given["horizon"], given["prices"], given["alpha"])
    rows = np.arange(len(good))
    colors = [figures.COLORS[1] if i == chosen else figures.COLORS[0] if ok else "0.7" for i, ok in enumerate(good)]
    figure, axes = figures.subplots(2, 1, figsize=(7.2, 5), sharex=True)
    above, below = axes[:, 0]
    above.bar(rows, state["upper"], color=colors, alpha=0.6)
    above.axhline((1 - given["alpha"]) * state["lower"], color="black", linestyle="--", label="threshold (1 - α) L")
    above.set(ylim=given["limits"], ylabel="upper bound (units of f)")
    above.legend(fontsize="small")
    below.bar(rows, given["prices"], color=colors, alpha=0.3)
    below.bar(rows, bound, color=colors)
    below.set(xticks=rows, xticklabels=given["names"], ylabel="cost, and its bound")
    return figure


def choice_playground(start: int = 0, caption: str = "", name: str = "") -> HTML:
    """One choice of Algorithm 1 in the garden; readers set alpha, the prices and how many plays were made.

    Args:
        start: which state is shown at first.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.
    """
    given = settings() | {"limits": [1.2, 2.6]}
    state = given["states"][start]
    good, _, chosen = choose(state, given["horizon"], given["prices"], given["alpha"])
    alt = (
        f"Bars of the upper bounds of five control sets after {state['t']} plays, and of their costs. "
        f"{sum(good)} sets pass the threshold; {given['names'][chosen]} is played."
    )
    note = "The sliders of the prices and of alpha need JavaScript."
    still = str(figures.show(picture(given, start), alt).data)
    data = {"kind": "choice", **given, "start": start}
    return embed(data, still, note, "cbo-stepper cbo-answer", caption, name)
