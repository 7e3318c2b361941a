"""The training loop: it learns, it resumes bit for bit, it touches nothing global, it never cheats."""

import time

import numpy as np
import pytest
import torch

from conftest import gappy_dataset, make_training, seeded, stir, with_hidden_values
from fieldfill.diffusion.frames import frames_at_once
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.networks.refiner import Refiner
from fieldfill.diffusion.networks.unet import FoldedUNet
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.training import Training
from fieldfill.diffusion.validation import validate
from fieldfill.errors import InputError
from fieldfill.partition import MaskSwap, PixelPartition
from fieldfill.sampling.contexts import Ensemble, single_step


def weights(training: Training) -> list[torch.Tensor]:
    return [p.detach().clone() for p in training.denoiser.parameters()]


def test_training_lowers_the_error_on_held_out_cells() -> None:
    training = make_training(TrainSettings(steps=120, batch=8, validate_every=20))
    before = validate(training.denoiser, training.crops, 0).error
    training.run()
    after = validate(training.denoiser, training.crops, 0).error
    assert after < 0.7 * before
    # The error of the best is measured with gains that were fitted without the window they are used in.
    assert after <= training.best["error"] == pytest.approx(after, rel=0.03)
    assert training.least == min(entry["validation"] for entry in training.history) >= training.best["error"] / 1.005


def test_one_seed_gives_one_result_and_leaves_the_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, other = make_training(), make_training(), make_training(seed=1)
    for training in (first, second, other):
        training.run()
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second)))
    assert not all(torch.equal(a, b) for a, b in zip(weights(first), weights(other)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path) -> None:
    whole = make_training()
    whole.run()
    killed = make_training()

    class Killed(Exception):
        pass

    def stop_at(progress) -> None:
        if progress.step == 7:
            raise Killed

    with pytest.raises(Killed):
        killed.run(stop_at, tmp_path / "checkpoint.pt")
    resumed = make_training()
    resumed.load(tmp_path / "checkpoint.pt")
    assert resumed.step == 4
    resumed.run(checkpoint=tmp_path / "checkpoint.pt")
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed)))
    assert [e["validation"] for e in whole.history] == [e["validation"] for e in resumed.history]
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_values_under_held_out_cells_do_not_influence_training() -> None:
    """Whatever the held-out values are, the trained weights are the same: they are never seen."""
    first = make_training()
    poisoned = make_training()
    poisoned.crops = poisoned.pools.crops = with_hidden_values(poisoned.crops, lambda values: np.full_like(values, 1e4))
    for training in (first, poisoned):
        for _ in range(6):
            training.train_step()
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(poisoned)))


def test_windows_that_cannot_be_split_are_counted_and_reported() -> None:
    ds = gappy_dataset(frames=40)
    ds["sst"] = ds.sst.fillna(10.0).where(ds.lon > 1)
    training = make_training(ds=ds)
    bank = training.crops.masks(8, seeded())
    observed = training.crops.at(training.crops.place(0))[1]
    training.pools.partition = MaskSwap(observed.expand(len(bank), *observed.shape).clone())
    training.crops.held = type(training.crops.held)((), ())
    with pytest.raises(InputError, match="not one crop could be split"):
        training.run()
    assert training.skipped == training.step * training.settings.batch


def test_training_stops_when_validation_no_longer_improves() -> None:
    training = make_training(TrainSettings(steps=1000, batch=2, validate_every=1, patience=3, rate=0.0))
    training.run()
    assert training.step == 3 and training.stale == 3


def test_the_clock_can_end_a_run_and_anneals_the_rate() -> None:
    training = make_training(TrainSettings(steps=10**6, minutes=0.02, batch=2, validate_every=10**6))
    training.run()
    # It ends when the next step would come too late.
    assert training.finished and training.step < 10**6 and 0.5 < training.progress <= 1
    settings = TrainSettings()
    assert settings.learning_rate(1.0) < 1e-9 < settings.learning_rate(0.5) < settings.learning_rate(settings.warmup)
    assert settings.learning_rate(settings.warmup) == pytest.approx(settings.rate)


def test_processor_minutes_do_not_count_waiting() -> None:
    training = make_training(TrainSettings(steps=2, clock="processor", batch=2, validate_every=10**6))
    begun, used = time.monotonic(), time.process_time()
    training.run(report=lambda progress: time.sleep(1.0))
    waited = time.monotonic() - begun - (time.process_time() - used)
    assert training.seconds <= time.process_time() - used
    assert waited > 1


@pytest.mark.parametrize("ensemble", [Ensemble(0), Ensemble(3), Ensemble(2, keep=0.9)], ids=str)
def test_single_step_pastes_observations_back_exactly(ensemble) -> None:
    training = make_training()
    batch = training.crops.draw(3, seeded())
    x, observed, maps = batch.x, batch.observed, batch.maps
    found = single_step(training.denoiser, x, observed, maps, PixelPartition(), ensemble, seeded())
    mean, between = found.mean, found.between
    assert torch.equal(mean[observed], x[observed]) and (between[observed] == 0).all()
    assert torch.isfinite(mean).all() and (between >= 0).all()
    again = single_step(training.denoiser, x, observed, maps, PixelPartition(), ensemble, seeded())
    assert torch.equal(mean, again.mean)


def test_a_step_that_looks_at_some_frames_has_the_loss_of_the_whole_window_for_what_it_asks() -> None:
    training = make_training(TrainSettings(steps=1, batch=24, frames=4))
    assert training.frames == 4 < training.crops.length
    stir(training.network)
    drawn, starts = next(training.drawn(0))
    *batch, query = drawn.t, drawn.x, drawn.noise, drawn.context, drawn.query
    assert set(starts.tolist()) == {0, 1, 2}, "every part of the window is looked at"
    asked = query.flatten(3).any(-1).any(1).sum(1).tolist()
    assert all(0 < count <= (3 if start in (0, 2) else 2) for count, start in zip(asked, starts))

    def seen(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row[:, start : start + 4] for row, start in zip(x, starts.tolist())])

    training.denoiser.train()
    part, _ = matching_losses(training.denoiser, *batch, query, drawn.maps, cut=seen, first=drawn.first)
    whole, _ = matching_losses(training.denoiser, *batch, query, drawn.maps)
    assert torch.allclose(part, whole, rtol=1e-4)


def test_networks_that_tell_frames_apart_see_whole_windows() -> None:
    assert frames_at_once(FoldedUNet(3, 1, 6, base=8), 4, 6) == 6
    assert frames_at_once(Refiner(3, 1, 6, base=8), 4, 6) == 4
    assert frames_at_once(Refiner(3, 1, 6, base=8), 4, 3) == 3


def test_a_run_that_will_stop_early_has_small_rates_first() -> None:
    training = make_training(TrainSettings(steps=100, batch=2, rate=1e-30, validate_every=1, patience=4))
    training.history.append({})  # its first validation would be the best for lack of others
    training.least = 0.0
    rates = []
    training.run(report=lambda step: rates.append(training.optimiser.param_groups[0]["lr"]))
    assert training.step == 4 and training.stopped_early
    planned = [training.settings.learning_rate(step / 100) for step in range(4)]
    assert rates == pytest.approx([planned[0], planned[1], 0.3 * planned[2], 0.3 * planned[3]])
