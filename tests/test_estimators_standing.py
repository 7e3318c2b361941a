"""Correction by the standing pattern: what stays in its place is found at other times, what moves is left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import QUICK, crops_of, draw, gappy_record, given_of, lesson_of, seeded
from fieldfill import Filler, load
from fieldfill.config import build_chain
from fieldfill.data.other_times import OtherTimes
from fieldfill.data.record import open_record
from fieldfill.estimators.standing import Standing, StandingSettings

CLOSED = (False, False)
# A fit without means of cells, which would leave no pattern.
PLAIN = QUICK.model_copy(update={"estimators": ("gaussian", "standing")})


def lakes(frames: int, strength: float, seed: int = 0) -> np.ndarray:
    """Weather that is smooth and changes, over single cells that differ from it by the same amount in every frame."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:12, :14]
    waves = [np.sin(0.3 * x + rng.uniform(0, 6)) + np.cos(0.3 * y + rng.uniform(0, 6)) for _ in range(frames)]
    return np.stack(waves) + strength * rng.standard_normal((12, 14))


def test_a_pattern_that_stays_is_learnt_and_weather_is_left_alone() -> None:
    found = []
    for strength in (1.0, 0.0):
        crops = crops_of(gappy_record(lakes(80, strength), share=0.3), 2)
        crops.others = OtherTimes.of(crops, 0.5, 4)
        chain = build_chain(PLAIN, crops.shape, 1, CLOSED, maps=0, others=True)
        found.append(chain.learn(lesson_of(crops)))
    pattern, weather = found
    assert pattern["standing"]["validation"] < 0.95 * pattern["sources"]["validation"]
    assert pattern["standing"]["weight"] > 0.07 and weather["standing"]["weight"] < 0.03


def test_an_estimate_with_the_pattern_lacks_nothing() -> None:
    """Nor does one that is higher or lower everywhere around."""
    pattern, share = draw(1, 20, 20), torch.full((1, 20, 20), 0.9)
    seen = torch.zeros(1, 1, 3, 20, 20)
    given = given_of(seen, seen > 0, maps=torch.cat([0.9 * pattern, share]))
    step = Standing(1, CLOSED)
    level = torch.tensor([-3.0, 0.0, 5.0])[:, None, None]
    assert step.detail(given, (pattern + level)[None, None]).abs().max() < 1e-4
    lacks = step.detail(given, level.expand(1, 1, 3, 20, 20))
    near = StandingSettings().around
    assert near > 3 and (lacks[0, 0, 0] - 0.9 * pattern[0]).std() < 0.3 * pattern.std()


def test_values_that_are_known_are_not_corrected() -> None:
    step = Standing(1, CLOSED)
    step.weights.fill_(1.0)
    x = draw(1, 1, 3, 9, 9)
    context = torch.rand(x.shape, generator=seeded()) < 0.5
    given = given_of(x * context, context, maps=torch.cat([draw(1, 9, 9), torch.full((1, 9, 9), 0.8)]))
    moved = (step.correct(given, x).estimate - x).abs()
    assert moved[~context].mean() > 0.1 and moved[context].max() < 0.05 * moved[~context].max()


@pytest.fixture(scope="module")
def filler() -> Filler:
    found = Filler(settings=PLAIN).fit(record())
    found.model_.denoiser.chain.steps["standing"].weights.fill_(0.4)
    return found


def record(frames: slice = slice(None)) -> xr.Dataset:
    ds = gappy_record(lakes(40, 1.0), share=0.3)
    return ds.assign_coords(lat=np.arange(12.0), lon=np.arange(14.0)).isel(time=frames)


def test_one_new_frame_is_filled_with_what_the_record_has_shown(filler, tmp_path) -> None:
    """Also after the model was saved."""
    model = filler.model_
    again, forgetful = load(filler.save(tmp_path / "m.ff")), Filler(settings=PLAIN)
    forgetful.model_ = replace(model, others=torch.zeros_like(model.others))
    frame = record(slice(7, 8))
    filled, same, without = (one.fill(frame).v for one in (filler, again, forgetful))
    missing = np.isnan(frame.v)
    right = lakes(40, 1.0)[7:8]
    assert filled.identical(same)
    assert ((filled - right).where(missing) ** 2).mean() < 0.9 * ((without - right).where(missing) ** 2).mean()


def test_a_record_longer_than_half_of_what_was_learnt_shows_its_own_other_times(filler) -> None:
    """A pattern that has changed since is filled as it is now."""
    later = record(slice(0, 30)).copy(deep=True)
    later["v"] = -later.v
    own, learnt = (filler.fill(ds).v for ds in (later, later.isel(time=slice(0, 6))))
    missing = np.isnan(later.v[:4])
    right = -lakes(40, 1.0)[:4]
    errors = [float(((found[:4] - right).where(missing) ** 2).mean()) for found in (own, learnt)]
    assert errors[0] < 0.8 * errors[1]


def test_cells_beyond_the_fitted_grid_count_as_never_seen(filler) -> None:
    model, wide = filler.model_, record().reindex(lon=np.arange(17.0))
    placement = model.grid.place(open_record(wide, domain=np.ones((12, 17), bool)), model.shape)
    others = model.placed(placement, np.ones((1, 12, 17), bool)).others
    assert torch.equal(others[..., :14], model.others) and not others[..., 14:].any()
