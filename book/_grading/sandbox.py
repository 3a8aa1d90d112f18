"""Shut the process in: no network, no files but the ones it needs, no other processes, little memory.

Linux does this by namespaces, which an ordinary user may make on most systems and root on nearly all. Elsewhere the
limits on time and memory are all there is, and ``isolate`` says so.
"""

import contextlib
import ctypes
import os
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

NOBODY = 65534
_NEW = {"files": 0x00020000, "network": 0x40000000, "processes": 0x20000000, "messages": 0x08000000, "name": 0x04000000}
_NEW_USER = 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _REC, _PRIVATE, _DETACH = 1, 32, 4096, 16384, 1 << 18, 2
_NO_NEW_PRIVILEGES, _DROP_BOUND = 38, 24
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    values = [a.encode() if isinstance(a, str) else a for a in arguments]
    if getattr(_libc(), name)(*values) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def part() -> bool:
    """Take this process, or its next child, out of the namespaces of the others; whether the system allows it.

    Root needs no namespace of users and becomes nobody later. Others need one, in which they stay who they are.
    """
    if not sys.platform.startswith("linux") or os.uname().machine not in _PIVOT_ROOT:
        return False
    new = sum(_NEW.values())
    with contextlib.suppress(OSError):
        if os.geteuid() == 0:
            _call("unshare", new)
            return True
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", new | _NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    return True


def _bind(source: Path, root: Path) -> None:
    target = root / source.relative_to("/")
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _call("mount", str(source), str(target), None, _BIND | _REC, None)
    kept = os.statvfs(target).f_flag & (2 | 4 | 8)  # nosuid, nodev and noexec may not be taken back
    with contextlib.suppress(OSError):
        _call("mount", None, str(target), None, _BIND | _REMOUNT | _READ_ONLY | kept, None)


def furnish(root: Path, visible: Sequence[Path], hidden: Sequence[Path]) -> None:
    """Make ``root`` the root of the file system: what is visible, read-only, and an empty ``/tmp``."""
    _call("mount", "none", "/", None, _REC | _PRIVATE, None)
    _call("mount", "tmpfs", str(root), "tmpfs", 2, "size=256m,mode=755")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
    system = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/fonts", "/etc/localtime"]
    devices = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
    paths = [Path(p) for p in system if Path(p).exists() and not Path(p).is_symlink()]
    done: list[Path] = []
    for path in sorted({*paths, *visible}):
        if not any(path.is_relative_to(before) for before in done):
            _bind(path, root)
            done.append(path)
    for path in hidden:  # such as a repository that lies in a folder which is visible
        if any(path.is_relative_to(before) for before in done) and path.is_dir():
            _call("mount", "tmpfs", str(root / path.relative_to("/")), "tmpfs", 2, "size=64k")
            for inner in visible:
                if inner.is_relative_to(path):
                    _bind(inner, root)
    for device in devices:
        with contextlib.suppress(OSError):
            _bind(Path(device), root)
    (root / "proc").mkdir()
    with contextlib.suppress(OSError):  # in some containers
        _call("mount", "proc", str(root / "proc"), "proc", 0, None)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    os.chdir(root)
    if _libc().syscall(_PIVOT_ROOT[os.uname().machine], b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    _call("umount2", ".", _DETACH)
    os.chdir("/tmp")


def give_up_rights(user: int) -> None:
    """Become a user whom nobody else is if this is root, and nothing more than an ordinary user in any case.

    The system counts processes by user, so two boxes must not share one.
    """
    if os.geteuid() == 0:
        for name in (user, NOBODY):
            with contextlib.suppress(OSError):
                os.setgroups([])
                os.setresgid(name, name, name)
                os.setresuid(name, name, name)
                break
    libc = _libc()
    for capability in range(64):
        libc.prctl(_DROP_BOUND, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def limit(memory: int, seconds: int, processes: int | None) -> None:
    """Bound what the process may take: memory beyond what it holds now, time of the processor, files, processes."""
    size = 0
    with contextlib.suppress(OSError):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    wanted = {"AS": size + memory, "CPU": seconds, "FSIZE": 64 * 2**20, "CORE": 0, "NOFILE": 256}
    if processes is not None:
        wanted["NPROC"] = processes
    for name, most in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, most))


def online() -> bool:
    """Whether there is a network device besides the loopback."""
    return any(name != "lo" for _, name in socket.if_nameindex())
