"""A regret proof as a picture that steps over rounds: its terms, stacked, and its links, tight, loose or broken."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from IPython.display import HTML
from torch import Tensor

from book import figures
from book.ledger import Claim
from book.steppers import View, outline, picture

#: What each state of a link says in the legend.
STATES = {
    "tight": "tight: the right side is at most twice the left",
    "loose": "loose: it is more",
    "broken": "broken: it fails",
}
#: Colors of the terms, from below.
_LOOKS: tuple[int | str, ...] = (0, 1, 2, 3, 4, 5, "soft", "faint")
#: How many rounds are shown at most.
SHOWN = 40


@dataclass(frozen=True, eq=False)
class Link:
    """An inequality of a proof at every round.

    Args:
        name: in a few words.
        left: the smaller side, ``rounds``; NaN where nothing is claimed.
        right: the larger side, ``rounds``.
        supports: the name of the link that needs it; empty if the regret itself does.
        slack: the part of the right side by which the left may exceed it, for links that hold in mean alone.
        broken: in which rounds it fails, boolean ``rounds``. Default: where the left side is larger.
        sign: between both sides.
    """

    name: str
    left: Tensor
    right: Tensor
    supports: str = ""
    slack: float = 0.0
    broken: Tensor | None = None
    sign: str = "≤"

    @classmethod
    def of(cls, name: str, claim: Claim, supports: str = "") -> Link:
        """A claim of a ledger, both sides averaged over the replicates in which it was made.

        It is broken where it fails in more replicates than its probability allows, and at all if that is unknown.
        """
        whole = torch.ones_like(claim.left, dtype=torch.bool) if claim.applies is None else claim.applies
        # What else a claim is made of (points, candidates, subsets) counts as one.
        applies, holds = whole.flatten(2).any(-1) if whole.dim() > 2 else whole, claim.holds
        holds = holds.flatten(2).all(-1) if holds.dim() > 2 else holds
        count = applies.sum(0)
        many = whole.flatten(2).sum((0, 2)) if whole.dim() > 2 else count
        left, right = (
            torch.where(whole, side, 0.0).nan_to_num(posinf=0.0).transpose(0, 1).flatten(1).sum(1) / many.clamp_min(1)
            for side in (claim.left, claim.right)
        )
        allowed = 0.0 if np.isnan(claim.probability) else 1 - claim.probability
        failing = (~holds).sum(0) > allowed * count
        return cls(name, torch.where(count > 0, left, torch.nan), right, supports, broken=failing)

    def state(self, step: int) -> str:
        """``tight``, ``loose``, ``broken``, or ``open`` where nothing is claimed."""
        left, right = float(self.left[step]), float(self.right[step])
        if np.isnan(left) or np.isnan(right):
            return "open"
        if self.broken is None:
            fails = left > right + self.slack * (abs(right) + 0.2) + 1e-9
        else:
            fails = bool(self.broken[step])
        if fails:
            return "broken"
        return "tight" if right <= 2 * left or right == left else "loose"

    def sides(self, step: int) -> str:
        """Both sides in figures."""
        if self.state(step) == "open":
            return "not claimed in this round"
        return f"{short(float(self.left[step]))} {self.sign} {short(float(self.right[step]))}, {self.state(step)}"


def chain(sides: Mapping[str, Tensor]) -> list[Link]:
    """A chain of inequalities, each expression at most the next: the links between them.

    Args:
        sides: the expressions by name, from the smallest, each ``replicates x rounds``; NaN where a run says nothing.
    """
    links: list[Link] = []
    for (_, left), (name, right) in itertools.pairwise(sides.items()):
        below = links[-1].name if links else ""
        links.append(Link(name, left.nanmean(0), right.nanmean(0), below))
    return links


def short(value: float) -> str:
    """A number in about three figures."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.replace("-", "")


def ordered(links: Sequence[Link]) -> list[Link]:
    """The links of a tree, each after the one that it supports and before what supports another.

    Raises:
        ValueError: if a link supports none that is there, or itself by a detour.
    """
    found: list[Link] = []

    def visit(name: str) -> None:
        for link in links:
            if link.supports == name:
                found.append(link)
                visit(link.name)

    visit("")
    lost = {link.name for link in links} - {link.name for link in found}
    if lost:
        raise ValueError(f"every link must lead to the regret, got {sorted(lost)}")
    return found


class ProofView(View):
    """The tree of a proof, drawn by ``stepper.js`` with a row for each link."""

    def __init__(self, width: float, name: str, total: Tensor, links: Sequence[Link], steps: Sequence[int]) -> None:
        super().__init__(width, 40 * (len(links) + 1))
        index = {"": 0} | {link.name: k for k, link in enumerate(links, start=1)}
        nodes: list[dict[str, Any]] = [{"name": name, "parent": -1, "text": [short(float(total[s])) for s in steps]}]
        for link in links:
            node = {"name": link.name, "parent": index[link.supports]}
            node |= {"state": [link.state(s) for s in steps], "text": [link.sides(s) for s in steps]}
            nodes.append(node)
        self.settings |= {"links": nodes, "states": [list(item) for item in STATES.items()]}


def regret(
    total: Tensor,
    terms: Mapping[str, Tensor],
    links: Sequence[Link],
    regret_name: str = "regret",
    unit: str = "units of f",
    first: int = 1,
    caption: str = "",
    name: str = "",
) -> HTML:
    """The accounts and the proof of a regret, round by round.

    Left, the terms that the proof sums are stacked, negative ones below zero, with the regret as a line. Right, the
    proof is a tree: each link stands under what needs it.

    Args:
        total: the regret of each round, as the proof counts it, ``rounds``.
        terms: what it is made of, each ``rounds``.
        links: the inequalities; see ``Link``.
        regret_name: what the regret is called.
        unit: of the vertical axis.
        first: the number of the first round.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.
    """
    links, count = ordered(links), len(total)
    steps = sorted({round(k) for k in np.linspace(0, count - 1, min(count, SHOWN))})
    x, parts = np.arange(first, first + count), {key: np.asarray(term, dtype=float) for key, term in terms.items()}
    stacks = list(_stacks(parts))
    edges = np.concatenate([np.concatenate([low, high]) for _, low, high in stacks] + [np.asarray(total)])
    margin = 0.04 * float(edges.max() - edges.min())
    limits = [round(float(edges.min()) - margin, 6), round(float(edges.max()) + margin, 6)]
    view = View(0.5, 330, x=[first, first + max(count - 1, 1)], y=limits, xl="round", yl=f"{regret_name} ({unit})")
    labels, alts = [], []
    for k, step in enumerate(steps):
        for row, (key, low, high) in enumerate(stacks):
            color = _LOOKS[row % len(_LOOKS)]
            around = np.concatenate([np.stack([x, high], 1), np.stack([x, low], 1)[::-1]])
            view.add(k, "area", outline(view, around), c=color, o=0.55, order=row)
            view.explain(k, f"{key} {short(parts[key][step])}", "box", color, "", "", 0.55)
        view.add(
            k, "line", outline(view, np.stack([x, np.asarray(total, dtype=float)], 1)), c=6, w=2.2, order=len(stacks)
        )
        view.explain(k, f"{regret_name} {short(float(total[step]))}", "line", 6, "", "", 1.0)
        if step < count - 1:
            view.add(k, "box", x[step], x[-1], *limits, c="ground", o=0.75, order=len(stacks) + 1)
        view.add(k, "rule", x[step], c="soft", w=1.2, dir="v", order=len(stacks) + 2)
        states = [link.state(step) for link in links]
        told = [f"{states.count(state)} {state}" for state in STATES if state in states]
        broken = [link.name for link, state in zip(links, states, strict=True) if state == "broken"]
        label = f"round {x[step]}: {regret_name} {short(float(total[step]))}; links: {', '.join(told)}"
        labels.append(label + (f" ({', '.join(broken)})" if broken else ""))
        sums = ", ".join(f"{key} {short(parts[key][step])}" for key in parts)
        sides = "; ".join(f"{link.name}: {link.sides(step)}" for link in links)
        alts.append(f"Round {x[step]}. {regret_name} {short(float(total[step]))}, made of {sums}. The links: {sides}.")
    tree = ProofView(0.5, regret_name, total, links, steps)
    still = _still(x, stacks, np.asarray(total, dtype=float), regret_name, unit, links)
    first_seen = figures.show(still, alts[-1]).data
    return picture([view, tree], labels, alts, "Round", first_seen, len(steps) - 1, caption=caption, name=name)


def _stacks(parts: Mapping[str, np.ndarray]) -> Any:
    """Names with the lower and upper edge of their part of the stack, negative parts downwards from zero."""
    sizes = [len(part) for part in parts.values()]
    up, down = np.zeros(sizes[0]), np.zeros(sizes[0])
    for name, part in parts.items():
        above, below = part.clip(0), part.clip(None, 0)
        yield name, np.where(part < 0, down + below, up), np.where(part < 0, down, up + above)
        up, down = up + above, down + below


def _still(
    x: np.ndarray, stacks: Sequence[Any], total: np.ndarray, name: str, unit: str, links: Sequence[Link]
) -> figures.Figure:
    """The last round as an ordinary figure."""
    figure, axes = figures.subplots(1, 2, figsize=(9, max(4.0, 0.36 * len(links))))
    left, right = axes[0]
    for color, (key, low, high) in zip(itertools.cycle([*figures.COLORS[:-1], "0.5", "0.8"]), stacks):
        left.fill_between(x, low, high, color=color, alpha=0.55, linewidth=0, label=key)
    left.plot(x, total, color=figures.COLORS[-1], label=name)
    left.set(xlabel="round", ylabel=f"{name} ({unit})")
    left.legend(fontsize="x-small")
    depth = {"": 0}
    right.axis("off")
    right.set(xlim=(0, 1), ylim=(len(links) + 0.5, -0.5))
    right.text(0, 0, f"{name} {short(total[-1])}", fontsize=9, weight="bold")
    for row, link in enumerate(links, start=1):
        depth[link.name] = depth[link.supports] + (sum(k.supports == link.supports for k in links) > 1)
        text = f"{link.name}: {link.sides(len(total) - 1)}"
        right.text(0.05 + 0.05 * depth[link.name], row, text, fontsize=8)
    return figure
