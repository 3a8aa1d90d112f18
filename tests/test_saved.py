"""A policy that was saved asks what it would have asked, in every setting."""

import pytest
import torch

from tests.test_bad_input import TOLD


@pytest.mark.parametrize("setting", TOLD)
def test_a_saved_policy_asks_the_same(setting, tmp_path):
    make, told, seen = TOLD[setting]
    policy = make()
    policy.tell(*told, **seen)
    policy.save(tmp_path / "policy")
    asked, again = policy.ask(), getattr(policy, "kind", type(policy)).load(tmp_path / "policy").ask()
    assert type(again) is type(asked)
    if isinstance(asked, tuple):  # a subset and its values
        assert again[0] == asked[0]
        asked, again = asked[1], again[1]
    torch.testing.assert_close(again, asked, rtol=0, atol=1e-6)
