"""The judge: what an exercise asks, what is right, and what an answer in a box is worth.

It holds the checks and solutions of the exercise notebooks. Of a submission, which runs in a process of its own, it
sees the values of the answers; functions it calls in the box, and policies it asks there.
"""

import ast
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import torch

from book._grading.box import Box, Function, Kind, Lost
from book._grading.policies import remote
from book._tools.handout import Exercise, exercises
from book.checks import finite

ROOT = Path(__file__).resolve().parents[2]
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Mark:
    """What an answer is worth: points and what is said of each part."""

    exercise: Exercise
    points: list[float]
    says: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        """All points."""
        return sum(self.points)

    @property
    def text(self) -> str:
        """What the student reads."""
        parts = zip(self.exercise.names, self.points, self.exercise.points, self.says, strict=True)
        return "\n".join(f"{name}: {got:g} of {most} points. {said}" for name, got, most, said in parts)


class Part:
    """A value among the parts of an answer; the first comparison with what is right decides."""

    def __init__(self, value: Any) -> None:
        self.value, self.fault = value, form(value, "value")
        self.right: bool | None = None
        self.said: str | None = None


class Judge:
    """The judge of a chapter's exercises."""

    def __init__(self, chapter: str) -> None:
        path = ROOT / "book" / chapter / "5_exercises.ipynb"
        self.chapter, self.notebook = chapter, nbformat.read(path, as_version=4)
        self.exercises = exercises(self.notebook)
        self.space: dict[str, Any] = {"__name__": "judge"}
        self.probes: dict[int, str] = {}
        outside, self.dtype = torch.get_default_dtype(), torch.float32
        torch.set_default_dtype(torch.float32)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._prepare()
        finally:
            self.dtype = torch.get_default_dtype()
            torch.set_default_dtype(outside)
        near = self.space["near"]

        def with_parts(value: Any, *rest: Any) -> bool:
            if not isinstance(value, Part):
                return bool(near(value, *rest))
            try:
                same = value.fault is None and bool(near(value.value, *rest))
            except Exception as error:
                same, value.fault = False, unusable(error)
            if value.right is None:
                value.right = same
            return same

        self.space["near"] = with_parts

    def _prepare(self) -> None:
        """Run the notebook without what is printed or drawn, and the solutions but for policies."""
        number = 0
        wanted = {f"solution_{e.number}" for e in self.exercises if "class" not in e.kinds}
        self.needed = set()
        for cell in reversed(self.notebook.cells):
            if "solution" in cell.metadata.get("tags", []) and cell.cell_type == "code":
                made, used = names(cell.source)
                if made & wanted:
                    self.needed.add(cell.id)
                    wanted = (wanted - made) | used
        for cell in self.notebook.cells:
            if cell.cell_type == "markdown" and (title := re.match(r"## Exercise (\d+) ", cell.source)):
                number = int(title[1])
            if cell.cell_type != "code" or "student" in (tags := cell.metadata.get("tags", [])):
                continue
            if "solution" in tags and cell.id not in self.needed:
                continue
            source = re.sub(r"^print\(check_.*\n?", "", cell.source, flags=re.M)
            exec(compile(source, f"<{self.chapter}>", "exec"), self.space)
            if "check" in tags:
                for node in ast.parse(cell.source).body:
                    if isinstance(node, ast.FunctionDef) and node.name == "probe":
                        self.probes[number] = ast.get_source_segment(cell.source, node) or ""

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        outside = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            torch.set_default_dtype(outside)

    def mark(self, box: Box, number: int, name: str | None = None) -> Mark:
        """Mark an answer.

        Args:
            box: in which the submission ran.
            number: of the exercise.
            name: of the answer in the box. Default ``answer_`` and the number.

        Raises:
            Lost: if the box is lost meanwhile.
        """
        exercise = next(e for e in self.exercises if e.number == number)
        with self._ready():
            try:
                answer = box.get(name or f"answer_{number}")
            except Lost:
                raise
            except Exception as error:
                return self._nothing(exercise, unusable(error))
            parts = answer if isinstance(answer, tuple) else (answer,)
            if len(parts) != len(exercise.names):
                if answer is None:
                    return self._nothing(exercise, "No answer.")
                wanted = ", ".join("abcdefghij"[: len(exercise.names)])
                return self._nothing(exercise, f"Give a tuple of {len(exercise.names)} parts, ({wanted}).")
            if "class" in exercise.kinds:
                return self._mark_policy(exercise, parts)
            mark = Mark(exercise, [])
            solution = self.space[f"solution_{number}"]
            for k, (part, kind) in enumerate(zip(parts, exercise.kinds, strict=True)):
                said = form(part, kind)
                if said is None:
                    tried = (*solution[:k], part, *solution[k + 1 :])
                    said = first(self.space[f"faults_{number}"], tried)
                mark.points.append(0 if said else exercise.points[k])
                mark.says.append(said or "Right.")
            return mark

    def _nothing(self, exercise: Exercise, text: str) -> Mark:
        return Mark(exercise, [0.0] * len(exercise.names), [text] * len(exercise.names))

    def _mark_policy(self, exercise: Exercise, answer: tuple[Any, ...]) -> Mark:
        kind, *values = answer
        if (said := form(kind, "class")) is not None:
            return self._nothing(exercise, said)
        parts = [Part(value) for value in values]
        probe, fault = self.space.get("probe"), None

        def probed(policy_class: Any) -> Any:
            return remote(policy_class.kind.probed(self.probes[exercise.number]))

        try:
            policy = remote(kind)
            if policy is None:
                return self._nothing(exercise, "The policy must be derived from the class that the exercise names.")
            if probe is not None:
                self.space["probe"] = probed
            for said in self.space[f"faults_{exercise.number}"]((policy, *parts)):
                open_part = next((p for p in parts if p.right is False and p.said is None), None)
                if open_part is None:
                    fault = said
                    break
                open_part.said = said
        except Lost:
            raise
        except Exception as error:
            fault = unusable(error)
        finally:
            if probe is not None:
                self.space["probe"] = probe
        if fault is not None:
            return Mark(exercise, [0.0] * len(answer), [fault, *["Counts once the policy is right."] * len(values)])
        mark = Mark(exercise, [exercise.points[0]], ["Right."])
        for part, most in zip(parts, exercise.points[1:], strict=True):
            mark.points.append(most if part.right else 0)
            mark.says.append("Right." if part.right else part.fault or part.said or "Not right.")
        return mark


def names(source: str) -> tuple[set[str], set[str]]:
    """What a cell defines, not inside of functions and classes, and the names that it uses anywhere."""
    tree = ast.parse(source)
    inner = {name for node in tree.body if isinstance(node, SCOPES) for name in ast.walk(node)}
    made = {node.name for node in tree.body if isinstance(node, SCOPES)}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            used.add(node.id)
        elif isinstance(node, ast.Name) and node not in inner:
            made.add(node.id)
    return made, used


def form(part: Any, kind: str) -> str | None:
    """What is wrong with the form of a part; nothing if it has the right one."""
    if part is None:
        return "No answer."
    if not (numeric(part) if kind == "value" else isinstance(part, Kind if kind == "class" else Function)):
        return f"This should be a {'number' if kind == 'value' else kind}, not {part!r}"[:500] + "."
    try:
        finite(part)
    except ValueError as error:
        return f"{error}."
    return None


def numeric(part: Any) -> bool:
    """Whether a part is a number, or is made of numbers alone."""
    if isinstance(part, list | tuple):
        return all(map(numeric, part))
    return isinstance(part, int | float | torch.Tensor)


def unusable(error: Exception) -> str:
    """What is said of an answer on which a check fails."""
    text = f"{type(error).__name__}: {error}" if type(error).__module__ == "builtins" else str(error)
    return f"The answer cannot be used: {text}"[:500]


def first(faults: Callable[[Any], Iterator[str]], answer: tuple[Any, ...]) -> str | None:
    """The first fault of an answer, if there is one."""
    try:
        return next(iter(faults(answer)), None)
    except Lost:
        raise
    except Exception as error:
        return unusable(error)
