"""Several processes make the run that one would make: real processes under torchrun, and the laws behind it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import fieldfill as ff
from conftest import gappy_dataset, seeded
from fieldfill.config import NETWORKS, build_denoiser
from fieldfill.diffusion.acceleration import compiled
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.team import Team
from fieldfill.errors import InputError
from fieldfill.execution.ddp import LostProcess, ProcessTeam, losing_nobody
from torchrun_job import SETTINGS, TINY, Stop, follow, gradient, make

JOB = str(Path(__file__).with_name("torchrun_job.py"))


def torchrun(*arguments) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launch, JOB, *map(str, arguments)]


def run(*arguments) -> None:
    done = subprocess.run(torchrun(*arguments), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_processes_make_the_run_of_one_and_take_over_from_each_other(tmp_path) -> None:
    alone, losses = make(), []
    alone.run(follow(alone, losses, SETTINGS.steps))
    run("work", tmp_path, 0)
    first, second = (json.loads((tmp_path / f"from0_rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["losses"] == second["losses"] and first["gradient"] == second["gradient"]
    assert first["gradient"] == pytest.approx(gradient(alone), rel=1e-3)
    assert first["losses"] == pytest.approx(losses, rel=1e-4) and len(losses) == 50
    validations = [entry["validation"] for entry in alone.history]
    assert [entry["validation"] for entry in first["history"]] == pytest.approx(validations, rel=1e-4)
    # Two processes made 20 steps; one goes on to 30, then two again to the end.
    taken, middle = make(), []
    taken.load(tmp_path / "20.pt")
    with pytest.raises(Stop):
        taken.run(follow(taken, middle, 30, tmp_path), tmp_path / "checkpoint.pt")
    run("work", tmp_path, 30)
    last = json.loads((tmp_path / "from30_rank0.json").read_text())
    assert [*first["losses"][:20], *middle, *last["losses"]] == pytest.approx(losses, rel=1e-4)
    assert [entry["validation"] for entry in last["history"]] == pytest.approx(validations, rel=1e-4)
    # Each process has left the others before its interpreter was taken down.
    assert [file.read_text() for file in tmp_path.glob("left*")] == ["True"] * 4


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_a_killed_process_ends_the_run_with_one_line_and_a_usable_checkpoint(tmp_path) -> None:
    ff.save_dataset(gappy_dataset(), tmp_path / "gappy.nc")
    fit = ["fit", tmp_path / "gappy.nc", "-o", tmp_path / "m.ff", "--window", 4, "--steps", 12, "--partition", "pixel"]
    job = subprocess.Popen(torchrun("cli", 0.5, *fit), stderr=subprocess.PIPE, text=True)
    checkpoint = tmp_path / "m.ff.part" / "checkpoint.pt"
    while not checkpoint.exists() and job.poll() is None:
        time.sleep(0.02)
    os.kill(children(job.pid)[1], signal.SIGKILL)
    begun = time.monotonic()
    _, words = job.communicate(timeout=60)
    assert job.returncode != 0 and time.monotonic() - begun < 20
    ours = [line for line in words.splitlines() if line.startswith("fieldfill: ")]
    assert (
        len(ours) == 1 and "ended" in ours[0] and "--resume" in ours[0] and str(checkpoint) in ours[0].replace("\n", "")
    )
    assert not (tmp_path / "m.ff").exists()
    again = [sys.executable, JOB, "cli", "0", *map(str, fit), "--resume", "--json"]
    done = subprocess.run(again, capture_output=True, text=True, check=True, timeout=120)
    steps = [entry["step"] for entry in json.loads(done.stdout)["history"]]
    assert steps == [0, 3, 6, 9, 12] and not checkpoint.exists()
    assert ff.load(tmp_path / "m.ff").model_.partition_name == "pixel"


def test_a_sum_outlasts_the_threads_that_exchange_it(monkeypatch) -> None:
    held = []

    def exchange(tensor) -> None:  # as gloo does, which lets go of a tensor some time after its work is done
        held.append(tensor.view(-1))  # a view holds it outside of Python
        threading.Timer(0.1, held.clear).start()

    monkeypatch.setattr(dist, "all_reduce", exchange)
    assert ProcessTeam(0, 2).sum(1.0, 2.0) == [1.0, 2.0] and not held


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 7, 16])
def test_shares_cover_everything_once_and_evenly(count, size) -> None:
    shares = [Team(rank, size).share(count) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_windows_of_a_step_do_not_depend_on_who_draws_them() -> None:
    whole, starts = next(make().drawn(3))
    parts = [next(make(Team(rank, 3)).drawn(3)) for rank in range(3)]
    for name in ("t", "x", "noise", "context", "query", "maps"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part, _ in parts]))
    assert torch.equal(starts, torch.cat([first for _, first in parts]))


@pytest.mark.parametrize("accumulate", [2, 5, 99])
def test_accumulated_gradients_are_those_of_the_whole_batch(accumulate) -> None:
    gradients = []
    for parts in (1, accumulate):
        training = make(settings=replace(SETTINGS, accumulate=parts, rate=0.0))
        for _ in range(3):  # the last layer starts at zero: nothing else has a gradient in the first step
            training.train_step()
        gradients.append([p.grad for p in training.network.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(*gradients))


def test_bfloat16_is_for_training_only() -> None:
    training, exact = make(settings=replace(SETTINGS, steps=6, precision="bf16")), make(settings=SETTINGS)
    losses, same = [], []
    training.run(follow(training, losses, SETTINGS.steps))
    same = [exact.train_step() for _ in range(6)]
    assert losses != same and losses == pytest.approx(same, rel=0.1)
    assert "forward" not in vars(training.network)
    assert all(p.dtype == torch.float32 for p in training.network.parameters())


def test_a_network_that_cannot_be_compiled_is_trained_all_the_same(monkeypatch) -> None:
    def no_compiler(*_):
        raise RuntimeError("no compiler\nlong story")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: no_compiler)
    training = make()

    def trial():
        drawn, _ = next(training.drawn(0))
        return training.denoiser.outputs(drawn.t, drawn.x, drawn.context, drawn.maps)[0]

    with pytest.warns(UserWarning, match="goes on without it: no compiler"), compiled(training.network, trial):
        assert training.train_step() >= 0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_of_every_network_takes_part(name) -> None:
    """DDP waits for the gradient of each weight; one without would stop all processes."""
    denoiser = build_denoiser(
        TINY.model_copy(update={"network": name, "spread": True}), (4, 8, 8), 1, (False, False), seed=0
    )
    generator = seeded()
    x, noise = torch.randn(2, 2, 1, 4, 8, 8, generator=generator)
    context = torch.rand(x.shape, generator=generator) < 0.5
    maps = torch.zeros(2, 0, 8, 8)
    losses, _ = matching_losses(denoiser, torch.tensor([0.1, 0.5]), x, noise, context, ~context, maps)
    losses.sum().backward()
    assert [n for n, p in denoiser.named_parameters() if p.grad is None] == []


def test_more_processes_than_windows_are_refused() -> None:
    with pytest.raises(InputError, match="6 processes for batches of 5"):
        make(Team(0, 6))


def test_only_failures_of_others_count_as_a_lost_process(tmp_path) -> None:
    with pytest.raises(LostProcess, match="no checkpoint yet"), losing_nobody(tmp_path / "none.pt"):
        raise RuntimeError("[pair.cc] Connection closed by peer")
    with pytest.raises(RuntimeError, match="out of memory"), losing_nobody(tmp_path / "none.pt"):
        raise RuntimeError("out of memory")
