import pytest
import torch


def pytest_ignore_collect(collection_path, config):
    """Benchmarks take minutes: they run under ``--benchmark-only`` (``make benchmark``) alone."""
    return None if config.getoption("benchmark_only") else True


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
