"""The plan of the house, read from the imports: what stands on what, and how much of it there is."""

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from cbo_lib import GaussianProcess, aggregated, hyperparameters, rbf_kernel

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("aggregated", "indirect", "contexts", "subsets", "hyperparameters")
FILES = sorted((ROOT / "cbo_lib").rglob("*.py"))
ROOMS = ("space", "policies", "baselines")


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def outer(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: no bodies of functions, nothing for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from outer(child)


def imports(module: str, everywhere: bool = True) -> set[str]:
    """What a module imports; names of modules inside ``cbo_lib`` in full, of others as they stand there."""
    found = set()
    for node in ast.walk(TREES[module]) if everywhere else outer(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            assert node.module
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & TREES.keys()
            found |= inner
            # A package may be named for a module in it alone.
            if len(inner) < len(node.names):
                found.add(node.module)
    return found


def setting_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "cbo_lib" and len(parts) > 1 and parts[1] in SETTINGS else None


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_stand_side_by_side(setting: str) -> None:
    wrong = {
        (module, other)
        for module in TREES
        if setting_of(module) == setting
        for other in imports(module)
        if setting_of(other) not in (None, setting)
    }
    assert not wrong


def test_the_foundation_knows_no_setting() -> None:
    wrong = {(m, other) for m in TREES if setting_of(m) is None for other in imports(m) if setting_of(other)}
    assert not wrong


def test_the_library_neither_draws_nor_reads_the_book() -> None:
    forbidden = {"matplotlib", "IPython", "PIL", "ipywidgets", "book", "tests"}
    wrong = {(m, other) for m in TREES for other in imports(m) if other.split(".")[0] in forbidden}
    assert not wrong


def test_no_module_imports_itself_by_a_detour() -> None:
    """A package is imported with each of its modules, but what it gathers there need not be ready before them."""
    graph = {module: {other for other in imports(module, everywhere=False) if other in TREES} for module in TREES}
    packages = {module for module in TREES if any(other.startswith(f"{module}.") for other in TREES)}
    for module, others in graph.items():
        if module not in packages:
            assert not others & packages, f"{module} imports from {others & packages}: name the modules in it"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_the_library_knows_no_truth() -> None:
    """Problems stand beside the pages, which the library does not import: so no policy can cheat."""
    assert not [module for module in TREES if module.split(".")[-1] in ("problem", "problems", "regret")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_has_the_same_rooms(setting: str) -> None:
    assert {f"cbo_lib.{setting}.{room}" for room in ROOMS} <= TREES.keys()
    beside = {path.stem for path in (ROOT / "book" / setting).glob("*.py")}
    assert {"problem", "experiments", "regret"} <= beside


def test_public_classes_have_names_of_their_own() -> None:
    """Only ``Space`` is there once in every setting."""
    places = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twins = {name: modules for name, modules in places.items() if len(modules) > 1 and name != "Space"}
    assert not twins


def test_public_names_are_there() -> None:
    """What a package lists in ``__all__`` it imports, and the other way around."""
    for module in ("cbo_lib", *(f"cbo_lib.{setting}" for setting in SETTINGS)):
        tree = TREES[module]
        lists = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        ]
        if lists:
            names = ast.literal_eval(lists[0])
            bound = {
                alias.asname or alias.name
                for node in tree.body
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert set(names) == bound, f"{module}.__all__ and its imports differ by {set(names) ^ bound}"


def test_what_draws_is_not_imported_by_others_either() -> None:
    script = "import sys, cbo_lib\n" + "".join(f"import cbo_lib.{s}\n" for s in SETTINGS)
    script += "print(sorted({'matplotlib', 'IPython', 'PIL'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def tokens(path: Path) -> int:
    """How many tokens a file has, without comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = set()
    for node in ast.walk(ast.parse(text)):
        first = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and first and isinstance(first[0], ast.Expr):
            documented |= set(range(first[0].lineno, (first[0].end_lineno or 0) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    made = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in skipped and token.start[0] not in documented for token in made)


def test_the_library_stays_small() -> None:
    counted = {str(path): tokens(path) for path in FILES}
    assert sum(counted.values()) <= 51_000, counted


def gpoo() -> Any:
    space = aggregated.Space([[0.0], [1.0]], points_per_cell=2)
    batch = aggregated.GPOO(space, prior=GaussianProcess(rbf_kernel(0.1), 0.1), delta=1.0, seeds=[0, 1])
    for _ in range(3):
        cell = batch.ask()
        batch.tell(cell, cell.mean((1, 2)))
    return batch


def he_gp_ucb() -> Any:
    space = hyperparameters.Space([rbf_kernel(0.1), rbf_kernel(0.3)], points=[[0.0], [0.5], [1.0]], noise_std=0.1)
    batch = hyperparameters.HEGPUCB(space, seeds=[0, 1])
    for _ in range(3):
        x = batch.ask()
        batch.tell(x, x[:, 0])
    return batch


@pytest.mark.parametrize("make", [gpoo, he_gp_ucb])
def test_a_student_can_follow_a_question(make: Any) -> None:
    """One ``ask``, nothing remembered from the round before, runs few functions."""
    batch, seen = make(), set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "/cbo_lib/" in frame.f_code.co_filename.replace("\\", "/"):
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        batch.ask()
    finally:
        sys.setprofile(before)
    assert 5 < len(seen) <= 40, sorted(name for _, name in seen)
