"""Every figure of the book at a tiny scale on an accelerator: ``python -m tests.figures_on_device``.

A process of its own, since constants of the book's modules lie on the device from their import on. One line each.
"""

import sys
import tempfile
import time
import warnings

import torch

from book import registry, tasks
from tests.pretended import NAME, WAITS, pretend

#: Where the first part takes long: the fit of a prior in many variables, a long study.
PARTS = {
    "subsets.figure_1": "plant-cheap-0.02/UCB-PSQ",
    "subsets.figure_2": "plant-cheap-0.04/UCB-PSQ",
    "subsets.map": "plant-cheap-0.04-25/pilot/UCB-PSQ",
    "subsets.walk": "ackley-x64",
    "contexts.effort": "newsvendor",
    "contexts.proof": "newsvendor",
    "hyperparameters.boxes": "robust/known",
}


def main() -> None:
    """Do one part of each figure with two seeds and two rounds."""
    from book.device import on_device

    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else NAME
    if device == NAME:
        pretend()
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or registry.TITLES:
            WAITS.clear()
            start = time.process_time()
            try:
                with on_device(device):  # before the chapter is imported; a task is there by itself
                    part = PARTS.get(name) or registry.load(name).parts()[0]
                    plan = tasks.plan(name, "reader", seeds=range(2), steps=2, parts=[part], device=device)
                for task in plan:
                    tasks.perform(task, folder)
                word = "ran" if device == "cuda" or WAITS else "was not there"
            except Exception as error:
                word = f"failed: {type(error).__name__} {error}"
            print(f"{name}: {word}, {time.process_time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
