"""A proof that steps says of every link, in every round, whether it is tight, loose or broken."""

import json
import re

import numpy as np
import pytest
import torch

from book import proofs
from book.ledger import Claim
from book.proofs import Link, regret, short

F64 = torch.float64


def values(*numbers):
    return torch.tensor(numbers, dtype=F64)


def data_of(markup):
    return json.loads(re.search(r'<script type="application/json">(.*)</script>', markup, re.S)[1])


@pytest.mark.parametrize(
    ("left", "right", "slack", "expected"),
    [
        (1.0, 2.0, 0.0, "tight"),
        (1.0, 2.1, 0.0, "loose"),
        (-1.0, 0.0, 0.0, "loose"),
        (0.0, 0.0, 0.0, "tight"),
        (1.0, 0.9, 0.0, "broken"),
        (1.0, 0.95, 0.1, "tight"),
        (1.0, 0.8, 0.1, "broken"),
        (float("nan"), 1.0, 0.0, "open"),
    ],
)
def test_a_link_is_tight_loose_broken_or_not_claimed(left, right, slack, expected):
    assert Link("a", values(left), values(right), slack=slack).state(0) == expected


def test_a_claim_becomes_the_means_of_the_runs_in_which_it_was_made():
    left, right = torch.tensor([[1.0, 5.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([[2.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
    applies = torch.tensor([[True, True, False], [True, True, False]])
    link = Link.of("a", Claim(left, right, "here", 1.0, applies))
    assert [link.state(k) for k in range(3)] == ["tight", "broken", "open"]  # the second fails in one of two runs
    assert (float(link.left[0]), float(link.right[0])) == pytest.approx((2.0, 3.0))
    assert Link.of("a", Claim(left, right, "here", 0.5, applies)).state(1) == "tight"


def accounts(count):
    t = torch.arange(1.0, count + 1, dtype=F64)
    terms = {"up": 2 * t, "down": -t}
    links = [Link("top", t, 1.5 * t), Link("under", t, torch.where(t > count / 2, t / 2, 4 * t), "top")]
    return t, terms, links


@pytest.mark.parametrize("count", [1, 5, 200])
def test_every_round_shows_the_terms_the_regret_and_the_links(count):
    t, terms, links = accounts(count)
    data = data_of(regret(t, terms, links).data)
    assert len(data["labels"]) == min(count, proofs.SHOWN) and data["start"] == len(data["labels"]) - 1
    stack, tree = data["views"]
    assert [node["name"] for node in tree["links"]] == ["regret", "top", "under"]
    assert [node["parent"] for node in tree["links"]] == [-1, 0, 1]
    for k, label in enumerate(data["labels"]):
        step = int(re.match(r"round (\d+):", label)[1])
        assert tree["links"][0]["text"][k] == short(step)
        assert tree["links"][1]["state"][k] == "tight"
        broken = step > count / 2
        assert tree["links"][2]["state"][k] == ("broken" if broken else "loose")
        assert ("1 broken (under)" in label) == broken
        assert f"up {short(2 * step)}, down {short(-step)}" in data["alts"][k]
    areas = [mark for mark in stack["marks"] if mark["m"] == "area"]
    edges = [np.array(area["rows"][0][2]).reshape(-1, 2)[:, 1] for area in areas]
    assert edges[0].max() == pytest.approx(2 * count) and edges[1].min() == pytest.approx(-count)
