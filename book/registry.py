"""Every figure and table that can be run, by name: ``python -m book list`` shows what stands here.

Each chapter says in its own ``registry`` module how its experiments run. Names and titles stand here, so that they can
be listed before torch is imported.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["reader", "paper"]

#: The title of each, and what the paper's scale takes of one thread's time where it was measured.
TITLES: Mapping[str, tuple[str, str]] = {
    "aggregated.figure_4": ("Figure 4: GPOO and its rivals on peaks and periodic, in two configurations", "minutes"),
    "aggregated.figure_5": ("Figure 5: one point a cell and ten, on spike", "minutes"),
    "aggregated.figure_6": ("Figure 6: points a cell and children, on spike", "minutes"),
    "aggregated.census": ("the census: who finds the oldest people, with a fitted kernel", ""),
    "indirect.figure_1": ("Figure 1: a fixed number of queries, on Branin and on moved copies of it", "4 min"),
    "indirect.figure_2": ("Figure 2: a budget, and queries that cost more the finer they are", "3 min"),
    "indirect.floor": ("what an estimated p(x | a) leaves, by pairs and noise", ""),
    "indirect.peaks": ("two peaks: the maxima of f and g in different places", ""),
    "contexts.figure_1": ("Figures 1 and 2: the published configuration, 250 evaluations (newsvendor: 350)", "7 h"),
    "contexts.baselines": ("Figures 1 and 2: the three slow baselines", "1.5 h"),
    "contexts.whole": ("Figures 1 and 2 at the paper's 350 evaluations and effort", "days"),
    "contexts.estimates": ("how fast an average under an estimate is learned", ""),
    "contexts.table_1": ("Table 1: seconds of a step at the paper's effort", ""),
    "subsets.verdict": ("Figure 1: the garden, and the paper's problems with moderate costs at its budget", "37 min"),
    "subsets.cheap": ("Figure 1 with cheap costs at a budget of 100: up to 5,000 plays", "a day or more"),
    "hyperparameters.figure_2": ("Figure 2: lengthscale, period, decomposition, mean, in two readings", "10 min"),
    "hyperparameters.changed": ("what turns a verdict of Figure 2: a narrower corner, more noise, a higher hill", ""),
    "synthesis.combined": ("map: unknown contexts and an unknown prior at once", ""),
}


@dataclass(frozen=True)
class Experiment:
    """How a figure or table is run, in parts that know nothing of each other.

    Args:
        parts: gives their names, such as ``panel/policy``.
        work: gives the result of a part from its name, seeds, scale and most rounds (None: the scale's): a table, or
            arrays by name with a row a seed.
        seeds: gives those of a part at a scale.
        file: where the results of all parts stand in the chapter's ``results``: one table ``.json``, or arrays
            ``part/name`` in one ``.npz``.
        draw: makes the figure of the page from what is in that file. None: there is no figure.
        whole: whether the figure needs all parts.
        chunk: how many seeds of arrays run as one task. None: all.
        float64: whether torch's default dtype is that.
        counted: whether it is told how many seeds there are and no more, and has no rounds.
    """

    parts: Callable[[], Sequence[str]]
    work: Callable[[str, Sequence[int], Scale, int | None], Any]
    seeds: Callable[[str, Scale], Sequence[int]]
    file: str
    draw: Callable[[Any], Figure] | None = None
    whole: bool = False
    chunk: int | None = None
    float64: bool = False
    counted: bool = False


def match(pattern: str) -> list[str]:
    """The names that a word means: one name, or all that match a pattern such as ``contexts.*`` or ``*.figure_*``.

    Raises:
        ValueError: if there is none, with the nearest names.
    """
    if found := fnmatch.filter(TITLES, pattern):
        return found
    near = [name for name in TITLES if pattern in name] or difflib.get_close_matches(pattern, TITLES, cutoff=0.5)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "see: python -m book list"
    raise ValueError(f"no experiment is called {pattern!r}; {hint}")


def load(name: str) -> Experiment:
    """How an experiment is run; imports its chapter."""
    chapter, _, figure = name.partition(".")
    return importlib.import_module(f"book.{chapter}.registry").RUNS[figure]
