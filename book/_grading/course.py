"""A course in a folder, on top of nbgrader: its gradebook, its pages of feedback, and the marks as a table.

nbgrader restores the check cells of a submission, keeps the gradebook and makes the feedback. It does not run the
submission: the preprocessor ``Judged`` takes the place of its own, whose verdict a submission could write itself.
"""

import contextlib
import copy
import csv
import functools
import html
import json
import logging
import os
import re
import shutil
import sys
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbconvert.filters import markdown2html
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat import NotebookNode
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets.config import Config

from book._ext.offline import mathjax_folder
from book._grading.box import Box, Limits, Lost
from book._grading.judge import Judge, Mark, names, unusable
from book._tools import handout

#: Boxes that one submission may break.
MOST_LOST = 3
log = logging.getLogger("grade")
MATHJAX = r"""<script>
window.MathJax = {
  tex: {inlineMath: [["$", "$"], ["\\(", "\\)"]], displayMath: [["$$", "$$"], ["\\[", "\\]"]], processEscapes: true},
  options: {enableMenu: false}
};
</script>
<script src="../mathjax.js" async></script>"""
#: What a student's text may hold in a page of feedback: no script, and nothing that is loaded.
SANITIZE = SanitizeHTML(
    tags=[
        *("a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol"),
        *("p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    ],
    attributes={"a": ["href", "title"], "*": ["class", "id"]},
)


class Entry(NamedTuple):
    """What a student handed in for a chapter, or that there is nothing to mark.

    Attributes:
        student: the name of the folder.
        chapter: of the exercises; empty where there is nothing to mark.
        path: of the notebook that is marked.
        note: for the teacher, may be empty.
    """

    student: str
    chapter: str
    path: Path | None
    note: str


@dataclass
class Result:
    """What a submission is worth, and what happened.

    Attributes:
        student: the name of the folder.
        chapter: of the exercises.
        marks: one an exercise.
        printed: what each cell printed, by its index, and its error.
        notes: for the teacher.
        unread: why the file could not be read, for the student; empty where it could.
    """

    student: str
    chapter: str
    marks: list[Mark] = field(default_factory=list)
    printed: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: str = ""

    @property
    def total(self) -> float:
        """All points."""
        return sum(mark.total for mark in self.marks)


# --- a submission becomes a notebook of the release's form


def read(path: Path) -> NotebookNode:
    """A submission's cells and nothing else: sources, and which cell of the release each is.

    Raises:
        ValueError: if it is no notebook.
    """
    content = path.read_bytes()
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        whole = json.loads(content.decode(encoding, errors="replace"))
        cells = whole["worksheets"][0]["cells"] if "worksheets" in whole else whole["cells"]  # before nbformat 4
        found = []
        for cell in cells:
            source = cell.get("source", cell.get("input", ""))
            source = source if isinstance(source, str) else "".join(str(line) for line in source)
            metadata = cell.get("metadata", {})
            known = metadata.get("nbgrader", {}) if isinstance(metadata, dict) else {}
            name = str(known.get("grade_id", "")) if isinstance(known, dict) else ""
            found.append((cell.get("cell_type"), source.encode(errors="replace").decode(), name))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ValueError("it is no notebook") from None
    made = [
        (nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell)(
            source, metadata={"nbgrader": {"grade_id": name}} if name else {}
        )
        for kind, source, name in found
    ]
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": KERNEL})


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def known_cells(notebook: NotebookNode, release: NotebookNode) -> NotebookNode:
    """Mark the cells of the release in a submission, each once, and add the checks that are missing."""
    left = {c.metadata["nbgrader"]["grade_id"]: c for c in release.cells if "nbgrader" in c.metadata}
    for cell in notebook.cells:
        own = left.get(cell.metadata.pop("nbgrader", {}).get("grade_id"))
        if own is not None and own.cell_type == cell.cell_type:
            cell.metadata["nbgrader"] = dict(left.pop(own.metadata["nbgrader"]["grade_id"]).metadata["nbgrader"])
    notebook.cells += [copy.deepcopy(cell) for cell in left.values() if cell.metadata["nbgrader"]["grade"]]
    return notebook


@functools.cache
def headings(chapter: str) -> set[str]:
    """The headings of a chapter's exercises."""
    return titles(nbformat.read(handout.ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4))


def titles(notebook: NotebookNode) -> set[str]:
    """The headings of a notebook's exercises."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {heading[0].strip() for heading in handout.HEADING.finditer(text)}


def subject(notebook: NotebookNode) -> str:
    """The chapter whose exercises a notebook has, by their headings; empty if it has none of any."""
    shared = {chapter: len(titles(notebook) & headings(chapter)) for chapter in handout.chapters()}
    return max(shared, key=shared.__getitem__) if any(shared.values()) else ""


def changes(notebook: NotebookNode, release: NotebookNode) -> list[str]:
    """What a teacher should look at, as it is not run: a check that was changed, an answer in a cell without code."""
    left = {c.metadata["nbgrader"]["grade_id"]: c for c in release.cells if "nbgrader" in c.metadata}
    found = []
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if (own := left.get(name)) is None:
            continue
        if name.startswith("answer_") and cell.cell_type != "code":
            found.append(f"the cell of {name} is no code")
        elif name.startswith("check_") and cell.source.strip() != own.source.strip():
            found.append(f"{name} was changed; what it holds is not run")
    return found


# --- running and marking


class Submission:
    """A submission in its box, which is made anew without the cell that broke it."""

    def __init__(self, notebook: NotebookNode, limits: Limits, result: Result) -> None:
        self.limits, self.result, self.lost = limits, result, 0
        self.sources = {
            index: cell.source
            for index, cell in enumerate(notebook.cells)
            if cell.cell_type == "code" and not cell.metadata.get("nbgrader", {}).get("grade")
        }
        self.handed = dict(self.sources)
        self.box: Box | None = None
        self.end = time.monotonic() + limits.whole

    def ready(self) -> Box | None:
        """The box with all cells run; none if too much was lost, or no time is left."""
        while self.box is None and self.lost <= MOST_LOST and time.monotonic() < self.end:
            box, at = Box(self.limits, self.end), -1
            try:
                for at, source in list(self.sources.items()):
                    self.result.printed[at] = box.run(source)
                    late = f"cell {at + 1} did not stop in time"
                    if self.result.printed[at][1] == "it did not stop in time" and late not in self.result.notes:
                        self.result.notes.append(late)
                self.box = box
            except Lost as lost:
                box.close()
                del self.sources[at]
                self.result.printed[at] = ("", f"the cell was left out: {lost}")
                self.note(f"cell {at + 1} was left out: {lost}")
        return self.box

    def note(self, text: str) -> None:
        """Tell the teacher that a box was lost."""
        self.lost += 1
        self.result.notes.append(text)

    def mark(self, judge: Judge, number: int, blank: Mark) -> Mark:
        """Mark an exercise; an answer that breaks the box is worth nothing."""
        box = self.ready()
        if box is None:
            said = "The notebook could not be run."
        else:
            try:
                mark = self.early(judge, number, judge.mark(box, number))
                how = self.failed(f"answer_{number}") if set(mark.says) == {"No answer."} else None
                if how is None:
                    return mark
                said = how
                self.result.notes.append(f"exercise {number}: {said}")
            except Lost as lost:
                said = f"The answer cannot be used: {lost}."
                self.note(f"exercise {number}: {lost}")
                self.close()
            except Exception as error:
                said = unusable(error)
                self.result.notes.append(f"exercise {number}: {said}")
        blank.says = [said] * len(blank.says)
        return blank

    def early(self, judge: Judge, number: int, mark: Mark) -> Mark:
        """A better mark, if there is one before a later cell took a name of the cells so far for something else."""
        name = f"answer_{number}"
        own = [at for at, source in self.sources.items() if name in named_in(source)[0]]
        if not own or mark.total == mark.exercise.total or time.monotonic() > self.end:
            return mark
        before, after = [], []
        for at, source in self.sources.items():
            (before if at <= own[-1] else after).append(named_in(source))
        known = {inner for made, used in before for inner in made | used}
        if not known & {inner for made, _ in after for inner in made}:
            return mark
        with contextlib.suppress(Exception), contextlib.closing(Box(self.limits, self.end)) as box:
            for at, source in self.sources.items():
                if at <= own[-1]:
                    box.run(source)
            other = judge.mark(box, number)
            return other if other.total > mark.total else mark
        return mark

    def failed(self, name: str) -> str | None:
        """How the last cell with a name ended that failed; nothing if none did."""
        for index, source in reversed(self.handed.items()):
            error = self.result.printed.get(index, ("", None))[1]
            if error and re.search(rf"\b{name}\b", source):
                own = re.match(r"(?:it|the cell) (.*)", error)  # not what Python says
                return " ".join(f"The cell with {name} {own[1] if own else f'ended with {error}'}".split()) + "."
        return None

    def close(self) -> None:
        """End the box."""
        if self.box is not None:
            self.box.close()
            self.box = None


def named_in(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell of a student makes, and those that it uses; none if it cannot be read."""
    try:
        return names(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()


def untouched(notebook: NotebookNode, number: int, stub: str) -> bool:
    """Whether the cell to fill in is as it was handed out, and no other cell answers."""
    name = f"answer_{number}"
    own = [c.source for c in notebook.cells if c.cell_type == "code" and re.search(rf"\b{name}\b", c.source)]
    own = [source for source in own if not source.startswith("print(form(")]
    return own == [stub]


def examine(notebook: NotebookNode, judge: Judge, limits: Limits, result: Result) -> Result:
    """Run a submission and mark all exercises."""
    with contextlib.closing(Submission(notebook, limits, result)) as submission:
        for exercise in judge.exercises:
            said = "The file could not be read." if result.unread else "No answer."
            blank = Mark(exercise, [0.0] * len(exercise.names), [said] * len(exercise.names))
            if result.unread or untouched(notebook, exercise.number, exercise.stub):
                result.marks.append(blank)
            else:
                result.marks.append(submission.mark(judge, exercise.number, blank))
    return result


def obstacle(chapters: Iterable[str], limits: Limits) -> str | None:
    """What keeps a box of this machine from running the cells with which all students begin, if anything does."""
    for chapter in chapters:
        error = None
        with contextlib.closing(Box(limits)) as box:
            for cell in nbformat.read(handout.ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4).cells:
                tags = cell.metadata.get("tags", [])
                if "student" in tags or error:
                    break
                if cell.cell_type == "code" and "check" not in tags:
                    try:
                        error = box.run(cell.source, 300.0)[1]  # however busy it is
                    except Lost as lost:
                        error = str(lost)
        if error:
            return f"the first cells of {chapter}.ipynb do not run in a box of this machine: {error}"
    return None


# --- nbgrader


class Judged(NbGraderPreprocessor):
    """Write what cells printed and what the judge says into a notebook, in the form that nbgrader takes for marks."""

    examined: ClassVar[Callable[[NotebookNode], Result]]

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Take the place of running the notebook."""
        result = type(self).examined(nb)
        checks = {f"check_{mark.exercise.number}": mark for mark in result.marks}
        for index, cell in enumerate(nb.cells):
            if cell.cell_type != "code":
                continue
            cell.outputs = []
            text, error = result.printed.get(index, ("", None))
            shown = text if error is None or error in text else f"{text}\n{error}"
            if shown.strip():
                cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=shown))
            mark = checks.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
            if mark is not None:
                plain = {"text/plain": f"{mark.total:g}"}
                said = nbformat.v4.new_output("stream", name="stdout", text=mark.text + "\n")
                cell.outputs = [said, nbformat.v4.new_output("execute_result", data=plain, execution_count=1)]
        return nb, resources


class Course:
    """A folder with a gradebook.

    Args:
        folder: made if it is not there; what it holds is made anew.
        limits: of a submission.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder.resolve(), limits
        self.judges: dict[str, Judge] = {}
        self.results: list[Result] = []
        self.config = Config()
        self.config.CourseDirectory.root = str(self.folder)
        self.config.Autograde.autograde_preprocessors = [Judged, SaveAutoGrades]
        self.config.HTMLExporter.filters = {"markdown2html": harmless}  # nbgrader's template sanitizes nothing
        self.works = handout.entries()
        if self.folder.exists():
            for name in ("source", "release", "submitted", "autograded", "feedback", "gradebook.db", "marks.csv"):
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _run(self, converter: type, chapter: str, student: str = "*") -> None:
        directory = CourseDirectory(config=self.config)
        directory.assignment_id, directory.student_id = chapter, student
        made = converter(coursedir=directory, config=self.config)
        made.log = logging.getLogger("nbgrader")
        made.start()

    def prepare(self, chapter: str) -> Judge:
        """Put the release of a chapter into the gradebook; the judge of its answers."""
        if chapter not in self.judges:
            self.judges[chapter] = judge = Judge(chapter)
            path = self.folder / "source" / chapter / f"{chapter}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(handout.release(judge.notebook, self.works), path)
            self._run(GenerateAssignment, chapter)
        return self.judges[chapter]

    def grade(self, entry: Entry) -> Result:
        """Mark a submission; one that cannot be read is worth nothing, and one that ends the marking gets a note."""
        student, chapter, path, note = entry
        result = Result(student, chapter)
        if path is not None:
            judge = self.prepare(chapter)
            try:
                self._grade(result, path, judge)
            except Exception as error:
                told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                result.notes.append(f"this was not marked to the end, {told}")
        result.notes[:0] = [note] if note else []
        self.results.append(result)
        return result

    def _grade(self, result: Result, path: Path, judge: Judge) -> None:
        student, chapter = result.student, result.chapter
        release = nbformat.read(self.folder / "release" / chapter / f"{chapter}.ipynb", as_version=4)
        try:
            handed = read(path)
            if (other := subject(handed)) not in ("", chapter):
                raise ValueError(f"it holds the exercises of {other}")
            if not other and not any("answer_" in cell.source for cell in handed.cells):
                raise ValueError("it holds no exercise")
            result.notes += changes(handed, release)
            notebook = known_cells(handed, release)
        except (ValueError, OSError) as error:
            # A student need not see where the teacher keeps the file.
            result.unread = (error.strerror or "the system refuses it") if isinstance(error, OSError) else str(error)
            result.notes.append(f"the submission was not marked, {result.unread}")
            told = nbformat.v4.new_markdown_cell(f"The file could not be read: {result.unread}.")
            notebook = known_cells(nbformat.v4.new_notebook(cells=[told]), release)
        target = self.folder / "submitted" / student / chapter / f"{chapter}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
        Judged.examined = staticmethod(lambda run: examine(run, judge, self.limits, result))
        self._run(Autograde, chapter, student)
        self._run(GenerateFeedback, chapter, student)
        at_home(self.folder / "feedback" / student / chapter / f"{chapter}.html")

    def write(self) -> None:
        """The table of marks, and for each student a page that leads to what was said of each notebook."""
        most = max((len(r.marks) for r in self.results), default=0)
        head = ["student", "chapter", *[f"exercise {n + 1}" for n in range(most)], "points", "of", "notes"]
        with (self.folder / "marks.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(head)
            for r in sorted(self.results, key=lambda r: (r.student, r.chapter)):
                points = [f"{m.total:g}" for m in r.marks] + [""] * (most - len(r.marks))
                sums = [f"{r.total:g}", sum(m.exercise.total for m in r.marks)] if r.marks else ["", ""]
                name = f"'{r.student}" if r.student[:1] in "=+-@" else r.student  # no formula in a spreadsheet
                table.writerow([name, r.chapter, *points, *sums, "; ".join(r.notes)])
        for student in {r.student for r in self.results if r.marks}:
            own = sorted((r for r in self.results if r.student == student and r.marks), key=lambda r: r.chapter)
            target = self.folder / "feedback" / student / "index.html"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page(student, own, target.parent), encoding="utf-8")


def harmless(source: str) -> str:
    """Markdown as HTML, in which tags that could do something are shown as text."""
    return str(SANITIZE.sanitize_html_tags(markdown2html(source)))


def at_home(path: Path) -> None:
    """Let a page of nbgrader load nothing but its mathematics, from beside its folder."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'<script\b[^>]*\bsrc="(?:https?:)?//[^"]*"[^>]*>\s*</script>', "", text)
    text = re.sub(r'<script type="text/x-mathjax-config">.*?</script>', lambda _: MATHJAX, text, flags=re.S)
    path.write_text(text, encoding="utf-8")
    shutil.copyfile(mathjax_folder() / "tex-svg-full.js", path.parents[1] / "mathjax.js")


def page(student: str, results: list[Result], home: Path) -> str:
    """A page of feedback for a student, whose notebooks with feedback lie in ``home`` if nothing went wrong."""
    parts = []
    for r in results:
        whole = sum(m.exercise.total for m in r.marks)
        rows = "".join(
            f"<tr><td>{m.exercise.number}. {html.escape(m.exercise.title)}</td>"
            f"<td>{m.total:g} of {m.exercise.total}</td><td>{html.escape(m.text).replace(chr(10), '<br>')}</td></tr>\n"
            for m in r.marks
        )
        there = f"{r.chapter}/{r.chapter}.html"
        unread = f"<p>The file could not be read: {html.escape(r.unread)}.</p>\n" if r.unread else ""
        link = f'<a href="{there}">the notebook with all that was said</a>' if (home / there).exists() else ""
        parts.append(
            f"<h2>{r.chapter.capitalize()}: {r.total:g} of {whole} points</h2>\n{unread}<p>{link}</p>\n"
            "<table>\n<tr><th>Exercise</th><th>Points</th><th>What was said</th></tr>\n" + rows + "</table>\n"
        )
    style = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    style += "td,th{text-align:left;vertical-align:top;padding:.4em .8em;border-bottom:1px solid #bbb}"
    name = html.escape(student)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Feedback for {name}</title>'
        f"<style>{style}</style></head><body>\n<h1>Feedback for {name}</h1>\n" + "".join(parts) + "</body></html>\n"
    )


def submissions(folder: Path) -> Iterator[Entry]:
    """All submissions: ``<student>/<chapter>.ipynb``, or deeper; every folder gives an entry.

    A file may carry more around the chapter's name, as browsers add it; the newest counts. One without such a name
    counts for the chapter whose exercises it has.
    """
    seen: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__MACOSX")):
            twin = seen.setdefault(unicodedata.normalize("NFC", path.name).casefold(), path.name)
            for entry in _handed_in(path):
                note = "" if twin == path.name else "another folder has the same name, written otherwise"
                yield entry._replace(note="; ".join(filter(None, [note, entry.note])))
        elif path.suffix.lower() == ".ipynb":
            log.warning("Left out: %r lies in no student's folder.", str(path))


def _handed_in(student: Path) -> Iterator[Entry]:
    name = student.name.encode(errors="replace").decode()
    whole = unicodedata.normalize("NFC", name)  # macOS takes accents off their letters
    letters = all(unicodedata.category(c)[0] in "LMN" or c in " .@'’,()_-+&" for c in whole)
    if not (letters and 0 < len(whole) <= 100):
        yield Entry(name, "", None, "not marked: a student's folder cannot have this name")
        return
    files: dict[str, Path] = {}
    for path in student.rglob("*"):
        inner = path.relative_to(student)
        if path.suffix.lower() == ".ipynb" and not any(part.startswith((".", "__MACOSX")) for part in inner.parts):
            files[str(inner).encode(errors="replace").decode()] = path
    entries: list[Entry] = []
    named = {inner: _chapter_of(path) for inner, path in files.items()}
    for chapter in handout.chapters():
        own = [inner for inner in files if named[inner] == chapter]
        if own:
            first, *rest = sorted(own, key=lambda inner: (-files[inner].stat().st_mtime, inner))
            note = f"{len(own)} files, marked: {first}; also there: {', '.join(rest)}" if rest else ""
            entries.append(Entry(name, chapter, files[first], note))
            files = {inner: path for inner, path in files.items() if inner not in own}
    left = f"left out, as no chapter is in the name or the headings: {', '.join(sorted(files))}" if files else ""
    head = entries[0] if entries else Entry(name, "", None, "no notebook found")
    yield head._replace(note="; ".join(filter(None, [head.note, left])))
    yield from entries[1:]


def _chapter_of(path: Path) -> str:
    """The chapter in the name of a file, else the one whose exercises it has; empty if there is none."""
    for chapter in handout.chapters():
        if re.search(rf"(?<![a-z]){chapter}", path.name.lower()):
            return chapter
    with contextlib.suppress(ValueError, OSError):
        return subject(read(path))
    return ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep nbgrader's account of itself from the screen, but for errors."""
    logger = logging.getLogger("nbgrader")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler := logging.StreamHandler())
    handler.setLevel(logging.ERROR)  # why a submission could not be marked to the end
    path = os.environ["PATH"]  # nbgrader calls alembic, which lies beside Python
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ["PATH"] = path
        logger.propagate = before
        logger.removeHandler(handler)
