"""The files around the library agree with each other: one lock, one version, one set of pages."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from setuptools import find_namespace_packages

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK_LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
LOCK = [Requirement(line) for line in LOCK_LINES]


def environments() -> list[dict[str, str]]:
    """The platforms that the lock must serve."""
    systems = {
        "linux": ("posix", "Linux", "x86_64"),
        "darwin": ("posix", "Darwin", "arm64"),
    }
    return [
        {
            "python_version": version,
            "python_full_version": f"{version}.1",
            "sys_platform": platform,
            "os_name": os_name,
            "platform_system": system,
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
        }
        for version in ("3.11", "3.12", "3.13")
        for platform, (os_name, system, machine) in systems.items()
    ]


def pins(environment: dict[str, str] | None = None) -> dict[str, Version]:
    """The locked version of each package on a platform, by default on this one."""
    applying = [r for r in LOCK if r.marker is None or r.marker.evaluate(environment)]
    found = {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in applying}
    assert len(found) == len(applying), "a package is pinned twice"
    return found


def declared() -> list[Requirement]:
    """Everything that pyproject.toml asks for."""
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in [*groups, PROJECT["build-system"]["requires"]] for text in group]


def test_lock_holds_exact_and_portable_pins() -> None:
    for requirement, line in zip(LOCK, LOCK_LINES, strict=True):
        assert re.fullmatch(r"==[0-9][^+*,]*", str(requirement.specifier)), line
        assert requirement.url is None, line
        assert "http" not in line.split("==")[1], line
        assert not re.match(r"nvidia-|cuda-|triton", requirement.name), f"{line}: torch brings its own"


@pytest.mark.parametrize("environment", environments(), ids=lambda e: e["python_version"] + e["sys_platform"])
def test_lock_admits_every_dependency(environment: dict[str, str]) -> None:
    locked = pins(environment)
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        assert name in locked, f"{requirement} is not in requirements.lock; run `make lock`"
        assert requirement.specifier.contains(locked[name]), f"{requirement} does not admit {locked[name]}"


def test_installed_packages_are_the_locked_ones() -> None:
    locked = pins()
    checked = 0
    for name, version in locked.items():
        try:
            # Builds of torch for CPU and CUDA differ in the local part of the version alone.
            installed = Version(Version(importlib.metadata.version(name)).public)
        except importlib.metadata.PackageNotFoundError:
            continue
        checked += 1
        assert installed == version, f"{name}: {installed} is installed, {version} is locked"
    assert checked > 100


def test_the_library_can_be_installed_without_what_draws() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(text).name) for text in requirements}

    drawing = {"ipython", "matplotlib"}
    assert not drawing & names(PROJECT["project"]["dependencies"])
    assert drawing <= names(PROJECT["project"]["optional-dependencies"]["book"])


def test_packages_are_the_folders_with_modules() -> None:
    """Those of the library, and those that stand beside the pages."""
    find = PROJECT["tool"]["setuptools"]["packages"]["find"]
    found = set(find_namespace_packages(str(ROOT), include=find["include"], exclude=find["exclude"]))
    folders = {path.parent.relative_to(ROOT) for name in ("cbo_lib", "book") for path in (ROOT / name).rglob("*.py")}
    expected = {".".join(folder.parts) for folder in folders if not folder.name.startswith("_")}
    assert expected <= found
    assert not [name for name in found if re.search(r"\._|results|checkpoints|cache", name)]
    data = PROJECT["tool"]["setuptools"]["package-data"]
    stored = [path.relative_to(ROOT).as_posix() for path in (ROOT / "cbo_lib").rglob("*.npz")]
    assert set(data) == {"cbo_lib", "book.contexts"}
    assert not stored, "what the library stores must be in package-data"


def test_environment_file_uses_the_same_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda = [d for d in environment["dependencies"] if isinstance(d, str)]
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert pip == ["-c requirements.lock", "-e .[book,test]"], "pip reads the lock and names no version itself"
    python = next(d for d in conda if d.startswith("python=")).removeprefix("python=")
    assert Requirement(f"python{PROJECT['project']['requires-python']}").specifier.contains(f"{python}.1")
    assert [d.split("=")[0] for d in conda] == ["python", "pip"], "packages come from the lock alone"


def test_versions_agree() -> None:
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_workflow_runs_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8"))
    supported = Requirement(f"python{PROJECT['project']['requires-python']}").specifier
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == [v for v in (f"3.{minor}" for minor in range(8, 20)) if supported.contains(f"{v}.1")]


def test_table_of_contents_and_pages_agree() -> None:
    """Every page of the book is in the table of contents, and the other way around."""
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    listed = re.findall(r"(?:root|file): *(\S+)", toc)
    pages = [p for ext in ("md", "ipynb") for p in (ROOT / "book").rglob(f"*.{ext}")]
    relative = [p.relative_to(ROOT) for p in pages]
    stored = [p.with_suffix("").as_posix() for p in relative if not re.search(r"/[._]", p.as_posix())]
    assert sorted(listed) == sorted(stored)
