"""The tests of a GPU, on a pretended one; and that it would notice what a GPU refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

REFUSED = [
    "torch.ones(2, device=d) + torch.ones(2)",
    "torch.ones(2, device=d).numpy()",
    "torch.rand(2, device=d, generator=torch.Generator())",
    "torch.ones(2)[torch.zeros(1, dtype=torch.long, device=d)]",
    "torch.stack([torch.ones(2, device=d), torch.ones(2)])",
    "torch.where(torch.ones(2, device=d) > 0, torch.ones(2), 0.0)",
]
CODE = """
import torch
from tests.pretended import end, pretend
pretend()
d = "pretended"
for line in {lines!r}:
    try:
        eval(line)
    except (RuntimeError, TypeError):
        continue
    raise SystemExit(f"{{line}} was let through")
x = torch.arange(4.0, dtype=torch.float64, requires_grad=True)
y = (x.to(d) ** 2)[torch.tensor([1, 3])].sum() + torch.tensor([2.0], device=d).sum()
y.backward()
assert y.device.type == d and float(y) == 12.0 and x.grad.tolist() == [0.0, 2.0, 0.0, 6.0], (y, x.grad)
p = torch.nn.Parameter(torch.ones(1, 2, device=d))
p.data = p.data.expand(3, 1, 2).clone()
assert p.shape == (3, 1, 2) and (2 * p).sum().item() == 12.0
end()
"""


def run(*arguments, **options):
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_it_refuses_what_a_gpu_refuses():
    run("-W", "ignore", "-c", CODE.format(lines=REFUSED))


@pytest.mark.timeout(900)
def test_everything_that_is_tested_on_a_gpu():
    # Files that name neither the device nor the mark have no such test; to import them all takes as long as a fifth.
    texts = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    files = [str(path) for path, text in texts.items() if "accelerator" in text or "mark.cuda" in text]
    report = run("-m", "pytest", "-p", "tests.pretended", "-p", "no:cacheprovider", "-m", "cuda", "-q", *files)
    assert " passed" in report and "skipped" not in report.splitlines()[-1], report
