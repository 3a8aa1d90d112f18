"""What a user tells, in whatever form, read as rows of a batch."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbo_lib.checks import as_tensor, as_values, require

if TYPE_CHECKING:
    from cbo_lib.former.policy import Policy


def read(policy: "Policy", query: Any, y: Any, seen: Mapping[str, Any]) -> dict[str, Tensor]:
    """Everything that was told, each finite, ``replicates x n x ...``; NaN where left out."""
    given = {name: value for name, value in seen.items() if value is not None}
    wrong = [f"{name} is missing" for name in sorted(policy.sees.keys() - given.keys() - policy.optional)]
    wrong += [f"{name} is unknown" for name in sorted(seen.keys() - policy.sees.keys())]
    if wrong:
        raise ValueError(f"tell takes {', '.join(['query', 'y', *policy.sees])}; {' and '.join(wrong)}")
    if policy._alone:
        values = as_values("y", y, like=policy.space.like)  # first: new actions are numbered as they are encoded
        rows = {name: policy.encode(name, value) for name, value in {**given, "query": query}.items()}
        column = values.dim() == 2 and values.shape[1] == 1
        require(values.dim() < 2 or column, "y must be a number, or one a query", f"shape {tuple(values.shape)}")
        rows = {name: tensor.unsqueeze(0) for name, tensor in {**rows, "y": values.reshape(-1)}.items()}
    else:
        rows = {}
        for name, value in {"query": query, "y": y, **given}.items():
            dims = {"query": policy.query_dims, "y": 0, **policy.sees}[name]
            tensor = as_tensor(name, value, policy.space.like, keep=name == "query" and not dims)
            rows[name] = tensor.unsqueeze(1) if tensor.dim() == dims + 1 else tensor
            fits = rows[name].dim() == dims + 2 and len(tensor) == policy.replicates
            each = f"one row a replicate, {policy.replicates} with {dims} more dimensions, or several"
            require(fits, f"{name} must hold {each}", f"shape {tuple(tensor.shape)}")
    n = rows["query"].shape[1]
    for name, tensor in rows.items():
        require(tensor.shape[1] == n, f"{name} must hold as many rows as query, {n}", tensor.shape[1])
        part = tensor[0] if policy._alone else tensor
        some = name in policy.optional and not bool(part.isnan().all())  # a table may lack some
        as_values(name, part.nan_to_num(0.0, math.inf, -math.inf) if some else part)
        own, before = tensor.shape[2:], policy.data[name].shape[2:] if policy.data else tensor.shape[2:]
        require(own == before, f"{name} must have the shape {tuple(before)} of those told before", own)
    for name in policy.sees.keys() - given.keys():
        rows[name] = torch.full_like(rows["y"], math.nan)
    return rows
