"""The judge's end of a box."""

import base64
import builtins
import contextlib
import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cloudpickle
import psutil
import torch

from book._grading import wire
from book.checks import finite

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = [
    *("torch", "gpytorch", "botorch", "scipy.optimize", "scipy.stats", "pandas", "matplotlib.pyplot", "cloudpickle"),
    *("IPython.core.interactiveshell", "book.figures", "ipywidgets", "cbo_lib", "cbo_lib.aggregated"),
    *("cbo_lib.contexts", "cbo_lib.hyperparameters", "cbo_lib.indirect", "cbo_lib.subsets"),
]


@dataclass(frozen=True)
class Limits:
    """What a submission may take.

    Attributes:
        cell: seconds that a cell may run.
        call: seconds that a call of a student's function may run, or a step of a policy.
        total: seconds of the processor in one box.
        whole: seconds of the clock for a submission, however often it is run.
        memory: bytes beyond what the library needs.
    """

    cell: float = 60.0
    call: float = 30.0
    total: int = 900
    whole: float = 1800.0
    memory: int = 2 * 2**30


#: What a box needs of this package. Without the first Python would take the package of an installed book.
OWN = ("__init__.py", "wire.py", "box.py", "sandbox.py")


class StudentError(Exception):
    """The student's code raised an error."""


class Lost(StudentError):
    """The box is gone: its process died, or it did not stop and was ended."""


def library(target: Path) -> None:
    """Copy what notebooks import: the library and the modules of the book, without notebooks, tests and tools."""
    for package in ("cbo_lib", "book"):
        for path in (ROOT / package).rglob("*"):
            inner = path.relative_to(ROOT)
            closed = any(part.startswith("_") or part == "results" for part in inner.parts[:-1])
            own = inner.parent == Path("book/_grading") and inner.name in OWN
            if path.suffix in (".py", ".npz") and (own or not closed):
                (target / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / inner)


def held(process: psutil.Process) -> int:
    """Bytes of memory of a process and of all that descend from it, what is shared counted once; 0 if nobody tells."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += getattr(one.memory_full_info(), "pss", 0)
    return total


class Boxes:
    """A process that forks boxes; a context. ``hidden`` are folders that no box may see."""

    def __init__(self, limits: Limits | None = None, hidden: tuple[Path, ...] = ()) -> None:
        self.limits, self.hidden = limits or Limits(), (ROOT, *hidden)

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="boxes-")).resolve()
        self.folder.chmod(0o755)
        library(self.folder / "library")
        (self.folder / "root").mkdir(mode=0o777)
        self.control, theirs = socket.socketpair()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        environment = {**kept, **threads, "MPLBACKEND": "agg", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
        environment |= {"PYTHONPATH": str(self.folder / "library"), "HOME": str(self.folder / "root")}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(self.folder / "root")}
        command = [sys.executable, "-m", "book._grading.box", str(theirs.fileno()), json.dumps(IMPORTS)]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, cwd=self.folder / "root", stdin=subprocess.DEVNULL
        )
        theirs.close()
        wire.read(self.control, 300)
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    furnish = True

    def open(self) -> "Box":
        """A new box; one that sees all files where the system allows no other."""
        if self.furnish:
            try:
                return self._open()
            except Lost:
                self.furnish = False
        return self._open()

    def _open(self) -> "Box":
        ours, theirs = socket.socketpair()
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])}
        options = {
            "root": str(self.folder / "root"),
            # Python looks for its packages under the name that it was started by, which may be a link.
            "visible": sorted({*prefixes, *(str(Path(p).resolve()) for p in prefixes), str(self.folder / "library")}),
            "hidden": [str(path) for path in self.hidden],
            "furnish": self.furnish,
            "user": 1_000_000 + secrets.randbelow(1_000_000_000),
            "memory": self.limits.memory,
            "seconds": self.limits.total,
        }
        socket.send_fds(self.control, [json.dumps(options).encode()], [theirs.fileno()])
        theirs.close()
        return Box(self, ours, wire.read(self.control, 60))

    def end(self, pid: int) -> None:
        """End a box with all its processes."""
        self.control.sendall(json.dumps({"end": pid}).encode())
        wire.read(self.control, 60)


class Box:
    """A running box: its cells, and stand-ins for the functions and classes in it; lost at the time ``end``."""

    end = math.inf

    def __init__(self, boxes: Boxes, sock: socket.socket, pid: int) -> None:
        self.boxes, self.sock, self.pid = boxes, sock, pid
        self.shut = wire.read(sock, 60)
        if "failed" in self.shut:
            raise Lost(self.shut["failed"])
        self.process = psutil.Process(pid)
        self.most, self.looked = self.process.memory_info().rss + boxes.limits.memory, 0.0

    def look(self) -> None:
        """See now and then that its processes together have no more memory than the system lets one of them have.

        Raises:
            wire.Broken: if they have.
        """
        if time.monotonic() >= self.looked + wire.PAUSE:
            self.looked = time.monotonic()
            if held(self.process) > self.most:
                raise wire.Broken("its processes together took too much memory")

    def close(self) -> None:
        """End it."""
        if self.pid:
            self.boxes.end(self.pid)
            self.sock.close()
            self.pid = 0

    def ask(self, command: str, seconds: float, *arguments: object) -> Any:
        """Give a command and wait for its result.

        Raises:
            Lost: if there is none, in time or ever; the box is ended.
            Exception: what the student's code raised, if Python has an error of this name.
            StudentError: any other error.
        """
        if not self.pid:
            raise Lost("its process died")
        seconds = min(seconds, self.end - time.monotonic())
        if seconds <= 0:
            self.close()
            raise Lost("the time for the whole submission is over")
        try:
            wire.write(self.sock, [command, seconds, *arguments])
            answer = wire.read(self.sock, seconds + 3, self.look)
            if not isinstance(answer, dict) or not answer.keys() & {"result", "error"}:
                raise wire.Broken("it gave nonsense")
            if "error" in answer:
                name, text = (str(part) for part in answer["error"])
        except (wire.Broken, OSError, ValueError, TypeError) as error:
            self.close()
            raise Lost(str(error) if isinstance(error, wire.Broken) else "its process died") from None
        if "error" not in answer:
            return answer.get("result")
        kind, raised = getattr(builtins, name, None), None
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):  # some are made of more than a text
                raised = kind(text)
        raise raised or StudentError(f"{name}: {text}")

    def run(self, source: str) -> tuple[str, str | None]:
        """Run a cell: what it printed, and the error that it ended with.

        Raises:
            Lost: if the box is lost meanwhile.
        """
        try:
            result = self.ask("run", self.boxes.limits.cell, source)
            told = result["error"]
            return str(result["text"])[:10_000], None if told is None else str(told)[:1000]
        except Lost:
            raise
        except Exception as error:
            return "", f"{type(error).__name__}: {error}"

    def get(self, name: str) -> Any:
        """The value of a name."""
        return self.value(self.ask("get", self.boxes.limits.call, name))

    def value(self, data: Any) -> Any:
        """What was encoded, with stand-ins for functions and classes."""
        try:
            return wire.decode(
                data, lambda number, name: Function(self, number, name), lambda *about: Kind(self, *about)
            )
        except wire.Broken as error:
            raise StudentError(str(error)) from None

    def call(self, number: int, method: str | None, *arguments: object, **named: object) -> Any:
        """The result of a call, as data; what is passed is trusted, what comes back is not."""
        sent = base64.b64encode(cloudpickle.dumps((arguments, named))).decode()
        return self.ask("call", self.boxes.limits.call, number, method, sent)


class Function:
    """Stands for a student's function: a call runs in the box."""

    def __init__(self, box: Box, number: int, name: str) -> None:
        self.box, self.number, self.__name__ = box, number, name

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Call it in the box."""
        return finite(self.box.value(self.box.call(self.number, None, *arguments, **named)))

    def __repr__(self) -> str:
        return f"the function {self.__name__}"


class Kind:
    """Stands for a student's class, which only becomes one for the judge where a policy is wanted."""

    def __init__(self, box: Box, number: int, name: str, bases: list[str]) -> None:
        self.box, self.number, self.name, self.bases = box, number, name, bases

    def make(self, *arguments: object, **named: object) -> "Made":
        """An object of the class, in the box."""
        result = self.box.call(self.number, None, *arguments, **named)
        try:
            return Made(self.box, int(result["plain"]))
        except (KeyError, TypeError, ValueError):
            raise StudentError("it gave nonsense") from None

    def probed(self, source: str) -> "Kind":
        """The class with a probe around it, in the box."""
        found = self.box.value(self.box.ask("probe", self.box.boxes.limits.call, self.number, source))
        if not isinstance(found, Kind):
            raise StudentError("it gave nonsense")
        return found

    def __repr__(self) -> str:
        return f"the class {self.name}"


class Made:
    """Stands for an object that the judge made in a box."""

    def __init__(self, box: Box, number: int) -> None:
        self.box, self.number = box, number

    def tell(self, method: str, *arguments: object, **named: object) -> None:
        """Call a method for its effect."""
        self.box.call(self.number, method, *arguments, **named)

    def ask(self, method: str, *arguments: object) -> torch.Tensor:
        """Call a method that gives a tensor.

        Raises:
            ValueError: if it gives something else.
        """
        value = self.box.value(self.box.call(self.number, method, *arguments))
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{method} must give a tensor, got {value!r}")
        return finite(value)
