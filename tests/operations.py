"""What sees every operation of PyTorch."""

from torch.utils._python_dispatch import TorchDispatchMode


class OperationsMode(TorchDispatchMode):
    """Sees them without asking each time whether they are being compiled, which takes a part of every operation."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False
