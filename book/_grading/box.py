"""A process of its own for a submission, and the judge's end of it.

What the judge sends is pickled. What comes back is JSON, so that no object or class of a student runs in the judge by
accident. This is no barrier against attacks: a submission runs as the user who marks.
"""

import base64
import builtins
import contextlib
import io
import json
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import numpy as np
import psutil
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from book.checks import finite

ROOT = Path(__file__).resolve().parents[2]
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT: Any = multiprocessing.get_context(START)
#: Imported once, so that a box starts in a moment.
IMPORTS = ["book._grading.box", "botorch", "scipy.stats", "pandas", "matplotlib.pyplot", "ipywidgets", "book.figures"]
IMPORTS += [f"cbo_lib.{name}" for name in ("aggregated", "contexts", "hyperparameters", "indirect", "subsets")]
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ENVIRONMENT |= {"MPLBACKEND": "agg", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
ENVIRONMENT["PYTHONWARNINGS"] = "ignore:resource_tracker"  # which complains of what an ended box had open
#: Magics of lines that set up a student's own machine, and magics of cells that start another program.
LINES = ("autoreload", "conda", "config", "gui", "load_ext", "mamba", "matplotlib", "pip", "reload_ext", "uv")
CELLS = ("bash", "cmd", "perl", "pypy", "python", "python2", "python3", "ruby", "script", "sh")
NOT_RUN = "is not run when marked"
#: Characters of a cell's output that are kept, and of an answer that is sent.
TEXT, MOST = 4000, 16 * 2**20


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


class StudentError(Exception):
    """The student's code raised an error."""


class Lost(StudentError):
    """The box is gone: its process died, or it did not stop and was ended."""


# --- in the process of the submission


class OutOfTime(BaseException):
    """A cell or a call ran too long."""


def _alarm(*_: object) -> None:
    raise OutOfTime


def make_shell() -> InteractiveShell:
    """IPython without windows and without commands of the system: an answer needs neither."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=config)
    shell.enable_gui = lambda gui=None: None
    shell.system = shell.getoutput = lambda line, *_, **__: print(f"!{line} {NOT_RUN}") or []
    for kind, sign, names in (("line", "%", LINES), ("cell", "%%", CELLS)):
        for name in names:
            said = f"{sign}{name} {NOT_RUN}"
            shell.magics_manager.magics[kind][name] = lambda *_, said=said: print(said)
    return shell


class Session:
    """The commands that the judge gives."""

    def __init__(self) -> None:
        self.shell = make_shell()
        self.kept: list[Any] = []

    def run(self, source: str) -> list[str | None]:
        """Run a cell: what it printed, and the error that it ended with."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                result = self.shell.run_cell(source, store_history=False)
                error = result.error_before_exec or result.error_in_exec
            except OutOfTime as late:
                error = late
        ended = error and f"{type(error).__name__}: {error}"[:1000]
        return [printed.getvalue()[:TEXT], "it did not stop in time" if isinstance(error, OutOfTime) else ended]

    def get(self, name: str) -> dict[str, Any]:
        """The value of a name; nothing if there is none."""
        return encode(self.shell.user_ns.get(name), self.kept)

    def probe(self, number: int, source: str) -> dict[str, Any]:
        """A class that tells what its methods return wrongly, made of one that is kept by a function ``probe``."""
        space = dict(self.shell.user_ns)
        exec(source, space)
        return encode(space["probe"](self.kept[number]), self.kept)

    def make(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> int:
        """Make an object of a class that is kept; its number."""
        self.kept.append(self.kept[number](*arguments, **named))
        return len(self.kept) - 1

    def call(self, number: int, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Call a method of what is kept."""
        return encode(getattr(self.kept[number], method)(*arguments, **named), self.kept)


def encode(value: Any, kept: list[Any], depth: int = 0) -> dict[str, Any]:
    """A value as JSON; functions and classes stay where they are, in ``kept``, and only their numbers leave."""
    other = {"other": type(value).__name__}
    try:
        if isinstance(value, type):
            kept.append(value)
            bases = [f"{base.__module__}.{base.__qualname__}" for base in value.__mro__]
            return {"class": len(kept) - 1, "name": value.__name__, "bases": bases}
        if hasattr(value, "to_numpy"):  # pandas
            value = value.to_numpy()
            value = value.item() if value.size == 1 else value
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return {"plain": value[:1000] if isinstance(value, str) else value}
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value.copy())
        if isinstance(value, torch.Tensor):
            array = value.numpy(force=True)
            data = base64.b64encode(array.tobytes()).decode()
            return {"array": data, "dtype": array.dtype.str, "shape": array.shape}
        if isinstance(value, list | tuple) and depth < 4 and len(value) <= 10_000:
            return {"list": [encode(part, kept, depth + 1) for part in value], "tuple": isinstance(value, tuple)}
        if callable(value):
            kept.append(value)
            return {"function": len(kept) - 1, "name": str(getattr(value, "__name__", "a function"))}
        if hasattr(type(value), "__float__"):  # such as a fraction, or a root that an algebra system keeps
            return {"plain": float(value)}
    except Exception:  # of an exotic number or the student's class
        return other
    return other


def serve(connection: Connection, folder: str, limits: Limits) -> None:
    """Do what the judge asks for, until it hangs up."""
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder, MPLCONFIGDIR=folder, IPYTHONDIR=f"{folder}/ipython")
    tempfile.tempdir = None
    sys.path.insert(0, "")  # as in Jupyter a module may be written beside the notebook
    memory = psutil.Process().memory_info().vms + limits.memory
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, limits.total)):
        with contextlib.suppress(ValueError, OSError):  # macOS bounds no memory
            resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGALRM, _alarm)
    session = Session()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what compiled code prints is not for the teacher's screen
        os.dup2(nowhere, stream)
    connection.send_bytes(b"{}")
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        try:
            command, seconds, arguments = pickle.loads(message)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Half a character, which no file could hold, becomes a question mark.
                text = json.dumps({"result": getattr(session, command)(*arguments)}, ensure_ascii=False)
            if len(text) > MOST:
                raise ValueError("it gave too much")
        except OutOfTime:
            text = json.dumps({"error": ["TimeoutError", f"it did not stop in {seconds:g} s"]})
        except BaseException as error:
            text = json.dumps({"error": [type(error).__name__, str(error)[:500]]}, ensure_ascii=False)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(text.encode(errors="replace"))


# --- in the process of the judge


class Box:
    """A process that runs a submission, in an empty folder.

    Args:
        limits: of its cells and calls.
        end: the time of ``time.monotonic`` at which it is lost.
    """

    def __init__(self, limits: Limits | None = None, end: float = math.inf) -> None:
        self.limits, self.end, self.closed = limits or Limits(), end, False
        self.folder = tempfile.TemporaryDirectory(prefix="box-", ignore_cleanup_errors=True)
        self.connection, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs, self.folder.name, self.limits), daemon=True)
        if START == "forkserver":
            CONTEXT.set_forkserver_preload(IMPORTS)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
        with mock.patch.dict(os.environ, kept | ENVIRONMENT, clear=True):  # which the process inherits
            self.process.start()
        theirs.close()
        self._receive(300)

    def _receive(self, seconds: float) -> Any:
        try:
            if self.connection.poll(seconds):
                return json.loads(self.connection.recv_bytes())
            said = "it did not stop"
        except (OSError, EOFError):
            said = "its process died"
        self.close()
        raise Lost(said)

    def close(self) -> None:
        """End it, with the processes that it started."""
        if self.closed:
            return
        self.closed, family = True, []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()
        self.process.join(30)
        self.connection.close()
        self.folder.cleanup()

    def ask(self, command: str, seconds: float, *arguments: object) -> Any:
        """Give a command and wait for its result.

        Raises:
            Lost: if there is none, in time or ever; the box is ended.
            Exception: what the student's code raised, if Python has an error of this name.
            StudentError: any other error.
        """
        if self.closed:
            raise Lost("its process died")
        seconds = min(seconds, self.end - time.monotonic())
        if seconds <= 0:
            self.close()
            raise Lost("the time for the whole submission is over")
        with contextlib.suppress(OSError):  # then there is nothing to receive either
            self.connection.send_bytes(cloudpickle.dumps((command, seconds, arguments)))
        answer = self._receive(seconds + 10)  # a busy machine needs seconds to write a traceback
        if "error" not in answer:
            return answer["result"]
        name, text = answer["error"]
        kind, raised = getattr(builtins, name, None), None
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):  # some are made of more than a text
                raised = kind(text)
        raise raised or StudentError(f"{name}: {text}")

    def run(self, source: str, seconds: float | None = None) -> tuple[str, str | None]:
        """Run a cell: what it printed, and the error that it ended with.

        Raises:
            Lost: if the box is lost meanwhile.
        """
        try:
            text, error = self.ask("run", self.limits.cell if seconds is None else seconds, source)
            return text, error
        except Lost:
            raise
        except Exception as error:
            return "", f"{type(error).__name__}: {error}"

    def get(self, name: str) -> Any:
        """The value of a name."""
        return self.value(self.ask("get", self.limits.call, name))

    def call(self, number: int, method: str, *arguments: object, **named: object) -> Any:
        """What a method of an object in the box gives."""
        return self.value(self.ask("call", self.limits.call, number, method, arguments, named))

    def value(self, data: dict[str, Any]) -> Any:
        """What was encoded, with tensors for arrays and stand-ins for functions and classes."""
        if "plain" in data:
            return data["plain"]
        if "array" in data:
            flat = np.frombuffer(base64.b64decode(data["array"]), dtype=data["dtype"])
            return torch.from_numpy(flat.reshape(data["shape"]).copy())
        if "list" in data:
            parts = [self.value(part) for part in data["list"]]
            return tuple(parts) if data["tuple"] else parts
        if "class" in data:
            return Kind(self, data["class"], data["name"], data["bases"])
        if "function" in data:
            return Function(self, data["function"], data["name"])
        return Other(data["other"])


@dataclass(repr=False)
class Other:
    """Something that is neither a number nor a function."""

    name: str

    def __repr__(self) -> str:
        return f"an object of the class {self.name}"


@dataclass(repr=False)
class Function:
    """Stands for a student's function: a call runs in the box."""

    box: Box
    number: int
    name: str

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Call it in the box."""
        return finite(self.box.call(self.number, "__call__", *arguments, **named))

    def __repr__(self) -> str:
        return f"the function {self.name}"


@dataclass(repr=False)
class Kind:
    """Stands for a student's class, which only becomes one for the judge where a policy is wanted."""

    box: Box
    number: int
    name: str
    bases: list[str]

    def make(self, *arguments: object, **named: object) -> int:
        """The number of a new object of the class in the box."""
        return self.box.ask("make", self.box.limits.call, self.number, arguments, named)

    def probed(self, source: str) -> "Kind":
        """The class with a probe around it, in the box."""
        return self.box.value(self.box.ask("probe", self.box.limits.call, self.number, source))

    def __repr__(self) -> str:
        return f"the class {self.name}"
