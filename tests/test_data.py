"""Objects as files."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from cbo_lib.fit import default_kernel
from cbo_lib.former.data import load_object, save_object
from cbo_lib.former.history import pack_arrays, reading, unpack_arrays, write_atomically
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel


@dataclass
class Bag:
    content: object


class Chest:
    pass


def kernels():
    matern = MaternKernel(lengthscale_prior=GammaPrior(2.0, 3.0)).double()
    return {
        "rbf": rbf_kernel(0.3),
        "product": ProductKernel(RBFKernel(active_dims=(0,)), MaternKernel(nu=1.5, active_dims=(1,))).double(),
        "periodic": PeriodicKernel().double(),
        "scaled": ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double(),
        "with a prior": ScaleKernel(matern),
        "default": default_kernel("matern", 2, [[0], [1]]).double(),
    }


def double(t):
    return 2 * t


def test_a_flip_or_a_cut_anywhere_is_reported_or_does_not_matter(tmp_path):
    path, thing = tmp_path / "bag", {"a": torch.tensor([0.5, 2.0]), "b": 3, "c": np.arange(3)}
    save_object(path, Bag(thing))
    content, harmless, named = path.read_bytes(), 0, []
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            back = load_object(path, Bag).content
        except ValueError as error:
            named.append(str(error).startswith(f"path must name a file written by save, got {path}"))
        else:
            harmless += 1
            assert torch.equal(back["a"], thing["a"]) and back["b"] == 3 and back["c"].tolist() == [0, 1, 2]
        path.write_bytes(content[:place])
        with pytest.raises(ValueError, match="path must name a file written by save"):
            load_object(path, Bag)
    assert all(named) and 0 < harmless < len(named)


def test_other_files_and_other_classes_are_refused(tmp_path):
    (tmp_path / "text").write_text("no policy")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("text", "other.npz"):
        with pytest.raises(ValueError, match="path must name a file written by save"):
            load_object(tmp_path / name, Bag)
    save_object(tmp_path / "bag", Bag(1))
    content = (tmp_path / "bag").read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="path must name a file written by save"):
        load_object(tmp_path / "cut", Bag)
    with pytest.raises(ValueError, match="path must hold a Chest, got a Bag"):
        load_object(tmp_path / "bag", Chest)
    with pytest.raises(ValueError, match="path must name nothing but classes of"):
        load_object(tmp_path / "bag", GaussianProcess)
    with pytest.raises(FileNotFoundError):
        load_object(tmp_path / "absent", Bag)


def forged(path, old, new):
    """A file with another name in it, and checksums that are right."""
    with reading(path, "save") as content:
        arrays = unpack_arrays(content)
    document = str(arrays["document"])
    assert old in document
    write_atomically(path, pack_arrays({**arrays, "document": np.array(document.replace(old, new))}))


@pytest.mark.parametrize(
    "name",
    [
        "torch.utils.collect_env:subprocess.call",  # reached through what a module imports
        "torch.hub:load",  # a function of a package whose classes may be named
        "torch:serialization.load",
        "subprocess:call",
    ],
)
def test_a_file_names_no_function_that_starts_a_program(tmp_path, name):
    save_object(tmp_path / "bag", Bag(functools.partial(rbf_kernel, 0.3)))
    forged(tmp_path / "bag", "cbo_lib.kernels:rbf_kernel", name)
    with pytest.raises(ValueError, match="path must name"):
        load_object(tmp_path / "bag", Bag)
