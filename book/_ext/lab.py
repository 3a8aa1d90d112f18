"""Copies of the notebooks that show in JupyterLab what the pages show.

JupyterLab knows no directive, no role and no hidden cell of the book, and the notebooks of the repository hold no
figures. At the end of a build each notebook is written a second time, in plain Markdown and with the outputs of its
run: boxes become quotations, solutions fold, citations, glued values and the numbers of equations, theorems and figures
are those of the pages, and questions lose their keys. The copies lie in ``_build/lab``, where ``make lab`` takes them
from, and behind the download buttons of the pages.

What a reader changed in a copy stays: ``make lab`` brings a newer copy only where the old one is as it was brought.
"""

import copy
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from nbformat import NotebookNode
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from book._ext import captions, policy_code
from book._tools import execute_notebooks, handout

OPEN = re.compile(r"^( *)(:{3,}|`{3,}|~{3,})(?:\{([\w:-]+)\})?(.*)$")
OPTION = re.compile(r"^:([\w-]+):(.*)$")
ROLE_OR_CODE = re.compile(r"\{([\w:-]+)\}`([^`]+)`|(?<!`)(`+)(?!`).*?(?<!`)\3(?!`)", re.S)
LABELED = re.compile(r"\$\$((?:(?!\$\$).)*?)(\s*)\$\$[ ]*\(([\w:.-]+)\)", re.S)
DISPLAY = re.compile(r"\$\$.*?\$\$", re.S)
LINK = re.compile(r"\[([^\]]*)\]\((#[\w.-]*|(?![a-z]+:)[\w./-]+\.(?:ipynb|md)(?:#[\w.-]+)?)\)")
SILENT = {"bibliography", "contents", "tableofcontents"}
HIDDEN_SOURCE = {"hide-input", "hide-cell", "remove-input", "remove-cell", "solution"}
HIDDEN_OUTPUTS = {"hide-output", "hide-cell", "remove-output", "remove-cell", "solution"}
NEEDS = """> **This is a copy of a page**, with the figures and numbers of its run, so it can be read without a run.
> To run it, you need Python 3.11, 3.12 or 3.13 and the folder of the book, which holds the library `cbo_lib`, the code
> of the chapters and the stored results that notebooks read. In this folder, `make lab` installs what is needed and
> opens copies such as this one; without make, `pip install -c requirements.lock -e ".[book]"` installs it.
> Inputs and solutions that are folded here open with a click."""


@dataclass(frozen=True)
class Book:
    """What a page takes from the rest of the book.

    Attributes:
        numbers: of equations, theorems, algorithms and figures, by label: "Eq. 2.1", "Theorem 2.1".
        titles: of the pages, by their name without an ending.
        works: how a work is cited, "Zhang et al. (2022)", and its address or None, by key.
        figures: the numbers of the captioned figures in order, by page.
    """

    numbers: Mapping[str, str]
    titles: Mapping[str, str]
    works: Mapping[str, tuple[str, str | None]]
    figures: Mapping[str, Sequence[str]]

    def cited(self, keys: str, parenthetical: bool) -> str:
        """A citation, as in the text or in brackets."""
        made = []
        for key in keys.split(","):
            name, address = self.works[key.strip()]
            if parenthetical:
                name = re.sub(r" \((\w+)\)$", r", \1", name)
            made.append(f"[{name}]({address})" if address else name)
        return f"({'; '.join(made)})" if parenthetical else " and ".join(made)


def titled(text: str) -> tuple[str | None, str]:
    """The title and the target of ``title <target>``."""
    found = re.fullmatch(r"(.*?)\s*<([^<>]+)>", text, re.S)
    return (found[1], found[2]) if found else (None, text)


def glued(notebook: NotebookNode) -> dict[str, str]:
    """The values that the cells of a run notebook keep for its text."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            texts = [value for mime, value in output.get("data", {}).items() if mime.endswith("text/plain")]
            if name and texts:
                found[name] = "".join(texts[0])
    return found


def formatted(text: str, specification: str) -> str:
    """A glued value as the page prints it."""
    value = text.strip("\"'")
    if not specification:
        return value
    return format(int(value) if specification.endswith("d") else float(value), specification)


class Page:
    """Turns the Markdown of one notebook into what JupyterLab can show."""

    def __init__(self, name: str, book: Book, values: Mapping[str, str]) -> None:
        self.name, self.book, self.values = name, book, values

    def text(self, source: str) -> str:
        """The whole text of a cell."""
        made: list[str] = []
        plain: list[str] = []
        lines = iter(source.split("\n"))

        def flush() -> None:
            if plain:
                made.append(self.prose("\n".join(plain)))
                plain.clear()

        for line in lines:
            begin = OPEN.match(line)
            if begin is None or (begin[3] is None and begin[2][0] == ":"):
                plain.append(line)
                continue
            flush()
            indent, fence, name, rest = begin.groups()
            inner = []
            for following in lines:
                if re.fullmatch(rf"\s*{fence[0]}{{{len(fence)},}}\s*", following):
                    break
                inner.append(following.removeprefix(indent))
            if name is None:
                made.append("\n".join([line, *(indent + text for text in inner), indent + fence]))
            else:
                made.append(self.directive(name, rest.strip(), inner))
        flush()
        return "\n".join(made)

    def directive(self, name: str, argument: str, inner: list[str]) -> str:
        """A box of the book."""
        if name == "quiz":
            return self.prose(handout.plain_question("\n".join(inner)))
        options: dict[str, str] = {}
        while inner and (option := OPTION.match(inner[0])):
            options[option[1]] = option[2].strip()
            inner = inner[1:]
        if name in SILENT:
            return ""
        body = "\n".join(inner).strip("\n")
        if name == "math":
            label = options.get("label")
            return self.prose(f"$$\n{body}\n$$ ({label})" if label else f"$$\n{body}\n$$")
        if name == "policy-code":
            return policy_code.markdown(argument, options)
        if name in ("code", "code-block"):
            return f"```{argument}\n{body}\n```"
        title = self.prose(argument)
        if name.startswith("prf:") or name == "exercise":
            kind = name.removeprefix("prf:").title()
            number = self.book.numbers.get(options.get("label", ""), kind)
            title = f"{number} ({title})" if title else number
        elif name != "admonition":
            title = title or name.title()
        if "dropdown" in options.get("class", "").split():
            return f"\n<details>\n<summary>{title}</summary>\n\n{self.text(body)}\n\n</details>\n"
        if name == "prf:proof":
            return quoted(f"*Proof.* {self.text(body)}")
        return quoted(f"**{title}.**\n\n{self.text(body).strip()}")

    def prose(self, text: str) -> str:
        """Text without directives."""
        text = re.sub(r"^\([\w:.-]+\)=\n?", "", text, flags=re.M)
        text = LABELED.sub(self.tagged, text)
        text = ROLE_OR_CODE.sub(lambda m: self.role(m[1], m[2]) if m[1] else m[0], text)
        return LINK.sub(lambda m: self.link(m[1], m[2]), text)

    def tagged(self, match: re.Match[str]) -> str:
        """A displayed formula with its number."""
        number = self.book.numbers[match[3]].rpartition(" ")[2]
        return rf"$${match[1]} \tag{{{number}}}{match[2]}$$"

    def role(self, role: str, content: str) -> str:
        """What a role shows."""
        title, target = titled(content)
        if role.startswith("cite"):
            return self.book.cited(content, parenthetical=not role.endswith(":t"))
        if role.startswith("glue"):
            key, _, specification = content.partition(":")
            return formatted(self.values[key], specification)
        if role == "math":
            return f"${content}$"
        if role == "doc":
            return title or self.book.titles[self.resolved(target)]
        return title or self.book.numbers.get(target, target)

    def resolved(self, target: str) -> str:
        """The name of the page that a relative address leads to."""
        path = os.path.normpath(PurePosixPath(self.name).parent / target.partition("#")[0])
        return re.sub(r"\.(ipynb|md)$", "", Path(path).as_posix())

    def link(self, text: str, target: str) -> str:
        """A link to another copy; to a page that has none, its text."""
        if not target.startswith("#"):
            text = text or self.book.titles[self.resolved(target)]
            if ".ipynb" in target:
                return f"[{text}]({target.partition('#')[0]})"
        return text


def quoted(text: str) -> str:
    """A box: JupyterLab takes formulas out of the text before it sees the marks, so each stands in one line."""
    text = DISPLAY.sub(lambda m: " ".join(m[0].split("\n")), text)
    return "\n" + "\n".join(f"> {line}".rstrip() for line in text.split("\n")) + "\n"


def outputs(cell: NotebookNode, counted: Iterator[str]) -> list[NotebookNode]:
    """The outputs of a cell that can be shown without a kernel, the captions numbered."""
    kept = []
    for output in copy.deepcopy(cell.get("outputs", [])):
        data = output.get("data", {})
        for mime in [m for m in data if "papermill" in m or "jupyter.widget" in m]:
            del data[mime]
        if "data" in output and not data:
            continue
        if "text/html" in data:
            data["text/html"] = captions.numbered("".join(data["text/html"]), counted)
        output.get("metadata", {}).pop("scrapbook", None)
        kept.append(output)
    return kept


def lab_copy(notebook: NotebookNode, name: str, book: Book) -> NotebookNode:
    """A run notebook as JupyterLab can show it.

    Args:
        notebook: with the outputs of its run.
        name: of its page, ``"book/contexts/1_setting"``.
        book: what it takes from other pages.
    """
    result = copy.deepcopy(notebook)
    page = Page(name, book, glued(notebook))
    counted = itertools.chain(book.figures.get(name, []), itertools.repeat("Figure"))
    for cell in result.cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown":
            cell.source = page.text(cell.source).strip()
            continue
        folded = {"source_hidden": bool(tags & HIDDEN_SOURCE), "outputs_hidden": bool(tags & HIDDEN_OUTPUTS)}
        if any(folded.values()):
            cell.metadata["jupyter"] = {key: True for key, value in folded.items() if value}
        nowhere = itertools.repeat("Figure")  # what the page does not show has no number there
        cell.outputs = outputs(cell, nowhere if tags & {"remove-cell", "remove-output"} else counted)
    result.cells[0].source += f"\n\n{NEEDS}"
    result.metadata.pop("widgets", None)
    return result


def numbers(app: Sphinx) -> dict[str, str]:
    """The numbers of the whole book by label, in the words of the pages."""
    found = {}
    counted = app.env.toc_fignumbers
    for label, (page, _) in app.env.get_domain("math").equations.items():
        parts = counted[page]["displaymath"][nodes.make_id(f"equation-{label}")]
        found[label] = app.config.math_eqref_format.format(number=".".join(map(str, parts)))
    for kinds in counted.values():
        for kind in kinds.keys() - {"displaymath"}:
            for label, parts in kinds[kind].items():
                found[label] = f"{kind.title()} {'.'.join(map(str, parts))}"
    found |= {name: number for name, (_, number) in captions.places(app.env).items()}
    for label, about in getattr(app.env, "proof_list", {}).items():
        kind = about["realtype"].title()
        found[label] = f"{kind} {found[label].rpartition(' ')[2]}" if label in found else kind
    return found


def write_copies(app: Sphinx, exception: Exception | None) -> None:
    """Write the copies, and put them where the pages' download buttons point."""
    if exception is not None or app.builder.name != "html":
        return
    root = Path(app.srcdir)
    cache = get_cache(root / execute_notebooks.CACHE)
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    env: Any = app.env
    book = Book(numbers(app), titles, handout.works(root), env.cbo_numbers)
    target = root / "_build" / "lab"
    shutil.rmtree(target, ignore_errors=True)
    for path in execute_notebooks.pages(root):
        name = path.relative_to(root).with_suffix("").as_posix()
        run = execute_notebooks.executed(cache, nbformat.read(path, as_version=4))
        if run is None or name not in app.env.titles:  # the build without solutions ran other exercises
            continue
        made = lab_copy(run, name, book)
        for place in (target / path.relative_to(root), Path(app.outdir) / "_sources" / path.relative_to(root)):
            place.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(made, place)


def bring(source: str | Path, target: str | Path) -> None:
    """Bring new copies to where a reader works, but none over what the reader changed."""
    pristine = Path(target) / ".as-brought"
    for path in Path(source).rglob("*.ipynb"):
        name = path.relative_to(source)
        own, kept = Path(target) / name, pristine / name
        if own.exists() and not (kept.exists() and own.read_bytes() == kept.read_bytes()):
            print(f"{own} has your changes, so it stays; remove it to have the newest copy")
            continue
        for place in (own, kept):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension; without solutions the exercises' releases are written over the copies afterwards."""
    app.connect("build-finished", write_copies, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
