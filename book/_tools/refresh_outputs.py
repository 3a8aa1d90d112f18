"""Run notebooks and store only the outputs that are checked.

A cell tagged ``nbval-check-output`` keeps what it prints and the text of its tables; every other output and all
incidental metadata go.
So a stored notebook holds no image, and its diffs hold only what someone wrote or what a check reads.

    python book/_tools/refresh_outputs.py                       # every notebook of the book
    python book/_tools/refresh_outputs.py book/a.ipynb ...      # some
"""

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

CHECKED = "nbval-check-output"
KEPT_CELL_METADATA = {"tags", "mystnb", "nbgrader"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def kept_output(output: NotebookNode, where: str) -> NotebookNode:
    """One output of a checked cell, as it is stored.

    Raises:
        ValueError: if the output is neither text on stdout nor a result with a text that says it all. nbval compares
            all of a checked cell's outputs, so a figure there could never be both left out and checked.
    """
    if output.output_type == "stream" and output.name == "stdout":
        return output
    data = output.get("data", {})
    table = "".join(data.get("text/html", "")).startswith("<table")
    if set(data) == {"text/plain"} or (set(data) == {"text/plain", "text/html"} and table):
        counted = {"execution_count": None} if output.output_type == "execute_result" else {}
        return nbformat.v4.new_output(output.output_type, data={"text/plain": data["text/plain"]}, **counted)
    kind = output.get("name") or ", ".join(sorted(output.get("data", {}))) or output.output_type
    raise ValueError(f"{where}: a cell tagged {CHECKED} may only print text, not give {kind}; split it")


def clean(notebook: NotebookNode, name: str) -> NotebookNode:
    """Keep the checked outputs of an executed notebook and drop all else, in place."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, start=1):
        kept = {key: value for key, value in cell.metadata.items() if key in KEPT_CELL_METADATA}
        cell.metadata = nbformat.from_dict(kept)
        cell.pop("attachments", None)
        if cell.cell_type != "code":
            continue
        where = f"{name}, cell {number}"
        checked = CHECKED in tags(cell)
        cell.outputs = [kept_output(output, where) for output in cell.outputs] if checked else []
        cell.execution_count = number if checked else None  # nbval refuses outputs of a cell that never ran
        if checked and not cell.outputs:
            raise ValueError(f"{where}: tagged {CHECKED}, but it prints nothing")
    return notebook


def refresh(path: Path, timeout: int = 600) -> None:
    """Execute one notebook in its own folder and write it back; on an error the file stays as it was."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # what a cell printed last time must not survive a cell that is skipped
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        coalesce_streams=True,  # how a print is cut into messages depends on timing
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=ERROR"],  # the kernel warns of its own local transport
    )
    client.execute()
    text = nbformat.writes(clean(notebook, path.name), version=4) + "\n"
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def main(arguments: list[str] | None = None) -> int:
    """Refresh the notebooks named on the command line, or all."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("notebooks", nargs="*", type=Path)
    paths = parser.parse_args(arguments).notebooks
    if not paths:
        book = Path(__file__).resolve().parents[1]
        paths = sorted(p for p in book.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    failed = 0
    for path in paths:
        start = time.perf_counter()
        try:
            refresh(path)
        except Exception as error:  # one broken notebook must not hide the state of the others
            failed += 1
            print(f"{path}: FAILED\n{error}", file=sys.stderr)
        else:
            print(f"{path}: {time.perf_counter() - start:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
