"""The portfolio's objective: its Gaussian process, what is stored, what a reader may load, and the simulation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from book._tools import sample_portfolio as tool
from book.contexts.controls import RandomDecisions
from book.contexts.portfolio import DATA, Surrogate, fit_surrogate, load_portfolio, save_surrogate
from book.contexts.problems import portfolio, unit_box
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.distributions import Normal, Uniform
from cbo_lib.former import fit
from cbo_lib.former.history import describe
from cbo_lib.former.simulate import simulate
from cbo_lib.measure import Measure
from tests.contexts.programs import daily_trade

F64 = torch.float64


def small(n=40, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=rng, dtype=F64)
    return x, torch.sin(4 * x[:, 0]) + x[:, 1] * x[:, 3] - x[:, 4].square()


@pytest.fixture(scope="module")
def fitted():
    return fit_surrogate(*small(150))


# ---- the Gaussian process


def test_the_surrogate_is_its_sum_written_out(rng):
    x, weights = torch.rand(7, 5, generator=rng, dtype=F64), torch.randn(7, generator=rng, dtype=F64)
    lengthscale = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.3], dtype=F64)
    surrogate = Surrogate(x, weights, lengthscale, torch.tensor(1.5, dtype=F64))
    points = torch.rand(3, 2, 5, generator=rng, dtype=F64)
    found = surrogate(points)
    assert found.shape == (3, 2)
    for at in np.ndindex(3, 2):
        gaps = (points[at] - x) / lengthscale
        expected = 1.5 + float((weights * (-0.5 * gaps.square().sum(-1)).exp()).sum())
        assert float(found[at]) == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.gradcheck(surrogate, (points.requires_grad_(),))


def test_slices_change_nothing(rng):
    surrogate = load_portfolio()
    points = torch.rand(3000, 5, generator=rng, dtype=F64)
    together = surrogate(points)
    assert len(points) * len(surrogate.x) > 2**23
    torch.testing.assert_close(together[-5:], surrogate(points[-5:]))


def test_a_fit_is_the_posterior_mean_of_its_own_hyperparameters(fitted):
    """The weights solve the textbook system, for the variance and the noise that they imply."""
    x, y = small(150)
    lengthscale = fitted.lengthscale.numpy()
    scaled = x.numpy() / lengthscale
    kernel = np.exp(-0.5 * ((scaled[:, None] - scaled) ** 2).sum(-1))
    residual = y.numpy() - float(fitted.mean) - kernel @ fitted.weights.numpy()
    noise = residual / fitted.weights.numpy()  # (K + noise I) w = y - mean, with K of variance one
    assert np.ptp(noise) <= 1e-6 * noise.mean() and noise.mean() >= 1e-4 * (1 - 1e-6)
    assert float((fitted(x) - y).std()) < 0.05 * float(y.std())


def test_a_fit_predicts_what_it_has_not_seen(fitted):
    x, y = small(500, seed=9)
    assert float((fitted(x) - y).square().mean()) < 0.01 * float(y.var())


@pytest.mark.parametrize(
    ("marginals", "laws"),
    [
        ((Normal(0.5, 0.1), Normal(0.5, 0.1)), (stats.norm(0.5, 0.1), stats.norm(0.5, 0.1))),
        ((Uniform(), Normal(0.8, 0.3)), (stats.uniform(), stats.norm(0.8, 0.3))),
    ],
)
def test_the_expectation_is_a_double_integral(fitted, marginals, laws):
    """Inside of the box by scipy; the faces and corners of clipping by hand."""
    breaks = ((0.3, 0.5, 0.7),) * 2
    value = fitted.expectation(QuadratureDistribution(marginals, unit_box(2), breaks))
    x = torch.tensor([0.3, 0.6, 0.2], dtype=F64)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    grid = (nodes + 1) / 2
    places, masses = [], []
    for law in laws:
        places.append(np.concatenate([[0.0, 1.0], grid]))
        masses.append(np.concatenate([[law.cdf(0), law.sf(1)], weights / 2 * law.pdf(grid)]))
    table = torch.as_tensor(np.stack(np.meshgrid(*places, indexing="ij"), -1))
    full = torch.cat([x.expand(*table.shape[:2], 3), table], -1)
    expected = masses[0] @ fitted(full).numpy() @ masses[1]
    assert float(value(x)) == pytest.approx(expected, abs=1e-9)
    assert value(x.expand(4, 2, 3)).shape == (4, 2)


# ---- what is stored


def test_the_stored_surrogate_is_small_and_whole():
    assert DATA.stat().st_size < 150_000
    with np.load(DATA, allow_pickle=False) as content:
        assert set(content.files) == {"x", "weights", "lengthscale", "mean"}
        assert content["x"].shape == (3000, 5) and content["x"].dtype == np.float32
    surrogate = load_portfolio()
    assert surrogate.x.dtype == surrogate.weights.dtype == F64
    assert describe(surrogate)["class"] == "Surrogate" and "crc32" in describe(surrogate)["weights"]


def test_the_stored_points_are_those_of_the_script():
    engine = torch.quasirandom.SobolEngine(5, scramble=True, seed=0)
    assert torch.equal(load_portfolio().x, engine.draw(tool.SAMPLES, dtype=F64).float().double())


def test_the_stored_surrogate_follows_the_simulation(rng):
    """At 40 of its own points, and at 40 that it has not seen."""
    surrogate, market = load_portfolio(), tool.Market()
    spread = float(surrogate(surrogate.x).std())
    seen = surrogate.x[torch.randperm(3000, generator=rng)[:40]]
    fresh = torch.rand(40, 5, generator=rng, dtype=F64)
    truth = tool.simulate(torch.cat([seen, fresh]), market)
    error = (surrogate(torch.cat([seen, fresh])) - truth).square().reshape(2, 40).mean(-1).sqrt()
    assert float(error[0]) < 0.1 * spread and float(error[1]) < 0.15 * spread


def test_saving_and_loading(tmp_path, fitted):
    save_surrogate(fitted, tmp_path / "one.npz")
    again = load_portfolio(tmp_path / "one.npz")
    points = small(20, seed=3)[0]
    torch.testing.assert_close(again(points), fitted(points), rtol=0, atol=1e-4)
    one = portfolio("uniform", surrogate=again)
    torch.testing.assert_close(one.f(points), again(points))


# ---- what a reader brings


def rows(path, header=None, n=60):
    x, y = small(n)
    np.savetxt(path, torch.cat([x, y[:, None]], -1).numpy(), delimiter=",", header=header or "", comments="")
    return x, y


@pytest.mark.parametrize("header", [None, "risk,trade,holding,spread,borrowing,return"])
def test_a_table_of_runs(tmp_path, header):
    x, y = rows(tmp_path / "runs.csv", header)
    if header is None:  # savetxt writes an empty line of names
        text = (tmp_path / "runs.csv").read_text(encoding="utf-8").lstrip("\n")
        (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    surrogate = load_portfolio(tmp_path / "runs.csv")
    assert len(surrogate.x) == 60
    assert float((surrogate(x) - y).std()) < 0.1 * float(y.std())


def test_arrays_of_runs(tmp_path):
    x, y = small(60)
    np.savez(tmp_path / "runs.npz", x=x.numpy(), y=y.numpy())
    surrogate = load_portfolio(tmp_path / "runs.npz")
    torch.testing.assert_close(surrogate(x), fit_surrogate(x, y)(x))


def publish(folder, n=20, files=3, **changed):
    """Runs as [Cakmak2020]'s script stores them: minus the return, in single precision."""
    folder.mkdir()
    x, y = small(n * files)
    parts = zip(x.float().split(n), y.float().split(n), strict=True)
    for seed, (points, values) in enumerate(parts, 9):  # "10" comes before "9" by name
        torch.save({"X": points[:, None], "Y": -values[:, None, None]} | changed, folder / f"port_n={n}_seed={seed}")
    return x, y


def test_the_published_runs_are_read_as_they_are(tmp_path):
    x, y = publish(tmp_path / "port_evals")
    (tmp_path / "port_evals" / "port_eval.py").write_text("raise SystemExit", encoding="utf-8")
    surrogate = load_portfolio(tmp_path / "port_evals")
    same = fit_surrogate(x.float().double(), y.float().double())
    torch.testing.assert_close(surrogate(x), same(x))
    assert float((surrogate(x) - y).std()) < 0.1 * float(y.std())  # the sign is that of the return
    assert portfolio("uniform", surrogate=surrogate).optimum > y.mean()


def test_published_runs_of_another_form_are_refused(tmp_path):
    publish(tmp_path / "flat", Y=torch.zeros(20))
    with pytest.raises(ValueError, match=r"X and Y must have shapes .* port_n=20_seed=9 has \(20, 1, 5\) and \(20,\)"):
        load_portfolio(tmp_path / "flat")
    publish(tmp_path / "code", X=Path("here"))
    with pytest.raises(ValueError, match=r"path must hold files with tensors X and Y, port_n=20_seed=9 does not"):
        load_portfolio(tmp_path / "code")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"path must hold files port_n=\.\.\._seed=\.\.\., empty has none"):
        load_portfolio(tmp_path / "empty")


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def arrays(path, **content):
    np.savez(path, **content)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: write(p / "a.txt", "1"), r"path must end in \.npz or \.csv, got a\.txt"),
        (lambda p: write(p / "a.csv", "1,2,3\n4,5,6\n"), r"path must hold 6 columns, a\.csv holds 3"),
        (lambda p: write(p / "a.csv", "a,b\nx,y\n"), r"path must hold a table of numbers, a\.csv does not"),
        (
            lambda p: write(p / "a.csv", "0,0,0,0,0,1\n2,0,0,0,0,2\n"),
            r"a\.csv: x must lie in the unit box, got .* 0 to 2",
        ),
        (lambda p: write(p / "a.csv", "0,0,0,0,0,1\n"), r"a\.csv: x and y must have shapes \(n, 5\) and \(n,\)"),
        (lambda p: write(p / "a.csv", "0,0,0,0,0,1\n1,0,0,0,0,1\n"), r"a\.csv: y must vary, got 2 times 1"),
        (lambda p: write(p / "a.csv", "0,0,0,0,0,1\n1,0,0,0,0,nan\n"), r"a\.csv: x and y must be finite"),
        (lambda p: write(p / "a.npz", "no archive"), r"path must be an \.npz file of plain arrays, a\.npz is not"),
        (lambda p: arrays(p / "a.npz", x=np.zeros((2, 5))), r"path must hold the arrays x and y, a\.npz holds \['x'\]"),
        (
            lambda p: arrays(p / "a.npz", x=np.array([None, {}], dtype=object), y=np.zeros(2)),
            r"path must be an \.npz file of plain arrays, a\.npz is not",
        ),
        (
            lambda p: arrays(p / "a.npz", x=np.zeros((2, 4)), y=np.zeros(2)),
            r"a\.npz: x and y must have shapes \(n, 5\) and \(n,\), got \(2, 4\) and \(2,\)",
        ),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        load_portfolio(make(tmp_path))


@pytest.mark.parametrize("name", ["none.npz", "none.csv"])
def test_a_missing_file_is_said_to_be_missing(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        load_portfolio(tmp_path / name)


# ---- the simulation


def test_the_daily_trade_is_that_of_a_conic_solver(rng):
    """From random positions, for parameters of the whole range."""
    market = tool.Market(days=30)
    parameters = tool.unscale(torch.rand(12, 5, generator=rng, dtype=F64))
    held = 1.6 * torch.rand(12, tool.ASSETS, generator=rng, dtype=F64) - 0.8
    found = tool.best_positions(held, market.forecast[7], market.covariance, parameters, iterations=2000)
    for row, before, after in zip(parameters.tolist(), held.numpy(), found.numpy(), strict=True):
        risk, trade, holding, spread, borrowing = row
        curved, impact = risk / (1 - tool.DECAY) * market.covariance.numpy(), trade * tool.IMPACT
        arguments = curved, impact, trade * spread / 2, holding * borrowing, tool.LIMIT
        best, loss = daily_trade(before, market.forecast[7].numpy(), *arguments)
        np.testing.assert_allclose(after, best, atol=2e-4)
        assert loss(after) <= loss(best) + 1e-7


def test_a_hundred_iterations_of_the_daily_trade_are_enough(rng):
    market = tool.Market(days=60)
    points = torch.rand(30, 5, generator=rng, dtype=F64)
    found = tool.simulate(points, market)
    tool_iterations = tool.best_positions.__defaults__
    try:
        tool.best_positions.__defaults__ = (1000,)
        exact = tool.simulate(points, market)
    finally:
        tool.best_positions.__defaults__ = tool_iterations
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-2)


def test_a_day_by_hand():
    """One day, from cash: the growth of the chosen positions after the costs."""
    market = tool.Market(days=1)
    points = torch.tensor([[0.2, 0.5, 0.0, 0.3, 0.6]], dtype=F64)
    parameters = tool.unscale(points)
    expected = [0.1 * 1e4**0.2, 5.5 * (8 / 5.5) ** 0.5, 0.1, 1e-4 + 0.3 * 99e-4, 1e-4 + 0.6 * 9e-4]
    np.testing.assert_allclose(parameters[0].numpy(), expected)
    w = tool.best_positions(torch.zeros(1, 6, dtype=F64), market.forecast[0], market.covariance, parameters)[0]
    assert bool((w < 0).any()) and bool((w > 0).any())
    cost = expected[3] / 2 * float(w.abs().sum()) + tool.IMPACT * float(w.square().sum())
    cost += expected[4] * float(-w[w < 0].sum())
    growth = np.log1p(float(w @ market.returns[0]) - cost)
    assert float(tool.simulate(points, market)) == pytest.approx(100 * 250 * growth)


def test_a_dearer_market_trades_less():
    market = tool.Market(days=40)
    spreads = torch.linspace(0, 1, 6, dtype=F64)
    points = torch.full((6, 5), 0.4, dtype=F64)
    points[:, 3] = spreads
    held = torch.zeros(6, 6, dtype=F64)
    w = tool.best_positions(held, market.forecast[3], market.covariance, tool.unscale(points))
    assert bool((w.abs().sum(-1).diff() <= 1e-6).all()) and float(w[0].abs().sum()) > 0


def test_the_market_is_what_it_says():
    market = tool.Market(days=4000, seed=5)
    returns, forecast = market.returns.numpy(), market.forecast.numpy()
    np.testing.assert_allclose(np.cov(returns.T), market.covariance.numpy(), rtol=0.12, atol=1e-5)
    # The forecast of the day's part of the return is right in sign and too large by the optimism.
    daily = (1 - tool.DECAY) * forecast
    slope = (
        (daily - daily.mean(0)).flatten()
        @ (returns - returns.mean(0)).flatten()
        / (daily - daily.mean(0)).var()
        / daily.size
    )
    assert 0.5 / tool.OPTIMISM < slope < 1.5 / tool.OPTIMISM
    signal = daily - daily.mean(0)
    lag = (signal[1:] * signal[:-1]).mean() / signal.var()
    assert lag == pytest.approx(tool.DECAY / 2, abs=0.1)  # half of what is seen is error
    assert torch.equal(tool.Market(days=20).returns, tool.Market(days=20).returns)


def test_the_script_writes_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "SAMPLES", 64)
    monkeypatch.setattr(tool, "Market", lambda days=15, seed=0, market=tool.Market: market(days, seed))
    monkeypatch.setattr("sys.argv", ["sample_portfolio.py", "--out", str(tmp_path / "out.npz")])
    tool.main()
    assert len(load_portfolio(tmp_path / "out.npz").x) == 64
    assert "64 runs" in capsys.readouterr().out


def test_a_fit_to_stiff_values_ends_at_its_maximum(monkeypatch):
    """A step of Newton's method that is cut in each coordinate for itself leads nowhere in some of these."""
    problem, steepest, maximize = portfolio("normal"), [], fit._maximize
    history = simulate(problem, RandomDecisions(problem.space, refit_every=1000), 68, range(100, 105), progress=False)
    x, y = problem.space.join(history["query"], history["context"]), history["observation"]
    monkeypatch.setattr(fit, "_maximize", lambda mll: steepest.append(maximize(mll)) or steepest[-1])
    for count in (46, 63, 66, 68):
        seen = Measure.dirac(x[:, :count])
        fit.fit_gaussian_process(seen, y[:, :count], problem.space.bounds, "rbf", [[0, 1, 2], [3, 4]])
    assert bool((torch.stack(steepest) < 1e-8).all())
