"""What is stored, how it is pooled and decided, and that a small run of everything works."""

import pytest
import torch

from book.indirect import experiments, registry
from book.indirect.playground import WIDTHS, answer
from book.verdict import paired


@pytest.mark.parametrize("name", ["figure_1", "figure_2", "floor", "peaks"])
def test_what_is_stored_is_what_the_registry_runs(name):
    run, arrays = registry.RUNS[name], experiments.stored(name)
    for part in run.parts():
        own = [key for key in arrays if key.startswith(f"{part}/")]
        assert own and all(len(arrays[key]) == len(run.seeds(part, "paper")) for key in own)
        assert all(bool(torch.isfinite(arrays[key]).all()) for key in own)
    assert len(arrays) == sum(len([k for k in arrays if k.startswith(f"{part}/")]) for part in run.parts())


def test_claims_are_differences_of_the_mean_of_both_maps():
    arrays, claims = experiments.stored("figure_1"), experiments.claims()
    pair = claims["1", "paper", "EI on g", "simple", "round 100"]
    parts = [arrays[f"paper/{h}/EI on g"][:, 0, 99] - arrays[f"paper/{h}/CMES"][:, 0, 99] for h in experiments.MAPS]
    assert pair.mean == pytest.approx(float(torch.stack(parts).mean()))
    plain = paired(torch.zeros(len(parts[0])), torch.stack(parts).mean(0))
    assert pair.low <= plain.low and pair.high >= plain.high  # widened by Holm
    assert {key[0] for key in claims} == {"1", "2", "river"}


def test_a_small_run_of_every_figure():
    for kind in ("paper", "moved"):
        found = experiments.figure_1(kind, "cosine", [1, 2], 7)
        assert {tuple(v.shape) for v in found.values()} == {(2, 2, 7)}
        first = torch.stack([v[:, :, :5] for v in found.values()])  # all begin with the same actions
        assert bool((first == first[:1]).all())
    fitted = experiments.figure_1("fitted", "linear", [1, 2], 7, names=["EI on g"])
    assert fitted["EI on g"].shape == (2, 2, 7)
    trees = experiments.figure_2("linear", "raw", 2, [1, 2], 40, (4, 8, 12))
    assert {tuple(v.shape) for v in trees.values()} == {(2, 2, 3)}
    assert all(bool((v.diff(dim=-1) <= 1e-12).all()) for v in trees.values())
    assert experiments.floor(50, 0.1, [1, 2], 7).shape == (2, 7)


def test_the_slider_shows_both_policies_at_every_width():
    now = answer(WIDTHS[4])
    assert now.mean.shape == now.f.shape == (201,) and 0.2 < now.gap < 0.3
    assert -0.5 <= now.cmes <= 3.5 and -0.5 <= now.mes <= 3.5
