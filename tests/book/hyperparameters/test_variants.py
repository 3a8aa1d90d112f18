"""Our own variants of the policies, the tables over what the paper leaves open, and the robust accounts."""

import torch

from book import figures
from book.hyperparameters import maps, phases, problems, regret
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.variants import EveryoneTested, TemperedUCB
from cbo_lib.confidence import noise_threshold
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import AveragedUCB, HEStableOpt, Space

SEEDS, STEPS = range(4), 25


def hills(epsilon=0.0, extra=10.0):
    candidates = problems.hill_candidates(2.0, extra)
    truth = problems.random_truth(len(candidates), SEEDS)
    f = problems.draws_of_candidates(candidates, truth, SEEDS)
    points = torch.linspace(0, 1, 80, dtype=torch.float64)[:, None]
    space = Space(candidates, points=points, epsilon=epsilon, noise_std=0.1)
    return UnknownPriorProblem(space, f, truth=truth, replicates=len(SEEDS))


def test_everyone_is_tested_on_all_rounds_and_the_truth_survives():
    problem = hills()
    run = simulate(problem, EveryoneTested(problem.space), STEPS, SEEDS)
    errors = (run["observation"][..., None] - run["mean"]).cumsum(1).abs()
    xi = noise_threshold(torch.arange(1, STEPS + 1), 0.1, len(problem.space.candidates))
    room = (xi * torch.arange(1, STEPS + 1)).sqrt()[:, None] + (run["sqrt_beta"] * run["std"]).cumsum(1)
    assert not bool((run["alive"] & (errors > room + 1e-9)).any())
    assert bool(run["alive"][torch.arange(4), -1, problem.truth].all())


def test_tempered_weights_are_those_of_the_averaged_likelihood():
    problem = hills()
    policy = TemperedUCB(problem.space)
    policy.start([0])
    query = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
    policy.tell(query.unsqueeze(1)[:1, 0], y=torch.tensor([1.0], dtype=torch.float64))
    one = AveragedUCB.weights(policy)
    torch.testing.assert_close(policy.weights(), one)
    policy.tell(query.unsqueeze(1)[1:, 0], y=torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(policy.weights(), (policy.likelihood / 2).softmax(-1))


def test_robust_accounts_balance_and_the_repaired_links_hold():
    problem = hills(epsilon=0.02)
    run = simulate(problem, HEStableOpt(problem.space), STEPS, SEEDS)
    ledger = regret.robust_ledger(run, problem)
    ledger.check_identity(1e-8)
    claims = ledger.claims
    for name in claims:
        if name not in ("errors of u", "errors of v"):
            assert claims[name].frequency > 1 - 1e-9, name
    assert bool((ledger.regret <= ledger.bounds["sum"] + 1e-8).all())
    assert bool((ledger.bounds["sum"] <= ledger.bounds["Theorem 6.1, repaired"] + 1e-9).all())


def test_a_setting_gives_rows_for_all_policies_and_horizons():
    setting = phases.settings("mean")[0]
    rows = [{**setting, **row} for row in phases.rows("mean", setting, range(2))]
    assert {row["policy"] for row in rows} == set(phases.stored("mean").policy)
    assert {row["horizon"] for row in rows} == {50, 100}
    assert all(row["end_mean"] == 0 for row in rows if row["policy"] == "HE-GP-UCB")


def test_a_map_counts_verdicts_and_draws_them():
    table = phases.stored("mean")
    part = table[table.horizon == 100]
    count = maps.count(part, "MLE")
    own = part[part.policy == "MLE"]
    assert count == {
        "holds": int((own.end_low > 0).sum()),
        "undecided": int(((own.end_low <= 0) & (own.end_high >= 0)).sum()),
        "fails": int((own.end_high < 0).sum()),
    }
    assert maps.counted(part, "MLE").startswith(f"holds in {count['holds']}, undecided")
    figures.show(maps.verdicts(part, "MLE", ["height", "extra"], ["multiplier", "noise"]), "A map.")
    one = part[(part.height == 5) & (part.extra == 2) & (part.noise == 0.1)]
    figures.show(maps.risk(one, ["HE-GP-UCB", "MLE"]), "Bars.")
