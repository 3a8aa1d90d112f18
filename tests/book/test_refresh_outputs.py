"""``make outputs`` on small notebooks: it stores what is checked and nothing else."""

from pathlib import Path

import nbformat
import pytest

from book._tools import refresh_outputs as tool


def write(path: Path, *cells: nbformat.NotebookNode) -> Path:
    notebook = nbformat.v4.new_notebook(cells=list(cells), metadata={"vscode": {"noise": 1}, "authors": ["x"]})
    nbformat.write(notebook, path)
    return path


def code(source: str, *tags: str, **metadata: object) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags), **metadata})


def test_keeps_checked_text_and_strips_the_rest(tmp_path: Path) -> None:
    stale = code("1 / 0", "skip-execution")
    stale.outputs = [nbformat.v4.new_output("stream", name="stdout", text="stale")]
    path = write(
        tmp_path / "small.ipynb",
        nbformat.v4.new_markdown_cell("# A title", metadata={"collapsed": True}),
        code("x = 1 + 1\nprint(x)", "nbval-check-output", scrolled=True, mystnb={"image": {"alt": "two"}}),
        code("print('noise')"),
        code("x", "nbval-check-output"),
        code("from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')"),
        stale,
    )
    assert tool.main([str(path)]) == 0
    title, first, noise, result, image, skipped = nbformat.read(path, as_version=4).cells
    assert [o.text for o in first.outputs] == ["2\n"]
    assert [dict(o.data) for o in result.outputs] == [{"text/plain": "2"}]
    assert noise.outputs == image.outputs == skipped.outputs == []
    assert [c.execution_count for c in (first, noise, result, image, skipped)] == [2, None, 4, None, None]
    assert dict(title.metadata) == {}
    assert set(first.metadata) == {"tags", "mystnb"}
    metadata = nbformat.read(path, as_version=4).metadata
    assert set(metadata) == {"kernelspec", "language_info"}
    assert metadata.kernelspec.name == "python3"

    once = path.read_bytes()
    assert tool.main([str(path)]) == 0
    assert path.read_bytes() == once, "a second run must change nothing"
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from IPython.display import HTML\nHTML('<b>x</b>')", "text/html"),
        ("import sys\nprint('x', file=sys.stderr)", "stderr"),
        ("x = 1", "prints nothing"),
        ("raise RuntimeError('the cell broke')", "the cell broke"),
    ],
)
def test_refuses_what_cannot_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, message: str
) -> None:
    path = write(tmp_path / "bad.ipynb", code(source, "nbval-check-output"))
    before = path.read_bytes()
    assert tool.main([str(path)]) == 1
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before, "a notebook that fails stays as it was"
