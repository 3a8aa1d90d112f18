"""What runs a student's code: a process that forks one box for each submission, and what happens in a box.

    python -m book._grading.box FD

It is started where the library lies without solutions, and it never holds one. It imports what notebooks need once,
so that a box starts in a moment.
"""

import base64
import contextlib
import io
import json
import os
import signal
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from book._grading import sandbox, wire

TEXT = 4000
#: Magics that set up a student's own machine.
IDLE = {"autoreload", "conda", "config", "gui", "load_ext", "mamba", "matplotlib", "pip", "reload_ext", "uv"}


class OutOfTime(BaseException):
    """A cell or a call ran too long."""


def _alarm(*_: object) -> None:
    raise OutOfTime


def told(error: BaseException) -> list[str]:
    """The name and the text of an error, whose class may be the student's."""
    try:
        return [type(error).__name__, str(error)[:500]]
    except Exception:
        return ["Exception", "an error without a text"]


class Shell(InteractiveShell):
    """IPython without windows, and without commands of the system: an answer needs neither."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Open no window."""

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run a magic, unless it only sets up the student's machine."""
        if magic_name in IDLE:
            print(f"%{magic_name} is not run when marked")
            return None
        return super().run_line_magic(magic_name, line, _stack_depth + 1)

    def system(self, cmd: str) -> None:
        """Run nothing."""
        print(f"!{cmd} is not run when marked")

    system_piped = system_raw = system

    def getoutput(self, cmd: str, *_: Any, **__: Any) -> list[str]:
        """Run nothing, which gives no lines."""
        self.system(cmd)
        return []


class Box:
    """The commands that the judge gives; all that they touch is the student's."""

    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        self.shell = Shell(config=config)
        self.kept: list[Any] = []

    def keep(self, value: Any) -> int:
        """A number for an object."""
        self.kept.append(value)
        return len(self.kept) - 1

    def run(self, source: str) -> dict[str, Any]:
        """Run a cell."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                result = self.shell.run_cell(source, store_history=False)
                error = result.error_before_exec or result.error_in_exec
            except OutOfTime as late:
                error = late
        ended = None
        if error is not None:
            ended = "it did not stop in time" if isinstance(error, OutOfTime) else ": ".join(told(error))
        return {"text": printed.getvalue()[:TEXT], "error": ended}

    def get(self, name: str) -> Any:
        """The value of a name; nothing if there is none."""
        return wire.encode(self.shell.user_ns.get(name), self.keep)

    def probe(self, number: int, source: str) -> Any:
        """A class that tells what its methods return wrongly, made of one that is kept by a function ``probe``."""
        space = dict(self.shell.user_ns)
        exec(source, space)
        return wire.encode(space["probe"](self.kept[number]), self.keep)

    def call(self, number: int, method: str | None, sent: str) -> Any:
        """Call a function or a method of what is kept."""
        import cloudpickle

        positional, named = cloudpickle.loads(base64.b64decode(sent))
        target = self.kept[number]
        result = (target if method is None else getattr(target, method))(*positional, **named)
        if isinstance(target, type) and method is None:
            return {"plain": self.keep(result)}
        return wire.encode(result, self.keep)


def serve(sock: socket.socket) -> None:
    """Do what the judge asks for, until it hangs up."""
    box, own = Box(), os.getpid()
    handlers = {"run": box.run, "get": box.get, "probe": box.probe, "call": box.call}
    signal.signal(signal.SIGALRM, _alarm)
    while True:
        try:
            command, seconds, *arguments = wire.read(sock)
        except wire.Broken:
            os._exit(0)
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = {"result": handlers[command](*arguments)}
            signal.setitimer(signal.ITIMER_REAL, 0)
        except OutOfTime:
            answer = {"error": ["TimeoutError", f"it did not stop in {seconds:g} s"]}
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            answer = {"error": told(error)}
        if os.getpid() != own:  # what the student's code forked comes back from the call too
            os._exit(0)
        wire.write(sock, answer)


def enter(sock: socket.socket, parted: bool, options: dict[str, Any]) -> None:
    """Shut this process in and serve; never returns."""
    shut = {"network": False, "files": False, "processes": parted}
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        home = options["root"]
        if parted:
            if options["furnish"]:
                sandbox.furnish(Path(home), [Path(p) for p in options["visible"]], [Path(p) for p in options["hidden"]])
                shut["files"] = True
            sandbox.give_up_rights(options["user"])
        if not shut["files"]:
            os.chdir(home)
        work = "/tmp" if shut["files"] else home
        os.environ.update(HOME=work, TMPDIR=work, MPLCONFIGDIR=work, IPYTHONDIR=f"{work}/ipython")
        tempfile.tempdir = None
        sys.path.insert(0, "")  # as in Jupyter a module may be written beside the notebook
        shut["network"] = not sandbox.online()
        own = os.geteuid() == options["user"]
        processes = 64 if own else 512 if parted else None  # as an ordinary user it may be counted with the teacher's
        sandbox.limit(options["memory"], options["seconds"], processes)
        wire.write(sock, shut)
        serve(sock)
    except BaseException as error:
        with contextlib.suppress(Exception):
            wire.write(sock, {"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(1)


def fork(sock: socket.socket, control: socket.socket, options: dict[str, Any]) -> int:
    """Start a box that talks through ``sock``; the number of its process."""
    ours, theirs = socket.socketpair()
    keeper = os.fork()
    if keeper:
        theirs.close()
        with ours:
            pid = int(wire.read(ours, 30))
        return pid
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours.close()
        control.close()
        parted = sandbox.part()
        pid = os.fork()
        if pid == 0:
            theirs.close()
            enter(sock, parted, options)
        sock.close()
        wire.write(theirs, pid)
        theirs.close()
        os.waitpid(pid, 0)
    finally:
        os._exit(0)


def main() -> None:
    """Fork a box or end one, whatever the judge asks for."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in json.loads(sys.argv[2]):
            with contextlib.suppress(ImportError):
                __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    wire.write(control, "ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
        if not message:
            os._exit(0)
        options = json.loads(message)
        if "end" in options:
            with contextlib.suppress(OSError):
                os.kill(options["end"], signal.SIGKILL)
            with contextlib.suppress(OSError):  # where it has no processes of its own, its group
                os.killpg(options["end"], signal.SIGKILL)
            wire.write(control, "ended")
            continue
        with socket.socket(fileno=descriptors[0]) as sock:
            wire.write(control, fork(sock, control, options))


if __name__ == "__main__":
    main()
