"""A directive that prints a class from its own source, so that a page and the library cannot part.

In Markdown::

    ```{policy-code} cbo_lib.aggregated.policies.GPOO
    :methods: ask, tell, recommend
    ```

The page shows the line of the class and these methods as they stand in the source, in its order, and says in which file
they stand. Several classes of one file may be named, separated by blanks; each shows those of the methods that it
defines itself. A class or a method that is not there is an error.
"""

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

BLOCK = re.compile(r"^(`{3,}|:{3,})\{policy-code\} *(.*)\n((?::.*\n)*)\s*\1 *$", re.M)


def excerpt(names: Sequence[str], methods: Sequence[str]) -> tuple[Path, str]:
    """The file and the shown code of some classes, by their dotted names.

    Raises:
        ValueError: if there is no such class, one defines none of the methods, or none defines one of them.
    """
    shown, missing = [], set(methods)
    for name in names:
        try:
            thing = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"there is no class {name!r}: {error}") from error
        if not inspect.isclass(thing):
            raise ValueError(f"{name!r} is no class")
        file, lines = Path(inspect.getsourcefile(thing) or ""), inspect.getsource(thing).splitlines()
        (node,) = ast.parse("\n".join(lines)).body
        assert isinstance(node, ast.ClassDef)
        held = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in methods]
        if not held:
            raise ValueError(f"{name} defines none of {', '.join(methods)} itself")
        missing -= {one.name for one in held}
        starts = [min(part.lineno for part in (one, *one.decorator_list)) - 1 for one in held]
        bodies = ["\n".join(lines[start : one.end_lineno]) for start, one in zip(starts, held, strict=True)]
        shown.append("\n".join(lines[: node.body[0].lineno - 1]) + "\n" + "\n\n".join(bodies))
    if missing:
        raise ValueError(f"{', '.join(names)} does not define {', '.join(sorted(missing))}")
    return file.relative_to(ROOT), "\n\n\n".join(shown)


def listed(text: str) -> list[str]:
    """Words that commas or blanks part."""
    return re.split(r"[\s,]+", text.strip()) if text.strip() else []


def markdown(argument: str, options: Mapping[str, str]) -> str:
    """The excerpt as plain Markdown, for those who do not know the directive."""
    file, code = excerpt(listed(argument), listed(options["methods"]))
    return f"From `{file.as_posix()}`:\n\n```python\n{code}\n```"


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
        """A block of code under the name of its file."""
        try:
            file, code = excerpt(listed(self.arguments[0]), listed(self.options.get("methods", "")))
        except ValueError as error:
            raise self.error(f"policy-code: {error}") from error
        self.env.note_dependency(str(ROOT / file))
        place = nodes.paragraph("", "", nodes.literal("", file.as_posix()), classes=["cbo-code-place"])
        block = nodes.container("", place, nodes.literal_block(code, code, language="python"), classes=["cbo-code"])
        self.set_source_info(block)
        return [block]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("policy-code", PolicyCode)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
