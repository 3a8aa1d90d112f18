"""A stranger's own problem: any unit of the inputs, answers that are kept and changed, and looks in between."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from gpytorch.constraints import Interval
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel

from cbo_lib import aggregated, contexts, hyperparameters, indirect, subsets
from cbo_lib.distributions import Uniform
from cbo_lib.former import surrogate
from cbo_lib.former.fit import fit_gaussian_process
from cbo_lib.former.maximize import maximize_box
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.test_bad_input import LINE, TOLD, boxes, cells, cmes, gpoo, prior, sbokde, ucbpsq

F64 = torch.float64


@pytest.mark.parametrize("side", [1e-6, 1.0, 1e5])
def test_a_box_in_any_unit_is_searched_as_well(side):
    raw = torch.quasirandom.SobolEngine(1).draw(33, dtype=F64)[1:]
    bounds = torch.tensor([[0.0], [side]], dtype=F64)
    point, _ = maximize_box(lambda x: -((x[..., 0] / side - 0.3141) ** 2), bounds, side * raw, 4)
    assert abs(float(point) / side - 0.3141) < 1e-5


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_points_of_any_unit_are_told_apart(unit):
    points = torch.linspace(0, 1, 11, dtype=F64).unsqueeze(-1)
    known = GaussianProcess(rbf_kernel(0.3 * unit), 0.1)
    policy = hyperparameters.HEGPUCB(hyperparameters.Space([known, known], points=unit * points))
    policy.tell(unit * points[[1, 9]], [0.0, 1.0])
    assert float(policy.recommend()) / unit == pytest.approx(0.9)
    space = indirect.Space(unit * points, conditional=indirect.Point(), points=unit * points, noise_std=0.1)
    asker = indirect.CMES(space, prior=known, samples=2)
    asker.tell(unit * points, torch.sin(3 * points[:, 0]))
    assert asker.data["query"].flatten().tolist() == list(range(11))


SPOTS = torch.linspace(0, 1, 11, dtype=F64)
BLURRED = indirect.ClippedGaussian(lambda a: a, 0.05, torch.tensor(LINE, dtype=F64))


def actions():
    return indirect.Space(SPOTS, conditional=BLURRED, points=SPOTS)


OF_ANY_SIZE = {
    "GPOO": lambda: aggregated.GPOO(cells()),
    "CMES": lambda: indirect.CMES(actions(), initial=2),
    "Thompson": lambda: indirect.CMES(actions(), initial=2, sampling="thompson"),
    **{kind: partial(indirect.ActionPolicy, actions(), acquisition=kind, initial=2) for kind in ("mes", "ucb", "ei")},
    "SBO-KDE": lambda: sbo(),
    "DRBO-KDE": lambda: sbo(kind=contexts.DRBOKDE),
    "StableOpt": lambda: sbo(kind=contexts.StableOpt),
    "subsets": lambda: ucbpsq(prior=None, effort=subsets.Effort(contexts=32, candidates=64, iterations=30)),
    "HE-GP-UCB": lambda: hyperparameters.HEGPUCB(
        hyperparameters.Space([rbf_kernel(0.1), rbf_kernel(0.3)], bounds=LINE), initial=3
    ),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
@pytest.mark.filterwarnings("ignore::cbo_lib.former.fit.FitWarning")
def test_outcomes_in_a_small_unit_give_the_same_questions(name):
    asked = []
    for unit in (1.0, 2.0**-40, 2.0**-10):
        policy, rng, rows = OF_ANY_SIZE[name](), torch.Generator().manual_seed(0), []
        for _ in range(5 if name == "subsets" else 8):  # its budget is over then
            query, (c, noise) = policy.ask(), torch.rand(2, generator=rng, dtype=F64)
            if name == "subsets":
                subset, values = query
                query = torch.full((2,), float(c), dtype=F64).index_copy(0, torch.tensor(subset), values)
                seen = {"subset": subset, "cost": 1.0}
            else:
                seen = {"context": [c]} if "context" in policy.sees else {}
            rows.append(torch.as_tensor(query, dtype=F64))
            policy.tell(
                query, unit * (torch.exp(-((rows[-1].mean() - 0.77) * 5).square()) + 0.1 * c + noise / 50), **seen
            )
        asked.append(torch.stack(rows))
    for other in asked[1:]:
        torch.testing.assert_close(other, asked[0], rtol=0, atol=2**-7)


@pytest.mark.parametrize("kernel", [ScaleKernel(RBFKernel(active_dims=(0,))), PeriodicKernel(active_dims=(0,))])
def test_a_fitted_kernel_sees_its_own_coordinates_alone(kernel, rng):
    x = torch.rand(1, 20, 2, generator=rng, dtype=F64)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    fitted = fit_gaussian_process(Measure.dirac(x), torch.sin(6 * x[..., 0]), box, kernel=kernel).process.kernel
    one, other = torch.tensor([[0.3, 0.1]], dtype=F64), torch.tensor([[0.3, 0.9]], dtype=F64)
    torch.testing.assert_close(fitted(one, other).to_dense(), fitted(one, one).to_dense())


@pytest.mark.parametrize("setting", TOLD)
def test_what_was_asked_may_be_changed_by_who_asked(setting):
    make, told, seen = TOLD[setting]
    policy, twin = make(), make()
    for one in (policy, twin):
        one.tell(*told, **seen)
    values = policy.ask()
    expected = [
        part.clone() if torch.is_tensor(part) else part for part in (values if setting == "subsets" else [values])
    ]
    for part in [values[1]] if setting == "subsets" else [values, policy.recommend()]:
        part += 7.0
    again = policy.ask()
    for part, own in zip(again if setting == "subsets" else [again], expected, strict=True):
        assert torch.equal(part, own) if torch.is_tensor(own) else part == own
    assert torch.equal(policy.space.like, twin.space.like)
    policy.start([3, 4])
    batch = policy.ask()
    before = batch.clone()
    batch += 1
    assert torch.equal(policy.ask(), before)


def sbo(box=LINE, kind=contexts.SBOKDE, **options):
    few = {"raw": 8, "starts": 1, "iterations": 3, "initial": 3, "refit_every": 4}
    return kind(boxes(decisions=box), **{**few, **options})


LOOKED_AT = {
    "contexts": (sbo, lambda x, c: ([x], {"context": [c]})),
    "subsets": (lambda: ucbpsq(prior=None, refit_every=4), lambda x, c: ([x, c], {})),
    "aggregated": (lambda: gpoo(prior=None), lambda x, c: ([min(x, c), max(x, c)], {})),
    "indirect": (lambda: cmes(prior=None), lambda x, c: ([round(4 * x) / 4], {})),
}


@pytest.mark.parametrize("setting", LOOKED_AT)
@pytest.mark.filterwarnings("ignore::cbo_lib.former.fit.FitWarning")
def test_looking_does_not_change_what_is_asked_later(setting):
    make, row = LOOKED_AT[setting]

    def after(looks):
        policy = make()
        numbers = torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
        for i, (x, c, noise) in enumerate(numbers.tolist()):
            query, seen = row(x, c)
            policy.tell(query, x * c + noise / 9, **seen)
            if i in looks:
                policy.recommend()
                _ = policy.posterior
        surrogate = policy.belief.surrogate if setting == "indirect" else policy.surrogate
        asked = policy.ask()
        return asked[1] if setting == "subsets" else asked, surrogate.prior.noise_std, surrogate.fit.lengthscale

    never = after(())
    for looks in ((5,), (3, 4, 9, 10), range(12)):
        for found, expected in zip(after(looks), never, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**20])
@pytest.mark.parametrize("kind", [contexts.SBOKDE, contexts.DRBOKDE, contexts.StableOpt])
@pytest.mark.filterwarnings("ignore::cbo_lib.former.fit.FitWarning")
def test_a_policy_asks_the_same_in_any_unit(kind, unit):
    """Units of two, so that not a bit differs."""
    asked = []
    for scale in (1.0, unit):
        policy = sbo([[0.0], [scale]], kind)
        for x, c, noise in torch.rand(9, 3, generator=torch.Generator().manual_seed(0), dtype=F64).tolist():
            policy.tell([scale * x], x * c + noise / 9, context=[c])
        asked.append([policy.ask() / scale, policy.recommend() / scale])
    assert all(map(torch.equal, *asked))


def test_a_cell_smaller_than_any_node_teaches_the_posterior_alone():
    square = aggregated.Space([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], points_per_cell=1)
    policy = gpoo(square, prior=prior(3))
    low = torch.rand(8, 1, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    for corner in low:
        policy.tell(torch.cat([corner, corner + 1e-6]), 1.0)
    assert policy.count == 8 and policy.ask().shape == (2, 3)


def test_integers_told_to_a_batch_are_numbers():
    for policy in (sbokde(), gpoo(cells())):
        policy.start([0, 1])
        query = policy.ask()
        seen = {"context": torch.tensor([[0], [1]])} if policy.sees else {}
        policy.tell(query, torch.tensor([1, 2]), **seen)
        assert policy.data["y"].dtype == F64
    asker = cmes()
    asker.start([0, 1])
    asker.tell(asker.ask(), torch.tensor([1, 2]))
    assert asker.data["y"].dtype == F64 and asker.data["query"].dtype == torch.long


def test_a_look_without_gradients_does_not_take_them_from_the_next():
    posterior = GaussianProcess(rbf_kernel(0.3), 0.1).condition(Measure.dirac([[0.2], [0.8]]), [1.0, -1.0])
    x = torch.tensor([[0.4]], dtype=F64, requires_grad=True)
    measure = Measure.dirac(x)
    slopes = []
    for looked in (False, True):
        if looked:
            with torch.no_grad():
                posterior.mean_and_variance(measure)
        slopes += [torch.autograd.grad(part(measure), x)[0] for part in (posterior.mean, posterior.variance)]
    assert torch.equal(slopes[0], slopes[2]) and torch.equal(slopes[1], slopes[3]) and bool(slopes[1].abs() > 0.1)


def test_a_buffer_may_be_used_again_after_it_was_told():
    policy = hyperparameters.HEGPUCB(hyperparameters.Space([prior()], bounds=[[0.0], [1.0]]))
    buffer = torch.zeros(1, dtype=F64)
    for x in (0.1, 0.5, 0.9):
        policy.tell(buffer.fill_(x), 2 * x)
    assert policy.posterior.data.measure.points.flatten().tolist() == policy.data["query"].flatten().tolist()
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    space = contexts.Space(bounds, bounds)
    bounds *= 100
    assert space.decisions.tolist() == space.contexts.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("high", [0.3, 0.11, 0.7])
def test_a_fit_keeps_to_the_bounds_of_its_kernel_and_may_be_saved(high, tmp_path):
    x = torch.linspace(0, 1, 12, dtype=F64)
    kernel = RBFKernel(lengthscale_constraint=Interval(0.05, high))
    policy = contexts.GPUCB(contexts.Space([[0.0], [1.0]], [[0.0], [1.0]]), kernel=kernel)
    policy.tell(x, 2 * x, context=torch.full_like(x, 0.5))
    asked = policy.ask()
    lengthscale = float(policy.posterior.prior.kernel.base_kernel.lengthscale)
    assert 0.05 <= lengthscale <= high + 1e-6
    policy.save(tmp_path / "policy")
    assert torch.equal(contexts.GPUCB.load(tmp_path / "policy").ask(), asked)


def test_after_an_interruption_a_policy_says_so(monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    policy = ucbpsq(prior=None)
    policy.tell([0.5, 0.5], 1.0, subset=[0], cost=1.0)
    policy.ask()
    monkeypatch.setattr(surrogate, "fit_gaussian_process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.tell([0.2, 0.7], 2.0, subset=[0], cost=3.0)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="tell must not end half way"):
        policy.tell([0.2, 0.7], 2.0, subset=[0], cost=3.0)
    again = ucbpsq(prior=None)
    again.tell(policy.data["query"][0], policy.data["y"][0], subset=[[0]], cost=[1.0])
    assert again.count == 1


def test_a_fitted_process_tracks_queries():
    policy = gpoo()
    policy.tell([[[0.0], [1.0]], [[0.0], [0.5]], [[0.5], [1.0]]], [1.0, 2.0, 3.0])
    queries = Measure.dirac(torch.linspace(0, 1, 6, dtype=F64).unsqueeze(-1))
    tracked, plain = policy.posterior.track(queries), policy.posterior
    for at, y in ((2, 1.0), (3, 2.0)):
        tracked.observe(torch.tensor(at), y)
        plain = plain.extend(queries[[at]], [y])
    torch.testing.assert_close(tracked.mean, plain.mean(queries))
    torch.testing.assert_close(tracked.variance, plain.variance(queries))


def test_old_data_are_told_without_a_fit(monkeypatch):
    counts = []

    def counted(measure, y, *args, **kwargs):
        counts.append(y.shape[1])
        return fit_gaussian_process(measure, y, *args, **kwargs)

    monkeypatch.setattr(surrogate, "fit_gaussian_process", counted)
    x = torch.linspace(0, 1, 9, dtype=F64).unsqueeze(-1)
    policy = indirect.CMES(indirect.Space(x[::2], samples=(x, x)))
    policy.tell(x[::2], x[::2, 0].sin())
    assert not counts
    policy.ask()
    assert counts == [5]


def test_a_refused_value_of_a_new_action_changes_nothing():
    x = torch.linspace(0, 1, 11, dtype=F64)
    policy = indirect.CMES(indirect.Space(x, conditional=indirect.Point(), points=x, noise_std=0.1), prior=prior())
    policy.tell([0.2], 1.0)
    with pytest.raises(ValueError, match="y must be finite"):
        policy.tell([0.333], float("nan"))
    assert len(policy.belief.told) == 11


@pytest.mark.parametrize("candidate", [prior(3), rbf_kernel([0.3] * 3), RBFKernel(ard_num_dims=3)])
def test_a_candidate_of_another_dimension_is_refused_at_once(candidate):
    with pytest.raises(ValueError, match="kernel must have one lengthscale, or 1, got 3"):
        hyperparameters.Space([candidate], bounds=[[0.0], [1.0]])


def test_of_a_frame_the_order_of_the_columns_counts():
    frame = pd.DataFrame({"flow": [0.1, 0.2], "heat": [0.9, 0.8]})
    space = contexts.Space(pd.DataFrame({"heat": [0.0, 1.0], "flow": [0.0, 1.0]}), [[0.0], [1.0]])
    policy = sbokde(space, prior=prior(3))
    policy.tell(frame, [1.0, 2.0], context=[0.1, 0.2])
    assert policy.data["query"][0].tolist() == [[0.1, 0.9], [0.2, 0.8]]


@pytest.mark.parametrize("reply", ["single precision", "one percent"])
def test_a_cell_that_is_told_nearly_as_it_was_asked_is_split(reply):
    space, grown = aggregated.Space(LINE, 2), []
    for told in ("exactly", reply):
        policy = aggregated.GPOO(space, prior=GaussianProcess(rbf_kernel(0.2), 0.1))
        for _ in range(25):
            cell = policy.ask()
            done = {"exactly": cell, "single precision": cell.float(), "one percent": cell + 0.01 * cell.diff(dim=0)}
            policy.tell(done[told].clamp(0, 1), float((6 * cell.mean()).sin()))
        grown.append(policy.expanded.sum())
    assert grown[0] == grown[1] > 5


def test_another_box_than_the_one_asked_is_no_draw_of_it():
    policy = gpoo()
    cell = policy.ask()
    policy.tell(cell * 0.9, 1.0)
    assert not policy.draws.any() and policy.count == 1 and len(policy.tree) == 1
    policy.tell([[0.25], [0.5]], 1.0)  # a node, which the tree of a new run lacks
    assert policy.draws.sum() == 1 and len(policy.tree) > 1


@pytest.mark.parametrize("box", [[[0.1], [0.2], [0.9]], [0.5, 0.5, 0.5]])
def test_a_box_of_another_shape_is_refused_and_nothing_is_lost(box):
    policy = gpoo()
    policy.ask()
    with pytest.raises(ValueError, match="query must"):
        policy.tell(box, 1.0)
    policy.tell(policy.ask(), 1.0)
    assert policy.count == 1


def test_a_plant_of_single_precision_may_be_asked_at_an_end():
    policy = contexts.SBOKDE(contexts.Space([[0.0], [0.1]], [[0.0], [0.3]]))
    policy.tell(np.float32([[0.1], [0.0]]), [1.0, 2.0], context=np.float32([[0.3], [0.1]]))
    with pytest.raises(ValueError, match="query must lie in the box"):
        policy.tell([0.1001], 1.0, context=[0.1])
    assert policy.count == 2


def test_an_analytic_acquisition_takes_a_posterior_of_fitted_sizes():
    space = hyperparameters.Space([rbf_kernel(0.1), rbf_kernel(0.5)], bounds=LINE)
    policy = hyperparameters.HEGPUCB(space)
    policy.tell([[0.1], [0.5], [0.8]], [1.0, 2.0, 0.5])
    member = policy.posterior.select(0)
    bound = UpperConfidenceBound(member.as_botorch(), 4.0)(torch.tensor([[[0.3]]], dtype=F64))
    here = Measure.dirac(torch.tensor([[0.3]], dtype=F64))
    torch.testing.assert_close(bound, member.mean(here) + 2 * member.variance(here).sqrt())
    torch.testing.assert_close(
        member.to(dtype=torch.float32).mean(Measure.dirac(here.points[:, 0].float())).double(),
        member.mean(here),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("kernel", [rbf_kernel(0.2).float(), rbf_kernel([0.2, 0.3, 0.4])])
def test_a_prior_that_does_not_fit_is_refused_at_once(kernel):
    wrong = GaussianProcess(kernel, 0.1)
    box = [[0.0], [1.0]]
    makers = [
        lambda: contexts.SBOKDE(contexts.Space(box, box), prior=wrong),
        lambda: aggregated.GPOO(aggregated.Space([[0.0, 0.0], [1.0, 1.0]], 2), prior=wrong),
        lambda: subsets.UCBPSQ(
            subsets.Space([[0.0, 0.0], [1.0, 1.0]], [[0], [0, 1]], [Uniform()] * 2, 5.0), prior=wrong
        ),
        lambda: hyperparameters.Space([wrong], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="kernel must have"):
            make()


def test_what_went_wrong_in_the_beginning_is_said_again():
    space = indirect.Space([[0.1], [0.5]], conditional=indirect.Point(), points=[[0.1], [0.5]], noise_std=0.1)
    policy = indirect.CMES(space, prior=GaussianProcess(rbf_kernel(0.2).float(), 0.1))
    for _ in range(2):
        with pytest.raises(ValueError, match="kernel must have"):
            policy.ask()


def test_a_point_that_is_changed_is_looked_at_anew():
    x = torch.tensor([[0.5]], dtype=F64)
    posterior = GaussianProcess(rbf_kernel(0.1), 0.1).condition(Measure.dirac(x.clone()), torch.ones(1, dtype=F64))
    here = Measure.dirac(x)
    with torch.no_grad():
        assert float(posterior.mean(here)) > 0.9
        x[0, 0] = 5.0
        assert abs(float(posterior.mean(here))) < 1e-6


def test_a_space_keeps_points_of_its_own():
    points = torch.linspace(0, 1, 5, dtype=F64).unsqueeze(-1)
    spaces = [
        hyperparameters.Space([rbf_kernel(0.1)], points=points).points,
        indirect.Space(points, conditional=indirect.Point(), points=points).actions,
    ]
    points.mul_(0)
    assert all(float(own[-1]) == 1 for own in spaces)


def test_a_robust_policy_recommends_what_stays_good_nearby():
    points = torch.linspace(0, 1, 101, dtype=F64).unsqueeze(-1)
    f = 1.5 * (-0.5 * ((points - 0.25) / 0.02) ** 2).exp() + (-0.5 * ((points - 0.7) / 0.12) ** 2).exp()
    known = GaussianProcess(rbf_kernel(0.05), 0.05)
    told = {}
    for name, make in (("plain", hyperparameters.HEGPUCB), ("robust", hyperparameters.HEStableOpt)):
        policy = make(hyperparameters.Space([known, known], points=points, epsilon=0.06))
        policy.tell(points, f[:, 0])
        told[name] = float(policy.recommend())
    assert abs(told["plain"] - 0.25) < 0.02 and abs(told["robust"] - 0.7) < 0.03
    box = hyperparameters.HEStableOpt(hyperparameters.Space([known, known], bounds=LINE, epsilon=0.06))
    box.tell(points, f[:, 0])
    assert abs(float(box.recommend()) - 0.7) < 0.03
