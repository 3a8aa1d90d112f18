"""The reader of the airfoil data, and the objective and the problem that are made of it, on a file of our own."""

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from book.subsets.airfoil import airfoil_objective, load_airfoil
from book.subsets.problems import airfoil


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    low, high = np.array([200, 0, 0.025, 30, 4e-4]), np.array([20000, 22, 0.3, 71, 0.058])
    rows = low + (high - low) * rng.random((60, 5))
    level = 120 + 5 * np.sin(np.log(rows[:, 0])) - 0.3 * rows[:, 1] + 20 * rows[:, 2] + rng.normal(0, 0.1, 60)
    path = tmp_path_factory.mktemp("airfoil") / "airfoil_self_noise.dat"
    np.savetxt(path, np.column_stack([rows, level]), delimiter="\t")
    return path


def test_inputs_fill_the_unit_box_and_levels_are_standardized(file):
    inputs, levels = load_airfoil(file)
    table = np.loadtxt(file)
    assert inputs.amin(0).tolist() == [0] * 5 and inputs.amax(0).tolist() == [1] * 5
    frequency = np.log(table[:, 0])
    np.testing.assert_allclose(inputs[:, 0], (frequency - frequency.min()) / np.ptp(frequency))
    np.testing.assert_allclose(inputs[:, 1], (table[:, 1] - table[:, 1].min()) / np.ptp(table[:, 1]))
    assert float(levels.mean()) == pytest.approx(0, abs=1e-9) and float(levels.std()) == pytest.approx(1)


def test_the_objective_is_the_mean_of_botorchs_model(file):
    inputs, levels = load_airfoil(file)
    model = SingleTaskGP(inputs, levels.unsqueeze(-1), outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        expected = model.posterior(x).mean.squeeze(-1)
    torch.testing.assert_close(airfoil_objective(inputs, levels)(x), expected, rtol=0, atol=1e-4)


def test_the_problem_has_the_papers_sets(file):
    """Appendix C counts variables from one."""
    p = airfoil(file, "moderate", 0.04)
    sets = [" ".join(str(k + 1) for k in s) for s in p.space.control_sets]
    assert p.name == "Airfoil" and sets == ["4 5", "2 5", "1 4", "2 3", "3 5", "1 2", "3 4"]
    x = torch.rand(2000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(p.f(x).min()) > -1e-6 and float(p.f(x).std()) == pytest.approx(1, abs=0.05)


WORDS, SHORT, SAME = "no numbers", "1 2 3 4 5", "1 2 3 4 5 6\n1 2 3 4 5 6"
MISSING, NEGATIVE = "1 2 3 4 5 6\n2 3 4 5 nan 7", "-1 2 3 4 5 6\n2 3 4 5 6 7"


@pytest.mark.parametrize("text", [WORDS, SHORT, SAME, MISSING, NEGATIVE])
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "other.dat"
    path.write_text(text)
    with pytest.raises(ValueError, match="path must name a file of"):
        load_airfoil(path)
    with pytest.raises(FileNotFoundError):
        load_airfoil(tmp_path / "none.dat")
