"""What a run is judged by, which claims are decided, and what is stored."""

import pandas as pd
import pytest
import torch

from book.subsets import experiments, registry
from book.subsets.garden import garden, prior
from cbo_lib.simulate import History

F64 = torch.float64


def test_numbers_of_a_written_run():
    problem = garden(2.0)
    query = torch.tensor([[[4.0, 0.8, 0.0, 0.3], [1.0, 0.5, 0.0, 0.5], [4.0, 0.8, 0.0, 0.3]]], dtype=F64)
    spent = torch.tensor([[1.0, 1.3, 2.5]], dtype=F64)  # the last play does not fit
    history = History({"query": query, "value": problem.optimum - torch.tensor([[0.3, 0.2, 0.0]]), "spent": spent}, [0])
    found = experiments.numbers(history, problem)
    assert float(found["simple"]) == pytest.approx(0.2) and float(found["plays"]) == 2
    assert float(found["cost"]) == pytest.approx(0.85) and float(found["good"]) == 1
    assert found["by cost"].tolist() == pytest.approx([0.3, 0.2])


def test_a_claim_is_a_rivals_regret_minus_the_methods():
    rows = [
        {"objective": "garden", "costs": "own", "prior": "right", "policy": name, "simple": simple, "cost": cost}
        for name, simple, cost in (
            ("proposed", [0.1, 0.2, 0.1], [1.0, 1.1, 0.9]),
            ("ETC-50", [0.0, 0.1, 0.05], [3.0, 3.1, 2.9]),
        )
    ]
    found = experiments.claims(pd.DataFrame(rows))
    assert set(found) == {
        ("simple regret", "garden, right prior", "ETC-50"),
        ("cost regret", "garden, right prior", "ETC-50"),
    }
    assert found["cost regret", "garden, right prior", "ETC-50"].holds
    assert found["simple regret", "garden, right prior", "ETC-50"].mean < 0


def test_every_panel_has_the_strongest_rival_and_fresh_seeds_of_its_own():
    parts = experiments.parts() + experiments.parts(cheap=True)
    seeds = [experiments.panel_seeds(part) for part in parts[::5]]
    assert len({s for part in seeds for s in part}) == 20 * len(seeds)
    for panel in experiments.panels():
        assert {f"{panel}/proposed", f"{panel}/ETC-50"} <= set(parts)
        experiments.setting(f"{panel}/proposed")


def test_what_is_stored_has_the_strongest_rival_in_every_panel_and_twenty_seeds():
    frame = experiments.stored()
    for _, part in frame.groupby(["objective", "costs", "prior"]):
        assert set(part["policy"]) == {"proposed", *experiments.RIVALS}
        assert {len(row) for row in part["simple"]} == {len(row) for row in part["cost"]} == {20}
    assert experiments.draw_verdict(frame).axes


def test_every_part_is_run_by_name():
    assert sum(len(run.parts()) for run in registry.RUNS.values()) == 5 * len(experiments.panels())
    problem = garden(1.5)
    made = experiments.policies(problem, prior(), contexts=4, raw=4, steps=1)
    assert list(made) == ["proposed", *experiments.RIVALS]
    history = experiments.run(problem, made["UCB-PSQ"], [0], most=3)
    assert history["spent"].shape[1] <= 3
