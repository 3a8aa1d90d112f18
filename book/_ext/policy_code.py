"""A directive that prints a class from its own source, so that a page and the library cannot part.

In Markdown::

    ```{policy-code} cbo_lib.aggregated.policies.GPOO
    :methods: ask, tell, recommend
    ```

The page shows the line of the class and these methods as they stand in the source, in its order, with their comments
and docstrings, and says in which file they stand. Several classes may be named, one after another, separated by blanks;
each shows those of the methods that it defines itself. Without ``:methods:`` all are shown but ``__init__``. The
docstring of the class is shown if ``__doc__`` is among the methods. A class or a method that is not there is an error.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

DOCSTRING = "__doc__"
BLOCK = re.compile(r"^(`{3,}|:{3,})\{policy-code\} *(.*)\n((?::.*\n)*)\s*\1 *$", re.M)


@dataclass(frozen=True)
class Excerpt:
    """What a page shows of one file.

    Attributes:
        file: where the classes stand.
        code: of the classes, one after another.
    """

    file: Path
    code: str

    @property
    def place(self) -> str:
        """The file as a reader of the repository finds it."""
        return self.file.relative_to(ROOT).as_posix() if self.file.is_relative_to(ROOT) else self.file.name


def found(name: str) -> type:
    """The class of a dotted name.

    Raises:
        ValueError: if there is no such module or no such class in it.
    """
    module, _, last = name.rpartition(".")
    try:
        thing = getattr(importlib.import_module(module), last)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no class {name!r}: {error}") from error
    if not inspect.isclass(thing):
        raise ValueError(f"{name!r} is no class")
    return thing


def first_line(node: ast.stmt, lines: Sequence[str], comments: bool = True) -> int:
    """Where a statement begins, from 0: with its decorators, and with the comments right above it."""
    line = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
    while comments and lines[line - 1].startswith(" " * node.col_offset + "#"):
        line -= 1
    return line


def parts(name: str) -> tuple[Path, str, dict[str, str]]:
    """The file of a class, its first line, and the source of its docstring and of each method, in their order.

    Raises:
        ValueError: if there is no such class.
    """
    thing = found(name)
    file = Path(inspect.getsourcefile(thing) or "")
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    inside: Sequence[ast.stmt] = ast.parse(text).body
    for part in thing.__qualname__.split("."):
        node = next((n for n in inside if isinstance(n, ast.ClassDef) and n.name == part), None)
        if node is None:
            raise ValueError(f"{file} does not define the class {thing.__qualname__!r}")
        inside = node.body
    assert node is not None
    head = lines[first_line(node, lines, comments=False) : max(first_line(node.body[0], lines), node.lineno)]
    held: dict[str, str] = {}
    for one in node.body:
        source = "\n".join(lines[first_line(one, lines) : one.end_lineno])
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            held[one.name] = f"{held[one.name]}\n\n{source}" if one.name in held else source
        elif one is node.body[0] and ast.get_docstring(node, clean=False) is not None:
            held[DOCSTRING] = source
    return file, "\n".join(head).rstrip(), held


def excerpts(names: Sequence[str], methods: Sequence[str] = ()) -> list[Excerpt]:
    """What is shown of some classes; those of one file that follow each other are one excerpt.

    Args:
        names: dotted.
        methods: what is shown of each class that defines it. Default: all but ``__init__``.

    Raises:
        ValueError: if no class is named, a class does not exist or defines none of the methods, or no class defines
            one of them.
    """
    if not names:
        raise ValueError("a class must be named")
    made: list[Excerpt] = []
    missing = dict.fromkeys(methods)
    for name in names:
        file, head, held = parts(name)
        shown = [part for part in held if (part in methods if methods else part not in ("__init__", DOCSTRING))]
        if not shown:
            raise ValueError(f"{name} defines none of {', '.join(methods) or 'its methods'} itself")
        for part in shown:
            missing.pop(part, None)
        code = head + "\n" + "\n\n".join(held[part] for part in shown)
        if made and made[-1].file == file:
            made[-1] = Excerpt(file, f"{made[-1].code}\n\n\n{code}")
        else:
            made.append(Excerpt(file, code))
    if missing:
        raise ValueError(f"{', '.join(names)} does not define {', '.join(missing)}")
    return made


def listed(text: str) -> list[str]:
    """Words that commas or blanks part."""
    return re.split(r"[\s,]+", text.strip()) if text.strip() else []


def markdown(argument: str, options: Mapping[str, str]) -> str:
    """The excerpts as plain Markdown, for those who do not know the directive."""
    made = excerpts(listed(argument), listed(options.get("methods", "")))
    return "\n\n".join(f"From `{one.place}`:\n\n```python\n{one.code}\n```" for one in made)


def plain(text: str) -> str:
    """A text with plain Markdown in the place of its directives."""

    def written(match: re.Match[str]) -> str:
        return markdown(match[2], dict(re.findall(r"^:([\w-]+): *(.*)$", match[3], flags=re.M)))

    return BLOCK.sub(written, text)


class PolicyCode(SphinxDirective):
    """Print classes from their source."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"methods": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """One block a file, under the name of the file."""
        try:
            made = excerpts(listed(self.arguments[0]), listed(self.options.get("methods", "")))
        except ValueError as error:
            raise self.error(f"policy-code: {error}") from error
        blocks: list[nodes.Node] = []
        for one in made:
            self.env.note_dependency(str(one.file))
            place = nodes.paragraph("", "", nodes.literal("", one.place), classes=["cbo-code-place"])
            block = nodes.container("", place, nodes.literal_block(one.code, one.code, language="python"))
            block["classes"] = ["cbo-code"]
            self.set_source_info(block)
            blocks.append(block)
        return blocks


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("policy-code", PolicyCode)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
