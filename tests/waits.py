"""How often a step of each policy waits for the device: `python -m tests.waits [NAME ...]` prints a table.

A wait is a number that leaves the device, or a result whose size depends on numbers; see `tests/pretended.py`. On a GPU
each of them stops the queue of kernels. Steps are counted between the initial design and the end, without fits.
"""

import sys
import warnings

import torch

from tests import pretended
from tests.runs import ALL, make

STEPS = 4


@torch.no_grad()
def waits(setting, name, steps=STEPS):
    """Waits a step of ask, observe, tell and recommend, and the lines of the most, with a given prior."""
    run = make(setting, name, True, pretended.NAME)
    policy, problem = run.policy, run.problem
    from cbo_lib.random import ReplicateGenerators

    noise = ReplicateGenerators([3, 0], stream=0)
    policy.start(noise.seeds)
    for step in range(policy.initial + 1 + steps):
        if step == policy.initial + 1:
            pretended.WAITS.clear()
        query = policy.ask()
        seen = problem.observe(query, noise.at(step + 1))
        seen = dict(seen) if isinstance(seen, dict) else {"y": seen}
        wanted = {part: seen[part] for part in policy.sees if part in seen}
        policy.tell(seen.get("played", query), seen["y"], **wanted)
        policy.recommend()
        policy.trace()
    return sum(pretended.WAITS.values()) / steps, pretended.WAITS.most_common(3)


def main(names):
    pretended.pretend()
    for setting, name, given in ALL:
        if given and (not names or name in names or setting in names):
            count, lines = waits(setting, name)
            most = ", ".join(f"{line} ({number / STEPS:g})" for line, number in lines)
            print(f"{setting:16}{name:24}{count:8.1f}  {most}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
