"""Each notebook runs once, again when what it reads has changed, and nbval reads that run."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from book._tools.execute_notebooks import executed, open_cache, state

ROOT = Path(__file__).resolve().parents[2]
FILES = ("cbo_lib/gp.py", "book/verdict.py", "book/contexts/results/a.npz", "requirements.lock", "book/index.md")


def write(path: Path, *sources: str) -> Path:
    """A notebook that notes each of its runs in a file, and claims to print 2."""
    code = [nbformat.v4.new_code_cell(source) for source in ("open('runs', 'a').write('x')", *sources)]
    code[-1].metadata.tags, code[-1].execution_count = ["nbval-check-output"], 2
    code[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# One\nRun time: about 3 s."), *code])
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old\n", encoding="utf-8")
    contents = "root: book/index\nparts:\n- chapters:\n  - file: book/a\n    sections:\n    - file: book/b\n"
    (tmp_path / "_toc.yml").write_text(contents, encoding="utf-8")
    write(tmp_path / "book/a.ipynb", "print(2)")
    write(tmp_path / "book/b.ipynb", "print(1 + 1)")
    return tmp_path


def execute(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client of a kernel leaves sockets open."""
    command = [sys.executable, str(ROOT / "book/_tools/execute_notebooks.py"), *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def runs(root: Path) -> int:
    return len((root / "book/runs").read_text(encoding="utf-8"))


@pytest.mark.parametrize("changed", FILES)
def test_the_state_is_that_of_code_data_and_lock(changed: str, root: Path) -> None:
    before = state(root)
    assert state(root) == before
    (root / changed).write_text("new\n", encoding="utf-8")
    assert (state(root) != before) == (changed != "book/index.md")


def nbval(root: Path) -> str:
    """What nbval says of the notebooks that were run."""
    options = ["-p", "plugin_under_test", "--nbval-lax", "--executed", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "book", *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout


def test_a_notebook_runs_once_for_each_state_and_nbval_reads_that_run(root: Path) -> None:
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    shutil.copy(ROOT / "book/conftest.py", root / "plugin_under_test.py")
    write(root / "book/b.ipynb", "1 / 0")
    done = execute(root)
    assert done.returncode == 1
    assert "book/a.ipynb: " in done.stdout
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith("notebooks failed: book/b.ipynb\n")
    assert runs(root) == 2
    shown = nbval(root)
    assert "2 passed, 2 errors" in shown
    assert "b.ipynb was not run as it stands" in shown

    write(root / "book/b.ipynb", "print(3, flush=True); print(4); display(5); print(6)")
    assert execute(root).returncode == 0
    assert runs(root) == 3
    shown = nbval(root)
    assert "1 failed, 3 passed" in shown
    assert "book/b.ipynb::Cell 1" in shown

    done = execute(root, "--workers", "1")
    assert (done.returncode, done.stdout) == (0, "")
    assert runs(root) == 3
    notebook = nbformat.read(root / "book/b.ipynb", as_version=4)
    kept = executed(open_cache(root), notebook)
    assert kept is not None
    first, table, last = kept.cells[2].outputs  # in this order, and what is printed at once stands together
    assert (first.text, table.output_type, last.text) == ("3\n4\n", "display_data", "6\n")
    (root / "cbo_lib/gp.py").write_text("new\n", encoding="utf-8")
    assert executed(open_cache(root), notebook) is None


PREPARED = "import os, sys; print('torch' in sys.modules, os.path.basename(os.getcwd()), os.getpid())"


def test_of_many_notebooks_each_gets_a_kernel_with_the_imports_done(root: Path) -> None:
    names = [*"abcd"]
    contents = "".join(f"  - file: book/{name}\n" for name in names)
    (root / "_toc.yml").write_text(f"root: book/index\nparts:\n- chapters:\n{contents}", encoding="utf-8")
    for name in names:
        write(root / f"book/{name}.ipynb", f"{PREPARED}  # {name}")
    write(root / "book/d.ipynb", "1 / 0")
    done = execute(root)
    assert done.returncode == 1 and done.stderr.endswith("notebooks failed: book/d.ipynb\n")
    assert runs(root) == 4
    said = []
    for name in "abc":
        kept = executed(open_cache(root), nbformat.read(root / f"book/{name}.ipynb", as_version=4))
        assert kept is not None
        said.append(kept.cells[2].outputs[0].text.split())
    assert {tuple(line[:2]) for line in said} == {(str(sys.platform.startswith("linux")), "book")}
    processes = [int(line[2]) for line in said]
    assert len(set(processes)) == 3 and not any(Path(f"/proc/{process}").exists() for process in processes)


ABANDONED = """
import time
from jupyter_client.manager import start_new_kernel
from book._tools import kernels
with kernels.prepared():
    manager, client = start_new_kernel()
    client.execute_interactive("import os; print(os.getpid(), os.getppid(), flush=True)")
    print(manager.provisioner.process.pid, flush=True)
    time.sleep(1000)
"""


def runs_still(process: str) -> bool:
    """Whether it is there and not dead; one that nobody waited for stays listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels are prepared on Linux alone")
def test_nothing_outlives_a_build_that_is_killed() -> None:
    """Neither the kernel, nor the process that prepared it, nor the one that Jupyter takes for it."""
    with subprocess.Popen([sys.executable, "-c", ABANDONED], cwd=ROOT, stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        processes = [*build.stdout.readline().split(), *build.stdout.readline().split()]
        build.kill()
    assert len(set(processes)) == 3
    for process in processes:
        while runs_still(process):
            time.sleep(0.1)
