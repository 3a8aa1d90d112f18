"""Copies of the notebooks for JupyterLab: how they are made, and those that the build made."""

import re

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book._ext import lab
from book._tools import handout
from tests.book.test_pages import PAGES

ROOT = handout.ROOT
NAMES = [name for name in PAGES if (ROOT / f"{name}.ipynb").exists()]
BOOK = lab.Book(
    {"reward": "Eq. 2.1", "main": "Theorem 2.3", "agg-map": "Figure 2.4"},
    {"book/notation": "Notation", "book/a/2_policies": "The policies"},
    {"one": ("Munos (2014)", "https://example.org"), "two": ("Zhang et al. (2022)", None)},
    {"book/a/1_setting": ["Figure 2.4"]},
)


def shown(text):
    return lab.Page("book/a/1_setting", BOOK, {"ratio": "3.14159", "who": "'GPOO'"}).text(text).strip()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("by {cite:t}`one` and {cite}`one,two`",
         "by [Munos (2014)](https://example.org) and ([Munos, 2014](https://example.org); Zhang et al., 2022)"),
        ("{eq}`reward`, {prf:ref}`main`, {fig}`agg-map`, {ref}`here <main>`",
         "Eq. 2.1, Theorem 2.3, Figure 2.4, here"),
        ("{glue:text}`who` {glue:text}`ratio:.2f` {glue:text}`ratio:.0%`", "GPOO 3.14 314%"),
        ("(label)=\n## Title", "## Title"),
        ("$$a$$ (reward)", r"$$a \tag{2.1}$$"),
        ("$$\na\n$$ (reward)", "$$\na \\tag{2.1}\n$$"),
        ("$$a$$ and $$b$$ (reward)", r"$$a$$ and $$b \tag{2.1}$$"),
        ("```{math}\n:label: reward\na\n```", "$$\na \\tag{2.1}\n$$"),
        ("`{eq}` and ``{cite}`one` ``", "`{eq}` and ``{cite}`one` ``"),
        ("```python\n{eq}`reward`\n```", "```python\n{eq}`reward`\n```"),
        ("[](2_policies.ipynb#x), [it](2_policies.ipynb), [](../notation.md), [there](#below), [out](https://a.b/c.md)",
         "[The policies](2_policies.ipynb), [it](2_policies.ipynb), Notation, there, [out](https://a.b/c.md)"),
        (":::{prf:theorem} Small regret\n:label: main\n\nLet\n\n$$\na\n$$\n:::",
         "> **Theorem 2.3 (Small regret).**\n>\n> Let\n>\n> $$ a $$"),
        (":::{prf:lemma} Lemma 1\n:label: other\n:nonumber:\nA.\n:::", "> **Lemma (Lemma 1).**\n>\n> A."),
        (":::{prf:proof}\nB.\n:::", "> *Proof.* B."),
        (":::{admonition} Note\nC {eq}`reward`.\n:::\nD.", "> **Note.**\n>\n> C Eq. 2.1.\n\nD."),
        ("::::{note}\n:::{admonition} Inner\nE.\n:::\n::::", "> **Note.**\n>\n> > **Inner.**\n> >\n> > E."),
        (":::{admonition} Solution\n:class: dropdown\nF.\n:::",
         "<details>\n<summary>Solution</summary>\n\nF.\n\n</details>"),
    ],
)  # fmt: skip
def test_text_is_plain_markdown(written, read):
    assert shown(written) == read


def test_questions_lose_their_keys():
    text = shown("```{quiz}\nquestion: What?\nchoices:\n- {text: this, feedback: sure, right: true}\n"
                 "- {text: $b$, feedback: sorry}\n```")  # fmt: skip
    assert text == "**Question.** What?\n\n- [ ] this\n- [ ] $b$"


def test_cells_fold_as_on_the_page_and_keep_what_needs_no_kernel():
    figure = new_output("display_data", {"text/html": "<img>", "application/vnd.jupyter.widget-view+json": {}})
    value = new_output("display_data", {"application/papermill.record/text/plain": "2"})
    value["metadata"] = {"scrapbook": {"name": "two"}}
    cells = [new_markdown_cell("# Title\n\nRun time: {glue:text}`two` s.")]
    for tag in ("hide-input", "hide-cell", "solution", "nbval-check-output"):
        cells.append(new_code_cell("1", metadata={"tags": [tag]}, outputs=[figure, value]))
    made = lab.lab_copy(new_notebook(cells=cells), "book/a/1_setting", BOOK)
    assert made.cells[0].source.startswith("# Title\n\nRun time: 2 s.\n\n> **This is a copy of a page**")
    folded = [cell.metadata.get("jupyter") for cell in made.cells[1:]]
    both = {"source_hidden": True, "outputs_hidden": True}
    assert folded == [{"source_hidden": True}, both, both, None]
    assert [[list(output.data) for output in cell.outputs] for cell in made.cells[1:]] == [[["text/html"]]] * 4


def test_what_a_reader_changed_stays(tmp_path, capsys):
    source, target = tmp_path / "built", tmp_path / "lab"
    source.mkdir()
    for turn, changed in enumerate(["", "mine", ""]):
        for name in ("a.ipynb", "b.ipynb"):
            (source / name).write_text(f"{name} {turn}")
        if changed:
            (target / "b.ipynb").write_text(changed)
        lab.bring(source, target)
    assert (target / "a.ipynb").read_text() == "a.ipynb 2"
    assert (target / "b.ipynb").read_text() == "mine"
    assert capsys.readouterr().out.count("b.ipynb has your changes") == 2


@pytest.fixture(scope="module", params=NAMES)
def pair(request, html):
    """A notebook and its copy."""
    return (
        request.param,
        nbformat.read(ROOT / f"{request.param}.ipynb", as_version=4),
        nbformat.read(html.parent / "lab" / f"{request.param}.ipynb", as_version=4),
    )


def test_a_copy_shows_what_the_page_shows(pair, html):
    name, notebook, copied = pair
    nbformat.validate(copied)
    assert (html / "_sources" / f"{name}.ipynb").read_bytes() == (html.parent / "lab" / f"{name}.ipynb").read_bytes()
    assert "make lab" in copied.cells[0].source
    assert [cell.id for cell in copied.cells] == [cell.id for cell in notebook.cells]
    text = "\n\n".join(cell.source for cell in copied.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^```.*?^```|(`+)(?!`).+?(?<!`)\1(?!`)", "CODE", text, flags=re.M | re.S)
    assert not re.findall(r"^.*(?:^ *:{3,}|`{3,}\{|\{[\w:-]+\}CODE|^\([\w:.-]+\)=$).*$", prose, flags=re.M)
    assert not re.search(r"\$\$ *\([\w:.-]+\)", prose)
    assert text.count("<details>") == text.count("</details>")


def test_a_copy_gives_no_answer_away(pair):
    _, notebook, copied = pair
    for before, after in zip(notebook.cells, copied.cells, strict=True):
        if "solution" not in before.metadata.get("tags", []):
            continue
        if after.cell_type == "code":
            assert after.metadata["jupyter"]["source_hidden"] and after.metadata["jupyter"]["outputs_hidden"]
        else:
            outside = re.sub(r"<details>.*?</details>", "", after.source, flags=re.S)
            assert len(outside.strip()) == 0, outside
    text = "\n".join(cell.source for cell in copied.cells)
    for body in re.findall(r"^```\{quiz\}\n(.*?)^```$", "\n".join(c.source for c in notebook.cells), re.M | re.S):
        for choice in yaml.safe_load(body)["choices"]:
            assert choice["feedback"] not in text


def test_a_copy_has_the_outputs_of_its_run(pair):
    _, notebook, copied = pair
    drawn = [cell for cell in copied.cells if re.search(r"^figures\.show\(", cell.source, re.M)]
    assert all(any("<img" in o.get("data", {}).get("text/html", "") for o in cell.outputs) for cell in drawn)
    for before, after in zip(notebook.cells, copied.cells, strict=True):
        if "nbval-check-output" in before.metadata.get("tags", []) and before.outputs:
            assert after.outputs


def test_a_copy_runs(html, tmp_path):
    copied = nbformat.read(html.parent / "lab" / "book" / "aggregated" / "1_setting.ipynb", as_version=4)
    run = NotebookClient(copied, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any("<img" in o.get("data", {}).get("text/html", "") for c in run.cells for o in c.get("outputs", []))
