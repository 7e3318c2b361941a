"""Covariances frame by frame: what the products say, and that they pay where frames differ."""

import math

import numpy as np
import pytest
import torch
import xarray as xr

from fieldfill.covariance import learn_covariance
from fieldfill.framewise import factorise_frames, frame_covariance, frames_comparable
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.record import open_record
from fieldfill.windows import Normaliser, Windows

FRAMES, SIZE = 4, 8


def samples(count: int, periodic: bool, observed: float, growing: bool, seed: int = 0) -> Windows:
    """Smooth fields; growing ones begin with noise of another place and end with their own."""
    rng = np.random.default_rng(seed)
    k2 = np.fft.fftfreq(SIZE)[:, None] ** 2 + np.fft.rfftfreq(SIZE) ** 2
    white = np.fft.rfft2(rng.normal(size=(2, count, SIZE, SIZE)))
    first, last = np.fft.irfft2(white * np.exp(-k2 / 0.02), s=(SIZE, SIZE))
    share = np.linspace(0, 1, FRAMES)[:, None, None]
    values = (1 - share) ** 2 * first[:, None] + share**2 * last[:, None] if growing else first[:, None] + 0 * share
    values = np.where(rng.random((count, FRAMES, SIZE, SIZE)) < observed, values / values.std(), np.nan)
    coords = {name: (name, np.arange(float(SIZE)), {"periodic": int(periodic)}) for name in ("y", "x")}
    record = open_record(
        xr.Dataset({"u": (("sample", "time", "y", "x"), values)}, coords=coords), domain=np.ones((1, SIZE, SIZE), bool)
    )
    return Windows(record, Normaliser(np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1))), FRAMES)


@pytest.mark.parametrize("periodic", [True, False])
def test_products_of_complete_samples_are_their_covariance_at_every_separation(periodic: bool) -> None:
    windows = samples(40, periodic, 1.0, growing=True)
    torus = (SIZE, SIZE) if periodic else (15, 15)
    found = frame_covariance(windows, windows.places, torus)
    x = torch.stack([windows.at(*place)[0][0] for place in windows.places]).double()
    for early, late, down, right in [(0, 0, 0, 0), (0, 3, 1, 2), (3, 1, 0, 3), (2, 2, 3, 1)]:
        if periodic:
            moved = torch.roll(x[:, late], (-down, -right), (1, 2))
            wanted = (x[:, early] * moved).mean()
        else:
            wanted = (x[:, early, : SIZE - down, : SIZE - right] * x[:, late, down:, right:]).mean()
        assert found[early, late, down, right].item() == pytest.approx(wanted.item(), abs=1e-4)


def test_the_factor_has_the_covariance_it_was_made_of() -> None:
    windows = samples(200, True, 1.0, growing=True)
    skip = GaussianSkip(1, FRAMES, (SIZE, SIZE), (True, True))
    covariance = frame_covariance(windows, windows.places, skip.torus)
    skip.set_covariance(factorise_frames(covariance, math.inf, skip))
    one = torch.zeros(1, 1, FRAMES, SIZE, SIZE)
    one[0, 0, 1, 2, 5] = 1
    image = skip.covary(one)[0, 0]
    for frame in range(FRAMES):
        moved = torch.roll(covariance[1, frame], (2, 5), (0, 1))
        torch.testing.assert_close(image[frame], moved, atol=2e-3, rtol=0)


@pytest.mark.parametrize("growing", [True, False])
def test_frames_are_told_apart_where_they_differ_and_not_elsewhere(growing: bool) -> None:
    windows = samples(160, True, 0.3, growing)
    windows.held = hold_out(windows, 0.2, torch.Generator().manual_seed(1))
    skip = GaussianSkip(1, FRAMES, (SIZE, SIZE), (True, True))
    assert frames_comparable(windows, skip)
    found = learn_covariance(skip, windows, torch.Generator().manual_seed(2), moving=False)
    assert ("frames" in found) == growing


def test_windows_that_begin_anywhere_or_few_samples_have_no_frames_to_compare() -> None:
    skip = GaussianSkip(1, FRAMES, (SIZE, SIZE), (True, True))
    assert not frames_comparable(samples(8, True, 1.0, True), skip)
    longer = samples(40, True, 1.0, True)
    longer.length = FRAMES - 1
    assert not frames_comparable(longer, skip)
