"""The classes against the plain algorithms of ``plain.py``, a few rounds each, and what a single run adds."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from book.aggregated.census import census
from book.aggregated.controls import IsolatedGPOO
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, Space, StoOO, UniformGrid
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.run import read_observations
from cbo_lib.simulate import simulate
from tests.accelerator import DEVICE, close, needed
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, both, cell_problem, fourier, made, nodes_of, noise_draws

LENGTHSCALE, VARIANCE, ROUNDS = 0.05, 0.1, 20
LINE = [[0.0], [1.0]]


def steep(h):
    return 14 * 2.0**-h


def gentle(h):
    return 0.8 * 2.0**-h


def kernel(name="peaks"):
    return rbf_kernel(0.2 if name == "hills" else LENGTHSCALE, VARIANCE)


def metric(r):
    return math.sqrt(2 * VARIANCE * -math.expm1(-(r**2) / (2 * LENGTHSCALE**2)))


def batch_of(policy, problem, seeds):
    """Twenty rounds by hand: the batch, and the cells that were asked and recommended."""
    noise = [noise_draws(seed, ROUNDS) for seed in seeds]
    batch, asked, named = policy.start(seeds), [], []
    for t in range(ROUNDS):
        cell = batch.ask()
        y = problem.value(cell) + problem.noise_std * torch.tensor([draws[t] for draws in noise], dtype=F64)
        batch.tell(cell, y)
        asked.append(cell)
        named.append(batch.recommend())
    return batch, torch.stack(asked, 1), torch.stack(named, 1)


def assert_plain(policy, problem, run_plain):
    seeds = [0, 5]
    batch, asked, named = batch_of(policy, problem, seeds)
    for r, seed in enumerate(seeds):
        tree, rounds = run_plain(noise_draws(seed, ROUNDS))
        assert nodes_of(batch.tree, asked[r]) == [round.node for round in rounds]
        assert nodes_of(batch.tree, named[r]) == [round.recommended for round in rounds]
        assert set(nodes_of(batch.tree, batch.tree.boxes[batch.leaf[r]])) == tree.leaves
        mine = (batch.leaf | batch.split)[r]
        means = batch.means() if isinstance(batch, StoOO) else batch.belief()[0]
        expected = [rounds[-1].means[node] for node in nodes_of(batch.tree, batch.tree.boxes[mine])]
        assert means[r, mine].tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "branching", "points", "delta"),
    [("peaks", 2, 10, steep), ("spike", 3, 1, steep), ("peaks", 2, 10, gentle), ("hills", 2, 6, gentle)],
)
def test_gpoo_is_the_plain_algorithm(name, branching, points, delta):
    problem, world = both(name, branching, points)
    process = {"lengthscale": 0.2 if name == "hills" else LENGTHSCALE, "variance": VARIANCE, "noise_std": 0.1}
    policy = made(GPOO, problem, kernel(name), delta=delta)
    assert_plain(policy, problem, lambda noise: plain.gpoo(world, plain.Process(world, **process), delta, noise))


@pytest.mark.parametrize(("name", "points"), [("peaks", 10), ("spike", 1)])
def test_stooo_and_ave_stooo_are_the_plain_algorithms(name, points):
    problem, world = both(name, points=points)
    for policy, run in (
        (StoOO(problem.space, delta=steep, budget=40), lambda n: plain.stooo(world, steep, n, budget=40)),
        (AveStoOO(problem.space, delta=steep), lambda n: plain.ave_stooo(world, steep, n)),
    ):
        assert_plain(policy, problem, run)


def test_gptree_is_the_plain_algorithm_and_its_default_metric_is_the_priors():
    problem, world = both("peaks", points=1)

    def process():
        return plain.Process(world, LENGTHSCALE, VARIANCE, 0.1)

    for options in ({"metric_bound": metric}, {}):
        policy = made(GPTree, problem, kernel(), budget=40, **options)
        assert_plain(policy, problem, lambda noise, w=world: plain.gp_tree(w, process(), noise, 40, metric))


def test_the_grid_visits_every_cell_of_its_level_once_and_spreads_out():
    problem, _ = both("peaks")
    history = simulate(problem, made(UniformGrid, problem, kernel(), budget=20), 16, [0], progress=False)
    low = history["query"][0, :, 0, 0]
    assert sorted(low.tolist()) == [i / 16 for i in range(16)]
    assert sorted(low[:4].tolist()) == [0, 0.25, 0.5, 0.75]


def test_isolated_gpoo_learns_of_a_cell_by_its_own_draws():
    problem, _ = both("peaks")
    batch = made(IsolatedGPOO, problem, kernel(), delta=gentle).start([0])
    for y in (0.2, 0.4):
        batch.tell(UNIT[None], torch.tensor([y], dtype=F64))
    prior = float(GaussianProcess(kernel(), 0.1).posterior().variance(problem.space.measure(UNIT[None])))
    mean, std = batch.belief()
    assert float(mean[0, 0]) == pytest.approx(prior * 0.6 / (2 * prior + 0.01))
    assert float(std[0, 0]) == pytest.approx((1 / (1 / prior + 2 / 0.01)) ** 0.5)
    assert torch.equal(mean[0, 1:], torch.zeros_like(mean[0, 1:]))


def test_all_leaves_of_all_rounds_lie_within_their_widths_as_often_as_promised():
    """Functions of the prior, 300 runs of 25 rounds: at most a tenth may fail at some leaf of some round."""
    seeds, problem = range(300), census(range(300))
    kernel = rbf_kernel(0.15, 9.0)
    batch = GPOO(problem.space, prior=GaussianProcess(kernel, 1.0, 40.0), delta=8.0).start(list(seeds))
    noise, inside = torch.Generator().manual_seed(0), torch.ones(300, dtype=torch.bool)
    for _ in range(25):
        cell = batch.ask()
        off = (batch.belief()[0] - problem.values(batch.tree.boxes)).abs()
        inside &= ((off <= batch.width) | ~batch.leaf).all(-1)
        batch.tell(cell, problem.value(cell) + torch.randn(300, generator=noise, dtype=F64))
    assert float(inside.double().mean()) > 0.9


def test_a_replicate_does_not_depend_on_its_company():
    problem, _ = both("peaks")
    policy = made(GPOO, problem, kernel(), delta=steep)
    alone, together = (simulate(problem, policy, 12, seeds, progress=False) for seeds in ([3], [1, 3, 4]))
    assert torch.equal(alone["query"][0], together["query"][1])


def test_a_fit_serves_the_default_policy():
    problem = cell_problem(fourier(3), points_per_cell=3)
    history = simulate(problem, GPOO(problem.space), 30, range(3), progress=False)
    lost = problem.optimum - history["recommended_value"]
    assert float(lost[:, -1].mean()) < 0.3 * float(lost[:, 0].mean())


# A single run.


def old_cells(n=36):
    edge = np.linspace(0, 1, n + 1)
    middle = (edge[:-1] + edge[1:]) / 2
    return np.stack([edge[:-1], edge[1:]], 1)[:, :, None], np.exp(-((middle - 0.7) ** 2) / 0.01)


def test_old_cells_that_are_no_nodes_move_the_recommendation_and_the_next_question():
    policy = GPOO(Space(LINE, points_per_cell=4))
    policy.tell(*old_cells())
    for cell in (policy.recommend(), policy.ask()):
        assert abs(float(cell.mean()) - 0.7) < 0.05
        assert float(cell[1] - cell[0]) <= 1 / 8


@pytest.mark.parametrize("kind", [GPOO, StoOO, AveStoOO, GPTree, UniformGrid])
def test_a_saved_run_goes_on_as_it_would_have(tmp_path, kind):
    space = Space(LINE, points_per_cell=2)
    policy = kind(space, prior=GaussianProcess(rbf_kernel(0.1), 0.1), seed=3)
    for _ in range(9):
        cell = policy.ask()
        policy.tell(cell, float(torch.sin(5 * cell.mean())))
    policy.tell([0.2, 0.3], 0.4)  # something else was done
    policy.save(tmp_path / "run.npz")
    again = kind.load(tmp_path / "run.npz")
    assert again.count == policy.count == 10
    assert torch.equal(again.ask(), policy.ask()) and torch.equal(again.recommend(), policy.recommend())
    torch.testing.assert_close(
        again.posterior.mean(space.measure(UNIT[None])), policy.posterior.mean(space.measure(UNIT[None]))
    )
    known = read_observations(tmp_path / "run.npz")
    new = kind(space, prior=GaussianProcess(rbf_kernel(0.1), 0.1))
    new.tell(**known)
    assert new.count == 10


def test_a_frame_goes_out_and_comes_back(tmp_path):
    space = Space(pd.DataFrame({"east": [0.0, 2.0], "north": [0.0, 1.0]}), points_per_cell=4)
    policy = GPOO(space)
    policy.tell([[[0.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [2.0, 1.0]], [[0.0, 0.0], [2.0, 1.0]]], [1.0, 2.0, 1.4])
    policy.to_frame().to_csv(tmp_path / "surveys.csv", index=False)
    frame = pd.read_csv(tmp_path / "surveys.csv")
    assert list(frame) == ["low east", "low north", "high east", "high north", "y"]
    again = GPOO(space)
    again.tell(frame[["y", "high east", "high north", "low north", "low east"]])  # names decide, not the order
    assert torch.equal(again.ask(), policy.ask())
    assert repr(again) == "aggregated.GPOO(3 observations, best y 2)"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (([0.0, 2.0], 1.0), "query must lie in the box"),
        (([0.5, 0.0], 1.0), "lower corner first"),
        (([0.0, 1.0], -1e200), "y must be smaller than 1e100"),
        (([0.0, 1.0], math.nan), "y must be finite"),
        (([[0.0, 1.0]], [1.0, 2.0]), "query must hold as many rows as y, 2"),
        (([0.0, 1.0],), "y must be numbers"),
        ((pd.DataFrame([[0.0, 1.0]], index=[3]), pd.Series([1.0])), "must have the index"),
        ((pd.DataFrame([[1.0, 0.0]], columns=["high", "low"]), [1.0]), "must have the columns"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_learned(told, message):
    policy = GPOO(Space(LINE, points_per_cell=2), prior=GaussianProcess(rbf_kernel(0.1), 0.1))
    policy.tell(pd.DataFrame([[0.0, 0.5]], columns=["low", "high"]), [0.3])
    asked = policy.ask()
    with pytest.raises(ValueError, match=message):
        policy.tell(*told)
    assert policy.count == 1 and torch.equal(policy.ask(), asked)


def test_files_of_other_policies_and_formats_are_refused_with_both_named(tmp_path, monkeypatch):
    policy = GPOO(Space(LINE), prior=GaussianProcess(rbf_kernel(0.1), 0.1))
    policy.tell([0.0, 1.0], 0.5)
    monkeypatch.setattr("cbo_lib.run.FORMAT", 1)
    policy.save(tmp_path / "old.npz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"policies:GPOO of format 2 .* got .*policies:GPOO of format 1"):
        GPOO.load(tmp_path / "old.npz")
    assert read_observations(tmp_path / "old.npz")["y"].tolist() == [0.5]
    policy.save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="StoOO"):
        StoOO.load(tmp_path / "run.npz")
    (tmp_path / "run.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:300])
    with pytest.raises(ValueError, match="undamaged"):
        GPOO.load(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="delta must be a number or an object of a module"):
        GPOO(Space(LINE), delta=lambda h: 2.0**-h).save(tmp_path / "no.npz")


def test_a_tell_that_breaks_off_leaves_the_run_as_it_was(monkeypatch):
    policy = GPOO(Space(LINE), prior=GaussianProcess(rbf_kernel(0.1), 0.1))
    policy.tell([0.0, 1.0], 0.5)
    asked = policy.ask()

    expand = GPOO.expand

    def stop_once(self, node, where):
        monkeypatch.setattr(GPOO, "expand", expand)
        raise KeyboardInterrupt

    monkeypatch.setattr(GPOO, "expand", stop_once)
    with pytest.raises(KeyboardInterrupt):
        policy.tell([0.0, 0.5], 0.2)
    assert policy.count == 1 and torch.equal(policy.ask(), asked)


@needed
@pytest.mark.parametrize("kind", [GPOO, StoOO, AveStoOO, GPTree, UniformGrid])
def test_a_policy_asks_the_same_on_a_gpu(kind):
    asked = []
    for device in ("cpu", DEVICE):
        space = Space(torch.tensor(LINE, dtype=F64, device=device), points_per_cell=2)
        prior = GaussianProcess(rbf_kernel(0.1).to(device), 0.1)
        batch = kind(space, prior=prior, seeds=range(3))
        for _ in range(4):
            cell = batch.ask()
            batch.tell(cell, cell.mean((1, 2)))
        asked.append(batch.recommend())
    close(asked[1], asked[0])
