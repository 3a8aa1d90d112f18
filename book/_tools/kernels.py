"""Kernels that have imported already what every notebook imports, for runs of many notebooks.

The imports take four seconds a kernel. A nursery, one process, does them once and forks a kernel for each notebook; it
runs no thread and has opened nothing but its socket. Jupyter starts what it thinks is the kernel, a process of 30 ms
that passes its arguments to the nursery and lives as long as the kernel does::

    with kernels.prepared():
        ...  # kernels called python3 come from the nursery

Where a fork is not safe (macOS), or where the imports fail or warn, kernels are started as usual: then each notebook
shows what is wrong with them.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("matplotlib.pyplot", "pandas", "myst_nb", "torch", "botorch.optim", "ipykernel.kernelapp", "IPython")
SETTINGS = ("aggregated", "contexts", "hyperparameters", "indirect", "subsets")
BOOK = ("figures", "proofs", "steppers", "verdict")
IMPORTS = (*PACKAGES, *(f"cbo_lib.{name}" for name in (*SETTINGS, "simulate")), *(f"book.{name}" for name in BOOK))
READY = b"ready"


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Let kernels called python3 come from a nursery."""
    if not sys.platform.startswith("linux"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "nursery")
        pipe: Any = subprocess.PIPE
        process = subprocess.Popen([sys.executable, __file__, "nursery", path], stdin=pipe, stdout=pipe)
        before = os.environ.get("JUPYTER_PATH")
        try:
            if process.stdout is not None and process.stdout.readline().strip() == READY:
                argv = [sys.executable, "-S", "-E", __file__, "kernel", path, "-f", "{connection_file}"]
                specification = Path(folder) / "kernels" / "python3" / "kernel.json"
                specification.parent.mkdir(parents=True)
                content = {"argv": argv, "display_name": "Python 3", "language": "python"}
                specification.write_text(json.dumps(content), encoding="utf-8")
                os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before]))
            yield
        finally:
            os.environ.pop("JUPYTER_PATH", None)
            if before is not None:
                os.environ["JUPYTER_PATH"] = before
            with process:  # closes its input, which ends it, and waits
                pass


def imported() -> bool:
    """Do the imports; whether nothing was to be said about them."""
    said: list[Any] = []
    show, warnings.showwarning = warnings.showwarning, lambda *about, **more: said.append(about)
    gc.disable()
    try:
        for name in IMPORTS:
            __import__(name)
    except Exception:  # the notebooks will tell
        return False
    finally:
        warnings.showwarning = show  # and the filters stay that packages set
        gc.freeze()  # what is there stays, in all kernels
        gc.set_threshold(20_000)  # a look for garbage after every 700 objects takes a thirtieth of the time
        gc.enable()
    return not said


def nursery(path: str) -> None:
    """Fork a kernel for each that connects, until the process that began this one closes our input."""
    if not imported() or threading.active_count() > 1:  # what another thread holds stays held after a fork
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print(READY.decode(), flush=True)
    os.dup2(2, 1)  # nobody reads the pipe any more
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the kernels
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            be_kernel(connection)
        connection.close()


def be_kernel(connection: socket.socket) -> None:
    """Become the kernel that the other side was to be, and end with it."""
    with connection.makefile("rb") as lines:
        arguments, folder, environment = json.loads(lines.readline())
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_listen, args=[connection], daemon=True).start()
    from ipykernel import kernelapp

    # The kernel took its parent from the environment when it was imported.
    sys.argv = ["ipykernel_launcher.py", *arguments, f"--IPKernelApp.parent_handle={os.getppid()}"]
    try:
        kernelapp.launch_new_instance()
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _listen(connection: socket.socket) -> None:
    """Each byte is an interrupt, and the end of them the end of the kernel."""
    while connection.recv(1):
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


def stand_in(path: str, arguments: list[str]) -> None:
    """What Jupyter takes for the kernel."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        signal.signal(signal.SIGINT, lambda *_: connection.sendall(b"i"))
        connection.sendall(json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n")
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1)  # the kernel says nothing: this is its end


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        sys.path.pop(0)  # this folder
        nursery(sys.argv[2])
    else:
        stand_in(sys.argv[2], sys.argv[3:])
