"""The experiments: they run small, what is stored is whole, and the claims are paired differences."""

import torch

from book.contexts import experiments
from book.contexts.experiments import (
    FIVE,
    PANELS,
    ROUNDS,
    SLOW,
    Effort,
    claims,
    figure_1,
    play,
    policy,
    regret_after,
    stored,
)
from book.contexts.problems import ackley, modified_branin, newsvendor
from book.registry import load
from cbo_lib.contexts import GaussianKDE
from cbo_lib.random import ReplicateGenerators


def test_every_policy_runs_and_all_share_the_design():
    problem, effort = modified_branin(), Effort(8, 8, 1, 1.5)
    first = None
    for name in (*FIVE, *SLOW):
        regret = play(problem, policy(name, problem, effort, initial=3), 5, [2, 3])
        assert regret.shape == (2, 5) and (regret > -1e-9).all(), name
        first = regret[:, :3] if first is None else first
        torch.testing.assert_close(regret[:, :3], first)


def test_a_row_holds_the_cumulative_regret():
    frame = figure_1("newsvendor", ["GP-UCB"], [0, 1], 11, Effort(8, 8, 1))
    (row,) = frame.to_dict("records")
    shop = newsvendor()
    regret = play(shop, policy("GP-UCB", shop, Effort(8, 8, 1)), 11, [0, 1]).cumsum(1)
    torch.testing.assert_close(regret_after(frame, "newsvendor", "GP-UCB", 11), regret[:, -1], rtol=1e-4, atol=1e-4)
    assert len(row["by round"]) == 11


def test_with_four_contexts_it_takes_more_even_draws():
    """Averages of Ackley under a density of fifty contexts: errors of its differences between decisions."""
    problem, runs = ackley(4), 60
    generators = ReplicateGenerators(range(runs)).generators
    x = torch.rand(200, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    past = problem.distribution.sample([torch.Generator().manual_seed(0)], (50,))
    estimate = GaussianKDE(past.expand(runs, -1, -1))

    def average(contexts):
        values = torch.stack([problem.f(problem.space.join(x, c)).mean(-1) for c in contexts])
        return values - values.mean(-1, keepdim=True)

    def independent(m):
        place = torch.stack([torch.randint(50, (m,), generator=g) for g in generators])
        noise = torch.stack([torch.randn(m, 4, generator=g, dtype=torch.float64) for g in generators])
        return (past[0, place] + estimate.bandwidth[:, None] * noise).clamp(0, 1)

    exact = average(GaussianKDE(past).sample(2**13, generators[:1], problem.space.contexts))
    even = {m: estimate.sample(m, generators, problem.space.contexts) for m in (64, 256, 512)}
    error = {m: float((average(c) - exact).square().mean().sqrt()) for m, c in even.items()}
    paper = float((average(independent(1024)) - exact).square().mean().sqrt())
    assert error[64] > 2 * paper and error[256] < 2 * paper and error[512] < 1.2 * paper, (error, paper)


def test_what_is_stored_is_whole_and_paired():
    frame = stored("figure_1")
    panels = list(frame["panel"].unique())
    assert panels == list(PANELS)
    for panel in panels:
        part = frame[frame["panel"] == panel]
        assert set(part["policy"]) == set(FIVE) and set(part["rounds"]) == {ROUNDS[panel]}
        assert all(set(regret) == {"100", str(ROUNDS[panel])} for regret in part["regret"])
        assert all(len(values) == 20 for regret in part["regret"] for values in regret.values())
        assert all(len(means) == rounds for means, rounds in zip(part["by round"], part["rounds"], strict=True))
    slow = stored("baselines")
    run = [f"{panel}/{policy}" for panel, policy in zip(slow["panel"], slow["policy"], strict=True)]
    assert run == load("contexts.baselines").parts() and set(slow["rounds"]) == {100}
    found, whole = claims(), experiments.panels_run()
    assert len(found) == len(frame) - len(panels) + len(slow)
    for (rival, panel), pair in found.items():
        assert pair.n == (5 if "MMD" in rival else 20)
        rounds = 100 if rival in SLOW else ROUNDS[panel]
        ours, theirs = (regret_after(whole, panel, name, rounds)[: pair.n] for name in ("SBO-KDE", rival))
        gap = (theirs - ours).mean()
        assert abs(pair.mean - float(gap)) < 1e-9
    experiments.draw_effects(found, whole)
    experiments.draw_figure_1(whole)


def test_the_whole_figure_can_be_run_by_name():
    whole = load("contexts.whole")
    assert len(whole.parts()) == len(PANELS) * (len(FIVE) + len(SLOW))
    assert list(whole.seeds("ackley/SBO-KDE", "paper")) == list(range(4000, 4020))
    small = load("contexts.figure_1").work("newsvendor/GP-UCB", range(2), "reader", 11)
    assert small["rounds"].tolist() == [11]
