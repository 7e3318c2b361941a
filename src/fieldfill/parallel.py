r"""How a run uses the machine: several processes as one, the device, lower precision, compilation.

Under ``torchrun`` every process has a rank r of P. They form a `Team` that behaves as one process would: each takes
its share of a step's windows and holds the same weights, and

.. math:: \nabla L = \frac{1}{N} \sum_{r} \sum_{i \in r} \nabla L_i

with N the windows of *all* ranks that count, however they are spread. DDP gives the mean over ranks of the inner sums,
which is multiplied by P / N.
"""

import atexit
import json
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fieldfill.denoise import Denoiser
from fieldfill.errors import InputError

__all__ = ["ALONE", "LostProcess", "Team", "compiled", "exchanging", "join", "losing_nobody", "lower_precision"]

# A collective whose partner has died says so in words only.
NETWORK_WORDS = ("gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "TCPStore")


class LostProcess(RuntimeError):
    """The run cannot go on because another of its processes ended, or because it was told to stop."""


@dataclass(frozen=True)
class Team:
    """The processes of a run, seen from one of them; by default it is alone.

    Attributes
    ----------
    rank, size
        r and P.
    device
        where this process computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of ``count`` things are this process's: neighbours, and as many as anybody else's, to one."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, *values: float) -> list[float]:
        """The sum over all processes of each value."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        # A thread of gloo often still holds the tensor. Were it the last to do so while the interpreter is taken down,
        # the process would abort; so Python outlasts it.
        while total._use_count() > 1:  # type: ignore[attr-defined]
            time.sleep(0)
        return total.tolist()

    def of_first(self, value: float) -> float:
        """The value that the first process has, for what must not differ, such as the time."""
        return self.sum(value if self.first else 0.0)[0]

    def wait(self) -> None:
        """Returns when all processes are here."""
        self.sum(0.0)

    def shared(self, denoiser: Denoiser) -> nn.Module:
        """The denoiser's network such that a backward pass through it averages gradients over the team.

        Weights and buffers of the first process become those of all.
        """
        if self.size == 1:
            return denoiser.network
        for tensor in denoiser.buffers():
            if tensor.numel():
                dist.broadcast(tensor, 0)
        return DistributedDataParallel(denoiser.network)

    def agree(self, facts: dict[str, Any]) -> None:
        """Checks that all processes start from the same facts; one with another file would spoil the run."""
        if self.size == 1:
            return
        mine = {key: json.dumps(value) for key, value in facts.items()}
        all_facts: list[dict[str, str]] = [{}] * self.size
        dist.all_gather_object(all_facts, mine)
        for rank, theirs in enumerate(all_facts):
            differ = [key for key in mine if theirs.get(key) != all_facts[0][key]]
            if differ:
                raise InputError(
                    f"process {rank} has another {', '.join(differ)} than process 0; "
                    "give all processes the same data and the same version of fieldfill"
                )


ALONE = Team()


def join() -> Team:
    """The team that the environment describes (RANK, WORLD_SIZE, LOCAL_RANK, as torchrun sets them)."""
    cuda = torch.cuda.is_available()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Team(device=torch.device("cuda" if cuda else "cpu"))
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
        signal.signal(signal.SIGTERM, _told_to_stop)
        atexit.register(_leave)
    return Team(dist.get_rank(), dist.get_world_size(), device)


def _leave() -> None:
    # Torch asks for it, of NCCL's processes above all.
    if dist.is_initialized():
        dist.destroy_process_group()


def _told_to_stop(*_: object) -> None:
    # torchrun ends the other processes by this signal when it sees that one has died.
    raise LostProcess("a process of the run ended or was told to stop")


@contextmanager
def losing_nobody(checkpoint: Path) -> Iterator[None]:
    """Turns the failure of a collective, whose cause is another process, into `LostProcess`, and says what remains."""
    try:
        yield
    except RuntimeError as error:
        told = isinstance(error, LostProcess)
        if not told and not any(word in str(error) for word in NETWORK_WORDS):
            raise
        what = str(error) if told else "another process of the run ended"
        todo = f"{checkpoint} is usable, --resume continues from it" if checkpoint.exists() else "no checkpoint yet"
        raise LostProcess(f"{what}; {todo}") from error


def exchanging(network: nn.Module, yes: bool) -> AbstractContextManager:
    """Whether backward passes inside exchange gradients; all but the last of a step only add to them."""
    return nullcontext() if yes or not isinstance(network, DistributedDataParallel) else network.no_sync()


@contextmanager
def lower_precision(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the network computes in bfloat16 where that is safe; its weights and its output stay float32."""
    inner: Callable[..., Tensor] = network.forward

    def forward(features: Tensor, log_snr: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return inner(features, log_snr).float()

    network.forward = forward
    try:
        yield
    finally:
        del network.forward


@contextmanager
def compiled(denoiser: Denoiser, trial: Callable[[], Tensor]) -> Iterator[None]:
    """Inside, the network runs as compiled code if ``trial()``, a forward pass, shows that it can."""
    network = denoiser.network
    network.compile()
    try:
        try:
            trial().sum().backward()
        except Exception as error:  # whatever the compiler lacks, the run goes on without it
            network._compiled_call_impl = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"torch.compile does not work here, training goes on without it: {reason}", stacklevel=2)
        network.zero_grad(set_to_none=True)
        yield
    finally:
        network._compiled_call_impl = None
