"""Run the notebooks of the book side by side and keep the executed ones where the build of the pages finds them.

A notebook that is already kept is not run again, unless code or data that notebooks read have changed since. The build
takes what is here, and so does the check of stored outputs: each notebook runs once. Its kernel is one of those that
`kernels.py` prepares.

    python book/_tools/execute_notebooks.py --workers 2
"""

import argparse
import contextlib
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor

from book._tools import kernels

CACHE = Path("_build/.jupyter_cache")
TIMEOUT = 600


def state(root: Path) -> str:
    """A checksum of what notebooks read besides themselves: the code, stored results and the lock."""
    files = {root / "requirements.lock"}
    for folder in (root / "cbo_lib", root / "book"):
        files |= {p for p in folder.rglob("*") if p.suffix in (".py", ".npz") or "results" in p.parts}
    checksum = 0
    for path in sorted(p for p in files if p.is_file() and "__pycache__" not in p.parts):
        checksum = zlib.crc32(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes(), checksum)
    return f"{checksum:08x}"


def open_cache(root: Path) -> JupyterCacheAbstract:
    """The executed notebooks of this state; those of another are removed."""
    cache, stamp = root / CACHE, root / CACHE.parent / ".library-state"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != state(root):
        shutil.rmtree(cache, ignore_errors=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(state(root), encoding="utf-8")
    return get_cache(cache)


def executed(cache: JupyterCacheAbstract, notebook: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """A notebook with the outputs of its run; None if it was not run."""
    try:
        return cache.merge_match_into_notebook(notebook)[1]
    except KeyError:
        return None


def pages(root: Path) -> Iterator[Path]:
    """The notebooks of the table of contents."""
    contents = (root / "_toc.yml").read_text(encoding="utf-8")
    stack = [yaml.safe_load(contents)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, dict):
            path = root / f"{entry.get('file') or entry.get('root', '')}.ipynb"
            if path.is_file():
                yield path
            stack.extend(entry.values())
        elif isinstance(entry, list):
            stack.extend(entry)


def stated_seconds(notebook: nbformat.NotebookNode) -> float:
    """The run time that the first cell gives."""
    found = re.search(r"(\d+)\s*(s|min)", notebook.cells[0].source.partition("un time")[2]) if notebook.cells else None
    return 0.0 if found is None else float(found[1]) * (60 if found[2] == "min" else 1)


def run(path: Path, notebook: nbformat.NotebookNode) -> ExecutionResult:
    """Run a notebook in its own folder."""
    quiet = ["--log-level=ERROR"]  # the kernel warns of its own local transport
    result = single_nb_execution(notebook, str(path.parent), TIMEOUT, allow_errors=False, extra_arguments=quiet)
    # Lines that are printed one after the other stand together, and stay between the tables that they name.
    CoalesceStreamsPreprocessor().preprocess(result.nb, {})
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run what has not been run of the book in the current folder."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--workers", type=int, default=2, help="how many notebooks run at once (default 2)")
    workers = parser.parse_args(arguments).workers
    root = Path.cwd()
    cache = open_cache(root)
    notebooks = {path: nbformat.read(path, as_version=4) for path in pages(root)}
    todo = [path for path, notebook in notebooks.items() if executed(cache, notebook) is None]
    todo.sort(key=lambda path: stated_seconds(notebooks[path]), reverse=True)  # a long one begun last would end alone
    failed = []
    # The imports of three kernels take longer than to prepare all.
    ready = kernels.prepared() if len(todo) > 3 else contextlib.nullcontext()
    with ready, ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(run, path, notebooks[path]): path for path in todo}
        for future in as_completed(futures):
            path, result = futures[future], future.result()
            name = path.relative_to(root).as_posix()
            if result.err is not None:
                failed.append(name)
                print(f"{name}: FAILED after {result.time:.0f} s\n{result.exc_string}", file=sys.stderr, flush=True)
                continue
            bundle = CacheBundleIn(result.nb, str(path), data={"execution_seconds": result.time})
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            print(f"{name}: {result.time:.0f} s", flush=True)
    if failed:
        print(f"notebooks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
