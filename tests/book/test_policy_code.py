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
POLICIES = "cbo_lib.aggregated.baselines."


def test_an_excerpt_is_lines_of_the_source_and_runs() -> None:
    file, code = policy_code.excerpt([TREE], ["children", "__len__"])
    assert file.as_posix() == "cbo_lib/partition.py"
    lines = FILE.read_text(encoding="utf-8").splitlines()
    source = ast.parse("\n".join(lines)).body
    (tree,) = (node for node in source if isinstance(node, ast.ClassDef) and node.name == "PartitionTree")
    methods = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("__len__", "children")]
    assert [method.name for method in methods] == ["__len__", "children"]
    first, second = ("\n".join(lines[m.lineno - 1 : m.end_lineno]) for m in methods)
    assert code == f"{lines[tree.lineno - 1]}\n{first}\n\n{second}"
    ast.parse(code)


def test_classes_of_one_file_stand_in_one_block_with_their_decorators() -> None:
    _, code = policy_code.excerpt([POLICIES + "StoOO", POLICIES + "AveStoOO"], ["squared_width"])
    assert code.count("def squared_width") == 2 and "\n\n\nclass AveStoOO(StoOO):" in code
    _, code = policy_code.excerpt(["cbo_lib.policy.Policy"], ["round"])
    assert "\n    @property\n    def round(self)" in code


@pytest.mark.parametrize(
    ("names", "methods", "message"),
    [
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
        policy_code.excerpt(names, methods)


def test_jupyterlab_and_releases_show_plain_code() -> None:
    _, code = policy_code.excerpt([TREE], ["children"])
    text = f"Before.\n\n```{{policy-code}} {TREE}\n:methods: children\n```\n\nAfter."
    expected = f"Before.\n\nFrom `cbo_lib/partition.py`:\n\n```python\n{code}\n```\n\nAfter."
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
    assert shown.strip() == policy_code.excerpt([TREE], ["__len__"])[1]
    assert f"policy-code: {TREE} defines none of childern itself" in warnings.getvalue()
    assert any(str(name).endswith("partition.py") for name in app.env.dependencies["index"])
