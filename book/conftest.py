"""``pytest book --nbval-lax --executed``: nbval reads the run that made the pages in the place of a run of its own."""

from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbFile

from book._tools.execute_notebooks import executed, open_cache


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--executed``."""
    help = "compare with the notebooks that `make book` ran, and run none"
    parser.addoption("--executed", action="store_true", help=help)


class ExecutedKernel:
    """What nbval asks of a kernel, answered from a notebook that was run."""

    def __init__(self, notebook: NotebookNode) -> None:
        self._cells = iter([cell for cell in notebook.cells if cell.cell_type == "code"])
        self._messages: deque[dict[str, Any]] = deque()

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> int:
        """Go to the next cell with that source; nbval leaves out those that it skips."""
        cell = next(cell for cell in self._cells if cell.source == source)
        self._messages = deque(self._message(output.output_type, output) for output in cell.outputs)
        self._messages.append(self._message("status", {"execution_state": "idle"}))
        return 0

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """The next message of the cell."""
        return self._messages.popleft()

    def await_reply(self, msg_id: int, timeout: float | None = None) -> None:
        """It is there."""

    def await_idle(self, parent_id: int, timeout: float) -> None:
        """It is."""

    def is_alive(self) -> bool:
        """It can answer."""
        return True

    def stop(self) -> None:
        """Nothing runs."""

    @staticmethod
    def _message(kind: str, content: Any) -> dict[str, Any]:
        return {"msg_type": kind, "content": content, "parent_header": {"msg_id": 0}}


class ExecutedFile(IPyNbFile):
    """A notebook whose cells are compared with those of the run that made the pages."""

    def setup(self) -> None:
        """Find that run."""
        notebook = executed(open_cache(self.config.rootpath), self.nb)
        if notebook is None:
            raise FileNotFoundError(f"{self.path} was not run as it stands; `make notebooks` runs it first")
        self.kernel = ExecutedKernel(notebook)
        self.setup_sanitize_files()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, list[Any], list[Any]]:
    """Take nbval's notebooks over. Of a table it compares the text: the rest is how the text is shown."""
    found = yield
    if parent.config.getoption("--executed"):
        found = [ExecutedFile.from_parent(parent, path=f.path) if type(f) is IPyNbFile else f for f in found]
    for file in found:
        if isinstance(file, IPyNbFile):
            file.skip_compare += ("text/html",)
    return found
