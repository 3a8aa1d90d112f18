"""The pages on the library, from its docstrings: a source such as ``[Zhang2022]`` links to the bibliography.

A source is named by the first author and the year of an entry, and an entry's key begins with both
(``zhang2022gaussian``). A source without an entry is a warning, which fails the build.
"""

import contextlib
import re
import typing
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import stringify_annotation

logger = logging.getLogger(__name__)
QUALIFIED = re.compile(r"(?<![\w.])(?=[a-z_]\w*\.)")
SOURCE = re.compile(r"\[([A-Z][A-Za-z]+\d{4})\](?!\w)")


def keys(bibliography: str) -> dict[str, str]:
    """The keys of a BibTeX file by first author and year: ``zhang2022`` gives ``zhang2022gaussian``.

    Raises:
        ValueError: if two entries share author and year, so that a source could mean either.
    """
    found: dict[str, str] = {}
    for key in re.findall(r"^@\w+\{([^,\s]+),", bibliography, flags=re.M):
        match = re.match(r"[a-z]+\d{4}", key)
        if match is None:
            raise ValueError(f"a key must begin with author and year, got {key!r}")
        if match[0] in found:
            raise ValueError(f"{match[0]} may mean {found[match[0]]} or {key}")
        found[match[0]] = key
    return found


def cite(line: str, known: dict[str, str]) -> str:
    """A line of a docstring with a role in the place of each source.

    Raises:
        ValueError: for a source without an entry.
    """

    def role(match: re.Match[str]) -> str:
        if match[1].lower() not in known:
            raise ValueError(f"book/references.bib has no entry for [{match[1]}]")
        return f":cite:t:`{known[match[1].lower()]}`"

    return SOURCE.sub(role, line)


def process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Link the sources of one docstring."""
    files = [Path(app.srcdir) / file for file in app.config.bibtex_bibfiles]
    known = keys("\n".join(file.read_text(encoding="utf-8") for file in files))
    for i, line in enumerate(lines):
        if line.startswith(":vartype "):  # names of types without their modules, as in signatures
            line = QUALIFIED.sub("~", line)
        try:
            lines[i] = cite(line, known)
        except ValueError as error:
            logger.warning("%s", error, location=f"{name}:docstring")


def resolve(app: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str, returned: str) -> None:
    """Name the types of a class's arguments in full, which Sphinx does for functions: every setting has a ``Space``."""
    known = app.env.temp_data.get("annotations", {}).get(name, {})
    if what == "class" and known:
        with contextlib.suppress(NameError):  # a type that is imported for type checkers alone
            hints = typing.get_type_hints(thing.__init__)
            known.update({key: stringify_annotation(hints[key], "smart") for key in known.keys() & hints.keys()})


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    for extension in ("sphinx.ext.autodoc", "sphinx.ext.napoleon"):
        app.setup_extension(extension)
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", resolve, priority=600)  # after Sphinx has recorded the types
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
