"""Every figure and table that can be run, by name: ``python -m book list`` shows what stands here.

Each chapter says in its own ``registry`` module how its experiments run; names and titles stand here, so that they can
be listed before torch is imported.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["reader", "paper"]

TITLES: Mapping[str, str] = {
    "aggregated.figure_4": "Figure 4: GPOO and its rivals on peaks and periodic, in two configurations",
    "aggregated.figure_5": "Figure 5: one point a cell and ten, on spike",
    "aggregated.figure_6": "Figure 6: points a cell and children, on spike",
    "aggregated.census": "the census: who finds the oldest people, with a fitted kernel",
    "indirect.figure_1": "Figure 1: a fixed number of queries, on Branin and on moved copies of it",
    "indirect.figure_2": "Figure 2: a budget, and queries that cost more the finer they are",
    "indirect.floor": "what an estimated p(x | a) leaves, by pairs and noise",
    "indirect.peaks": "two peaks: the maxima of f and g in different places",
    "contexts.figure_1": "Figures 1 and 2: eight problems in the published configuration, 100 evaluations",
    "contexts.baselines": "Figures 1 and 2: the three slow baselines, five seeds",
    "contexts.whole": "Figures 1 and 2 at the paper's 350 evaluations and effort",
    "contexts.estimates": "how fast an average under an estimate is learned",
    "contexts.table_1": "Table 1: seconds of a step at the paper's effort",
    "subsets.verdict": "Figure 1: the garden, and the paper's problems with moderate costs at its budget of 100",
    "subsets.cheap": "Figure 1 with cheap costs at a budget of 100: up to 5,000 plays, many hours",
    "hyperparameters.figure_2": "Figure 2: lengthscale, period, decomposition, mean, in two readings of the multiplier",
    "hyperparameters.changed": "what turns a verdict of Figure 2: a narrower corner, more noise, a higher hill",
    "synthesis.combined": "map: unknown contexts and an unknown prior at once",
}
#: Those whose work has no rounds that ``--steps`` could limit. They stand here and not with their chapters, since the
#: code of a chapter is in the names of its tasks.
WITHOUT_ROUNDS = frozenset(
    {
        "contexts.estimates",
        "synthesis.combined",
    }
)


@dataclass(frozen=True)
class Experiment:
    """How a figure or table is run, in parts that know nothing of each other.

    Args:
        parts: their names. ``panel/policy`` for runs that are drawn together.
        work: gives the result of a part from its name, seeds, scale and a limit of rounds (None: the scale's): a
            table, or arrays by name.
        seeds: those of a part at a scale.
        chunk: how many seeds a task has. None: all, where a result is a summary over seeds.
        file: where a result is put. Arrays: the name of the file of a part, or of many; tables: of the only file.
        home: the folder beside the pages that the pages read, such as ``book/contexts/results``.
        key: what a result is called in a file of arrays, from its part and its own name.
        by_seed: measures of an array, one number a seed each, by name. Default: its last column, where it has one row a
            seed.
        merge: makes one result of those of the chunks. Default: replicates side by side.
        draw: makes the figure from the results by part. Default: one that any result of the kind has.
        float64: whether torch's default dtype is that.
        counted: whether it is told how many seeds there are and no more, so that they are 0, 1, ...
    """

    parts: Callable[[], Sequence[str]]
    work: Callable[[str, Sequence[int], Scale, int | None], Any]
    seeds: Callable[[str, Scale], Sequence[int]]
    file: Callable[[str], str]
    home: str
    chunk: int | None = None
    key: Callable[[str, str], str] = field(default_factory=lambda: "{}/{}".format)
    by_seed: Callable[[str, Any], Mapping[str, Any]] | None = None
    merge: Callable[[Sequence[Any]], Any] | None = None
    draw: Callable[[Mapping[str, Any]], Figure] | None = None
    float64: bool = False
    counted: bool = False


def match(pattern: str) -> list[str]:
    """The names that a word means: one name, or all that match a pattern such as ``contexts.*`` or ``*.figure_*``.

    Raises:
        ValueError: if there is none, with the nearest names.
    """
    found = fnmatch.filter(TITLES, pattern)
    if found:
        return found
    tails = {name.partition(".")[2]: name for name in TITLES}
    near = difflib.get_close_matches(pattern, TITLES, n=3, cutoff=0.6)
    near += [tails[tail] for tail in difflib.get_close_matches(pattern.rpartition(".")[2], tails, n=3, cutoff=0.6)]
    near += [name for name in TITLES if pattern in name]
    hint = f"; did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else "; see: python -m book list"
    raise ValueError(f"no experiment is called {pattern!r}{hint}")


def load(name: str) -> Experiment:
    """How an experiment is run; imports its chapter."""
    chapter, _, figure = name.partition(".")
    return importlib.import_module(f"book.{chapter}.registry").RUNS[figure]
