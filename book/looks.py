"""How each policy of the book is drawn: one color, line and marker wherever it appears.

The method of a chapter's paper is a blue solid line with circles, random queries are gray and dotted, and what knows
the truth is black and dashed.
"""

import difflib
from typing import Any, NamedTuple

from book.steppers import PALETTE

BLUE, RED, GREEN, PINK, BROWN, SKY, BLACK = PALETTE
GRAY = "#6B6B6B"


class Look(NamedTuple):
    """Color, line and marker of a policy, and the chapters that draw it."""

    color: str
    line: str
    marker: str
    chapters: tuple[str, ...]


_AGGREGATED, _INDIRECT, _CONTEXTS = ("aggregated",), ("indirect",), ("contexts",)
_SUBSETS, _HYPERPARAMETERS, _FOUNDATIONS = ("subsets",), ("hyperparameters",), ("foundations",)

#: The look of every policy by its name.
#:
#: :meta hide-value:
POLICIES = {
    "random": Look(GRAY, ":", ".", ("foundations", "indirect", "contexts", "subsets", "synthesis")),
    # foundations
    "optimism": Look(BLUE, "-", "o", _FOUNDATIONS),
    "largest mean": Look(RED, "--", "s", _FOUNDATIONS),
    "largest width": Look(GREEN, "-.", "^", _FOUNDATIONS),
    # aggregated feedback
    "GPOO": Look(BLUE, "-", "o", ("aggregated", "synthesis")),
    "uniform grid": Look(BLACK, ":", "D", ("aggregated", "synthesis")),
    "isolated GPOO": Look(BROWN, "-.", "x", _AGGREGATED),
    "GPTree": Look(RED, "--", "s", _AGGREGATED),
    "GPOO, prior known": Look(SKY, "-.", "x", _AGGREGATED),
    "StoOO": Look(GREEN, "-", "^", _AGGREGATED),
    "AVE-StoOO": Look(PINK, "--", "*", _AGGREGATED),
    # indirect queries
    "CMES": Look(BLUE, "-", "o", ("indirect", "synthesis")),
    "CMES's model, target g*": Look(SKY, ":", "^", _INDIRECT),
    "CMES, all nodes": Look(SKY, "-.", "*", _INDIRECT),
    "CMETS": Look(PINK, "-", "D", _INDIRECT),
    "MES on g": Look(RED, "--", "s", _INDIRECT),
    "UCB on g": Look(GREEN, "-.", "^", _INDIRECT),
    "EI on g": Look(BROWN, "--", "D", _INDIRECT),
    "EI per cost, all nodes": Look(BROWN, "-.", "s", _INDIRECT),
    "random, all levels": Look(GRAY, "-", "x", _INDIRECT),
    # unknown contexts
    "SBO-KDE": Look(BLUE, "-", "o", ("contexts", "synthesis")),
    "DRBO-KDE": Look(RED, "--", "s", ("contexts", "synthesis")),
    "GP-UCB": Look(GREEN, "-", "^", ("contexts", "hyperparameters", "synthesis")),
    "StableOpt": Look(PINK, "-.", "D", ("contexts", "hyperparameters")),
    "DRBO-MMD": Look(BROWN, "--", "*", _CONTEXTS),
    "DRBO-MMD-MinimaxApprox": Look(SKY, "-.", "x", _CONTEXTS),
    "SBO, density known": Look(BLACK, "--", "|", _CONTEXTS),
    "SBO, empirical law": Look(SKY, ":", "o", _CONTEXTS),
    "SBO, cross-validated": Look(PINK, "--", "x", _CONTEXTS),
    # variable subsets
    "proposed": Look(BLUE, "-", "o", ("subsets", "synthesis")),
    "TS-PSQ": Look(RED, "--", "s", _SUBSETS),
    "UCB-PSQ": Look(GREEN, "-.", "^", _SUBSETS),
    "ETC-50": Look(BROWN, "-", "D", _SUBSETS),
    "UCB-CVS": Look(BLACK, "--", "o", _SUBSETS),
    # unknown hyperparameters
    "HE-GP-UCB": Look(BLUE, "-", "o", ("hyperparameters", "synthesis")),
    "no elimination": Look(SKY, "--", "x", _HYPERPARAMETERS),
    "MLE": Look(RED, "--", "s", ("hyperparameters", "synthesis")),
    "ExpectedUCB": Look(GREEN, "-.", "D", _HYPERPARAMETERS),
    "A-GP-UCB": Look(BROWN, "-", "*", _HYPERPARAMETERS),
    "tempered": Look(BROWN, "--", "o", _HYPERPARAMETERS),
    "HE-StableOpt": Look(GREEN, "--", "o", _HYPERPARAMETERS),
}
#: Other words for some of them.
_ALIASES = {
    "optimism, √β = 2": "optimism",
    "grid": "uniform grid",
    "estimate": "SBO-KDE",
    "known": "SBO, density known",
    "known density": "SBO, density known",
    "empirical": "SBO, empirical law",
    "leave one out": "SBO, cross-validated",
    "Algorithm 1": "proposed",
}


def style(name: str) -> dict[str, Any]:
    """Color, line style and marker of a policy, for ``plot`` of Matplotlib.

    Raises:
        ValueError: for a name that is not in ``POLICIES``, with the names that are near.
    """
    known = _ALIASES.get(name, name)
    if known not in POLICIES:
        lower = {one.lower(): one for one in [*POLICIES, *_ALIASES]}
        near = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.4)]
        raise ValueError(f"no policy is named {name!r}; near are {near}, and book/looks.py has all")
    look = POLICIES[known]
    return {"color": look.color, "linestyle": look.line, "marker": look.marker}
