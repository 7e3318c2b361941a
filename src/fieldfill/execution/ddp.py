r"""Several processes that train as one, under ``torchrun``.

Every process has a rank r of P. They form a `ProcessTeam` that behaves as one process would: each takes its share of a
step's windows and holds the same weights, and

.. math:: \nabla L = \frac{1}{N} \sum_{r} \sum_{i \in r} \nabla L_i

with N the windows of *all* ranks that count, however they are spread. DDP gives the mean over ranks of the inner sums,
which is multiplied by P / N.
"""

import atexit
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fieldfill.diffusion.team import Team
from fieldfill.errors import InputError

__all__ = ["LostProcess", "ProcessTeam", "join", "losing_nobody"]

# The failure of a collective whose partner has died is recognised by these words only.
NETWORK_WORDS = ("gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "TCPStore")


class LostProcess(RuntimeError):
    """The run cannot go on because another of its processes ended, or because it received a signal to stop."""


@dataclass(frozen=True)
class ProcessTeam(Team):
    """The processes of a run under ``torchrun``."""

    def sum(self, *values: float) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        # A thread of gloo often still holds the tensor. Were it the last to do so while the interpreter is taken down,
        # the process would abort; so Python outlasts it.
        while total._use_count() > 1:  # type: ignore[attr-defined]
            time.sleep(0)
        return total.tolist()

    def shared(self, model: nn.Module, network: nn.Module) -> nn.Module:
        for tensor in model.buffers():
            if tensor.numel():
                dist.broadcast(tensor, 0)
        return DistributedDataParallel(network)

    def exchanging(self, network: nn.Module, yes: bool) -> AbstractContextManager:
        return nullcontext() if yes or not isinstance(network, DistributedDataParallel) else network.no_sync()

    def agree(self, facts: dict[str, Any]) -> None:
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
        signal.signal(signal.SIGTERM, _stopped)
        atexit.register(_leave)
    return ProcessTeam(dist.get_rank(), dist.get_world_size(), device)


def _leave() -> None:
    # Torch requires it, of NCCL's processes above all.
    if dist.is_initialized():
        dist.destroy_process_group()


def _stopped(*_: object) -> None:
    # torchrun ends the other processes by this signal when it sees that one has died.
    raise LostProcess("a process of the run ended or received a signal to stop")


@contextmanager
def losing_nobody(checkpoint: Path) -> Iterator[None]:
    """Turns a failure that another process has caused into `LostProcess`, with a line on what remains."""
    try:
        yield
    except RuntimeError as error:
        known = isinstance(error, LostProcess)
        if not known and not any(word in str(error) for word in NETWORK_WORDS):
            raise
        what = str(error) if known else "another process of the run ended"
        todo = f"{checkpoint} is usable, --resume continues from it" if checkpoint.exists() else "no checkpoint yet"
        raise LostProcess(f"{what}; {todo}") from error
