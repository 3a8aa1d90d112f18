"""Who does the tasks: this process, processes of this machine, or the workers of a Dask scheduler.

The numbers are the same: a task says which seeds run together, and whoever does it does it in one thread. What is sent
is a task's name; what comes back says which file was written. The folder must be one that all workers share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from book.tasks import Task, perform

#: Of a worker process; two threads a product would make other last digits than one. What was freed stays for what comes
#: next: with Dask's own setting, which gives it back at once, tasks took 1.2 to 3.3 times as long.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}
#: Done by a worker process first: Ctrl-C in a terminal reaches it too, but the client stops it, and no warning is due.
_UNTROUBLED = """import logging, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
logging.getLogger("distributed.worker.state_machine").setLevel("ERROR")
"""
#: How often a task is tried again after its worker died or it failed.
RETRIES = 2
#: Seconds in which a scheduler must answer.
ANSWER = 30.0
#: Seconds after which a machine sees what another wrote on a disk that they share; over a network it may look late.
PATIENCE = 60.0
#: Seconds after which a run looks again whether there is a worker.
LOOK = 30.0


def run(
    tasks: Sequence[Task],
    folders: Sequence[Path],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Do the tasks that are not done; gives what ``perform`` says of these.

    Args:
        tasks: what to do.
        folders: where the file of each goes.
        workers: processes of this machine; 0 this one.
        scheduler: address of a Dask scheduler, ``tcp://host:8786``; then ``workers`` does not count.
        progress: whether to show a bar with the time left. Default: in a terminal.
    """
    open_ = [(t, f) for t, f in zip(tasks, folders, strict=True) if not (f / t.file).exists()]
    hidden = None if progress is None else not progress
    bar = tqdm(total=len(tasks), initial=len(tasks) - len(open_), unit="task", disable=hidden, dynamic_ncols=True)
    done = []
    with bar:
        if not open_:
            return []
        source = _here(open_) if scheduler is None and not workers else _there(open_, workers, scheduler)
        for record in source:
            done.append(record)
            bar.update()
    return done


def _here(work: Sequence[tuple[Task, Path]]) -> Iterator[dict[str, Any]]:
    for task, folder in work:
        yield perform(task, str(folder))


def _there(work: Sequence[tuple[Task, Path]], workers: int, scheduler: str | None) -> Iterator[dict[str, Any]]:
    from distributed import CancelledError, as_completed
    from distributed.comm import CommClosedError

    try:
        with client_of(min(workers, len(work)), scheduler) as client, _watched(client):
            futures = {
                # The key is the file: a task that is sent twice is done once.
                client.submit(perform, task, str(folder.resolve()), key=task.file, pure=False, retries=RETRIES): folder
                for task, folder in work
            }
            for future in as_completed(list(futures)):
                record = future.result()
                if not seen(futures[future] / record["file"]):
                    raise FileNotFoundError(
                        f"{futures[future]} must be a folder that all workers share; {record['by']} wrote "
                        f"{record['file']} where this process does not see it"
                    )
                yield record
                future.release()
    except (CancelledError, CommClosedError):
        raise ConnectionError(f"the scheduler is lost, {scheduler or 'of this machine'}") from None


@contextmanager
def _watched(client: Any) -> Iterator[None]:
    """Say so once when there is no worker, and the run waits for one."""
    from distributed import CancelledError

    over = threading.Event()

    def look() -> None:
        try:
            while not over.wait(LOOK):
                if not client.nthreads():
                    tqdm.write("No worker is there, and the run waits for one. Ctrl-C ends it; what is done is stored.")
                    return
        except (OSError, RuntimeError, CancelledError):  # the scheduler is lost, which the run says
            return

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(ANSWER)


def seen(path: Path) -> bool:
    """Whether a file is there, or comes into sight in time."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(min(0.5, PATIENCE / 10))
        if path.parent.is_dir():
            os.listdir(path.parent)  # a network disk looks again
    return True


@contextmanager
def client_of(workers: int, scheduler: str | None = None) -> Iterator[Any]:
    """A client of a scheduler, or of a cluster of one-thread processes on this machine that ends with it.

    Raises:
        ConnectionRefusedError: if no scheduler answers.
    """
    import dask
    from distributed import Client, LocalCluster
    from distributed.comm import CommClosedError
    from distributed.utils import silence_logging_cmgr

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=f"{ANSWER:g}s")
        except CommClosedError:  # it had answered
            raise
        except OSError:
            raise ConnectionRefusedError(f"no scheduler answers at {scheduler}") from None
        with client:
            yield client
        return
    settings = {
        "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
        "distributed.worker.preload": [_UNTROUBLED],
        # A worker that says nothing for minutes, on a machine that slept, say, still has its task.
        "distributed.scheduler.worker-ttl": None,
    }
    # Any free port for what Dask would serve at 8787, which a second run on the machine could not have.
    quiet_server = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "scheduler_kwargs": quiet_server}
    with (
        ExitStack() as quiet,
        dask.config.set(settings),
        # Memory is shared by all tasks of a machine: a limit of a worker would only stop it.
        LocalCluster(**options, processes=True, memory_limit=0, host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        try:
            yield client
        except KeyboardInterrupt:  # workers are stopped in the middle of tasks: nobody need be warned
            quiet.enter_context(silence_logging_cmgr("ERROR"))
            raise


def cores() -> int:
    """How many processes may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
