"""What a page prints of a class is its source, and what is not there is an error."""

import ast
import html
import re
from io import StringIO
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from book._ext import lab, policy_code
from book._tools import handout

ROOT = handout.ROOT
TREE, FILE = "cbo_lib.partition.PartitionTree", ROOT / "cbo_lib" / "partition.py"
TOY = '''
"""A module."""


# of the section
@decorated(
    1
)
class Toy(
    Base,  # the base
):
    """Told."""

    shared = 1

    def __init__(self):  # line 1
        """Begin."""

    # why it is so
    @property
    def ask(self):
        """Ask."""
        return 1  # line 2
        # after it

    async def tell(self): ...
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "toys_of_a_test.py").write_text(f"Base, decorated = object, lambda n: lambda c: c\n{TOY}")
    monkeypatch.syspath_prepend(tmp_path)
    return "toys_of_a_test.Toy"


def test_an_excerpt_is_lines_of_the_source_and_runs() -> None:
    (made,) = policy_code.excerpts([TREE], ["children", "__len__"])
    assert made.place == "cbo_lib/partition.py"
    lines = FILE.read_text(encoding="utf-8").splitlines()
    source = ast.parse("\n".join(lines)).body
    (tree,) = (node for node in source if isinstance(node, ast.ClassDef) and node.name == "PartitionTree")
    methods = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("__len__", "children")]
    assert [method.name for method in methods] == ["__len__", "children"]
    first, second = ("\n".join(lines[m.lineno - 1 : m.end_lineno]) for m in methods)
    assert made.code == f"{lines[tree.lineno - 1]}\n{first}\n\n{second}"
    ast.parse(made.code)


def test_comments_and_decorators_stay_and_the_rest_is_shown_if_listed(toy: str) -> None:
    head = "@decorated(\n    1\n)\nclass Toy(\n    Base,  # the base\n):\n"
    asked = '    # why it is so\n    @property\n    def ask(self):\n        """Ask."""\n        return 1  # line 2'
    begun = '    def __init__(self):  # line 1\n        """Begin."""'
    assert policy_code.excerpts([toy])[0].code == f"{head}{asked}\n\n    async def tell(self): ..."
    assert policy_code.excerpts([toy], ["ask"])[0].code == head + asked
    shown = policy_code.excerpts([toy], ["__doc__", "__init__"])[0].code
    assert shown == f'{head}    """Told."""\n\n{begun}'


def test_classes_of_one_file_stand_in_one_block(toy: str) -> None:
    first, second = policy_code.excerpts([toy, toy, TREE], ["tell", "__len__"])
    assert first.code.count("class Toy(") == 2 and "\n\n\n@decorated" in first.code
    assert second.code.startswith("class PartitionTree")


@pytest.mark.parametrize(
    ("names", "methods", "message"),
    [
        ([], [], "a class must be named"),
        (["cbo_lib.partition.Nobody"], [], "no class 'cbo_lib.partition.Nobody'"),
        (["cbo_lib.nowhere.Nobody"], [], "no class 'cbo_lib.nowhere.Nobody'"),
        (["Nobody"], [], "no class 'Nobody'"),
        (["cbo_lib.partition.INDEX_LIMIT"], [], "'cbo_lib.partition.INDEX_LIMIT' is no class"),
        ([TREE], ["children", "childern"], f"{TREE} does not define childern"),
        ([TREE], ["childern"], f"{TREE} defines none of childern itself"),
    ],
)
def test_what_is_not_there_is_an_error(names: list[str], methods: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        policy_code.excerpts(names, methods)


def test_jupyterlab_and_releases_show_plain_code() -> None:
    (made,) = policy_code.excerpts([TREE], ["children"])
    text = f"Before.\n\n```{{policy-code}} {TREE}\n:methods: children\n```\n\nAfter."
    expected = f"Before.\n\nFrom `cbo_lib/partition.py`:\n\n```python\n{made.code}\n```\n\nAfter."
    assert lab.Page("book/a", lab.Book({}, {}, {}, {}), {}).text(text) == expected
    assert handout.plain(text, {}) == expected


def test_a_page_shows_the_code_and_is_written_again_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    (tmp_path / "conf.py").write_text("")
    wrong = f".. policy-code:: {TREE}\n   :methods: childern\n"
    (tmp_path / "index.rst").write_text(f"T\n=\n\n.. policy-code:: {TREE}\n   :methods: __len__\n\n{wrong}")
    warnings, out, settings = StringIO(), tmp_path / "out", {"extensions": ["policy_code"], "html_theme": "basic"}
    with patch_docutils(), docutils_namespace():
        app = Sphinx(tmp_path, None, out, out / "trees", "html", settings, StringIO(), warnings)
        app.build()
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "cbo_lib/partition.py" in page and page.count("highlight-python") == 1
    shown = html.unescape(re.sub(r"<[^>]+>", "", re.search(r"<pre>(.*?)</pre>", page, flags=re.S)[1]))
    assert shown.strip() == policy_code.excerpts([TREE], ["__len__"])[0].code
    assert f"policy-code: {TREE} defines none of childern itself" in warnings.getvalue()
    assert any(str(name).endswith("partition.py") for name in app.env.dependencies["index"])
