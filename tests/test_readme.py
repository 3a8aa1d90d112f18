"""README.md keeps its word: its Python runs and its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.strip().splitlines()[0][:40])
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_readme_shows_the_library_at_work() -> None:
    titles = ["## Use it on your own problem", "## Use cbo_lib in your own BoTorch loop"]
    assert 0 < README.index(titles[0]) < README.index(titles[1])
    first, second = BLOCKS
    assert len(first.split("\n\n", 1)[1].strip().splitlines()) <= 10, "ten lines after the import"
    assert ".ask()" in first
    assert ".tell(" in first
    assert "botorch" in second


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README, flags=re.M))
    assert {"book", "test", "lab"} <= named <= targets


def test_files_exist() -> None:
    """Links and pictures, and the notebooks and pages that commands name."""
    links = re.findall(r"\]\(([^):#]+)\)", README)
    files = re.findall(r"book/[\w/]+\.(?:ipynb|md)", README)
    assert links
    assert files
    assert [path for path in sorted({*links, *files}) if not (ROOT / path).exists()] == []


def test_every_time_is_measured() -> None:
    assert "TODO" not in README
