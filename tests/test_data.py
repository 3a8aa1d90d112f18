"""Objects as files."""

import functools
import importlib
import json
import re
import sys
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.former.data import load_object, save_object
from cbo_lib.former.fit import default_kernel
from cbo_lib.former.history import pack_arrays, reading, unpack_arrays, write_atomically
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure

F64 = torch.float64


@dataclass
class Bag:
    content: object


class Chest:
    pass


def returned(tmp_path, content):
    save_object(tmp_path / "bag", Bag(content))
    return load_object(tmp_path / "bag", Bag).content


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda part: st.lists(part) | st.tuples(part, part) | st.dictionaries(st.text(), part),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_values_come_back(tmp_path_factory, content):
    back = returned(tmp_path_factory.mktemp("bag"), content)
    assert back == content and type(back) is type(content)


def test_tensors_and_arrays_come_back(tmp_path):
    content = {
        "float": torch.rand(2, 3, dtype=F64),
        "single": torch.rand(2),
        "long": torch.tensor([1, 2]),
        "bool": torch.tensor(True),
        "empty": torch.zeros(3, 0, 2),
        "array": np.arange(3.0),
        "size": torch.Size([1, 2]),
        "dtype": torch.float32,
        "set": {1, 2},
        "slice of floats": (float("inf"), -0.0, 1e-320),
    }
    back = returned(tmp_path, content)
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            assert back[name].dtype == value.dtype and torch.equal(back[name], value)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(back[name], value)
        else:
            assert back[name] == value and type(back[name]) is type(value)


def test_what_is_one_thing_stays_one_thing(tmp_path):
    kernel = rbf_kernel(0.3)
    back = returned(tmp_path, [kernel, {"same": kernel}])
    assert back[0] is back[1]["same"]


def test_an_expanded_tensor_is_stored_once_and_stays_expanded(tmp_path):
    shared = Measure(torch.rand(1, 50, 2, dtype=F64).expand(400, 50, 2), torch.rand(400, 50, dtype=F64))
    back = returned(tmp_path, shared)
    assert back.points.stride(0) == 0 and torch.equal(back.points, shared.points)
    assert (tmp_path / "bag").stat().st_size < 400 * 50 * 8 * 1.1


def test_a_tensor_lies_in_memory_as_it_did(tmp_path):
    """Layout decides in which order a product is summed up, and so its last digit."""
    base = torch.arange(24.0).view(2, 3, 4)
    views = [base, base.mT, base.permute(2, 0, 1), base[:, 1], base[0, 0, 0], base.mT.expand(5, 2, 4, 3)]
    save_object(tmp_path / "views.npz", views)
    for old, new in zip(views, load_object(tmp_path / "views.npz", list), strict=True):
        assert torch.equal(new, old)
        assert sorted(range(old.dim()), key=new.stride) == sorted(range(old.dim()), key=old.stride)


def test_what_reader_and_writer_both_know_is_not_written(tmp_path):
    apart, other = [lambda: 1, {"a": 1.0}], [lambda: 2, {"b": 2.0}]
    save_object(tmp_path / "known.npz", {"f": apart[0], "deep": [apart[1], apart[0]], "own": [3]}, apart)
    back = load_object(tmp_path / "known.npz", dict, other)
    assert back["f"] is other[0] and back["deep"][0] is other[1] and back["deep"][1] is other[0] and back["own"] == [3]
    with pytest.raises(ValueError, match="damaged or another file"):
        load_object(tmp_path / "known.npz", dict)


def test_generators_go_on_where_they_were(tmp_path):
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    back = returned(tmp_path, generator)
    assert torch.equal(torch.rand(4, generator=back), torch.rand(4, generator=generator))


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


@pytest.mark.parametrize("name", kernels())
def test_kernels_come_back(tmp_path, name):
    kernel = kernels()[name]
    back = returned(tmp_path, kernel)
    x = torch.rand(6, 2, dtype=F64)
    assert type(back) is type(kernel) and back is not kernel
    assert torch.equal(back(x).to_dense(), kernel(x).to_dense())
    assert [n for n, _ in back.named_parameters()] == [n for n, _ in kernel.named_parameters()]
    for (_, module, prior, closure, _), (_, old, other, origin, _) in zip(
        back.named_priors(), kernel.named_priors(), strict=True
    ):
        assert torch.equal(prior.log_prob(closure(module)), other.log_prob(origin(old)))


def test_posteriors_come_back(tmp_path):
    x = Measure.dirac(torch.rand(5, 1, dtype=F64))
    posterior = GaussianProcess(rbf_kernel(0.3), 0.1).condition(x, torch.rand(5, dtype=F64))
    back = returned(tmp_path, posterior)
    assert torch.equal(back.mean(x), posterior.mean(x)) and torch.equal(back.variance(x), posterior.variance(x))


@pytest.mark.parametrize(
    "content", [lambda t: 2.0, functools.partial(lambda t: t, 1), open], ids=["lambda", "partial", "builtin"]
)
def test_what_cannot_be_stored_is_refused_with_its_place_and_nothing_is_written(tmp_path, content):
    with pytest.raises(ValueError, match=r"Bag\['content'\]\['deep'\].* holds .* can't be stored"):
        save_object(tmp_path / "bag", Bag({"deep": content}))
    assert not list(tmp_path.iterdir())


def double(t):
    return 2 * t


def test_functions_of_the_modules_that_may_be_named_come_back(tmp_path):
    assert returned(tmp_path, double) is double
    assert returned(tmp_path, functools.partial(double, t=3))() == 6


def rewrite(path, change):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with np.load(path) as arrays:
        document = json.loads(str(arrays["document"]))
    text = json.dumps(change(document))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            if name != "document.npy":
                archive.writestr(name, content)
        with archive.open("document.npy", "w") as file:
            np.lib.format.write_array(file, np.array(text), allow_pickle=False)


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:run", "builtins:eval", "numpy:load", "cbo_lib.former.data:absent"]
)
def test_a_file_names_no_code_of_other_packages(tmp_path, name):
    save_object(tmp_path / "bag", Bag(double))
    rewrite(tmp_path / "bag", lambda d: json.loads(json.dumps(d).replace(f"{double.__module__}:double", name)))
    with pytest.raises(ValueError, match=r"path (must name nothing but|names)"):
        load_object(tmp_path / "bag", Bag)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: [],
        lambda d: {},
        lambda d: {"root": {}},
        lambda d: {"root": {"number": 0, "sequence": [1], "class": "builtins:set", "again": 7}},
        lambda d: json.loads(json.dumps(d).replace('"a0"', '"a7"')),
        lambda d: json.loads(json.dumps(d).replace('"state"', '"estate"')),
        lambda d: json.loads(json.dumps(d).replace('"shape": [2]', '"shape": [3, 5]')),
    ],
    ids=["a list", "nothing", "empty", "no such number", "no such array", "no state", "another shape"],
)
def test_a_document_that_is_malformed_is_refused_by_name(tmp_path, change):
    save_object(tmp_path / "bag", Bag(torch.ones(2)))
    rewrite(tmp_path / "bag", change)
    with pytest.raises(ValueError, match=r"path must name a file written by save, got .*bag"):
        load_object(tmp_path / "bag", Bag)


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


def test_what_stands_beside_a_class_is_found_but_never_imported(tmp_path, monkeypatch):
    package = tmp_path / "garden"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shed.py").write_text("class Rake:\n    pass\n")
    (package / "beds.py").write_text("class Bed:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    beds, shed = importlib.import_module("garden.beds"), importlib.import_module("garden.shed")
    bed = beds.Bed()
    bed.tool = shed.Rake()
    save_object(tmp_path / "bed", bed)
    assert type(load_object(tmp_path / "bed", beds.Bed).tool) is shed.Rake
    monkeypatch.delitem(sys.modules, "garden.shed")
    with pytest.raises(ValueError, match=r"garden\.shed:Rake, which is not there"):
        load_object(tmp_path / "bed", beds.Bed)
    assert "garden.shed" not in sys.modules


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


@pytest.mark.parametrize("name", ["torch.nn:Sequential", "torch.nn.modules.container:Sequential"])
def test_a_file_makes_no_list_of_a_class_that_is_none(tmp_path, name):
    save_object(tmp_path / "bag", Bag((1, 2)))
    forged(tmp_path / "bag", "builtins:tuple", name)
    with pytest.raises(ValueError, match=f"path must name classes where they are defined, got {re.escape(name)}"):
        load_object(tmp_path / "bag", Bag)
