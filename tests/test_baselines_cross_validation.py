"""The points on which baselines choose are observed and have the shape of the gaps."""

import numpy as np

from conftest import LAND, cloudy_dataset
from fieldfill.baselines.cross_validation import cloud_points, random_points


def test_held_out_points_are_observed_and_look_like_the_gaps() -> None:
    observed = np.isfinite(cloudy_dataset(samples=2).sst.values)[:, None]
    for draw in (cloud_points, random_points):
        held = draw(observed, 0.1, np.random.default_rng(0))
        assert held.any() and not (held & ~observed).any()
        assert np.array_equal(held, draw(observed, 0.1, np.random.default_rng(0)))
    held = cloud_points(observed, 0.1, np.random.default_rng(0))
    assert held.sum() >= 0.1 * observed.sum()
    frames = np.moveaxis(held, 2, 1)[held.any(axis=(1, 3, 4))]
    gaps = ~np.moveaxis(observed, 2, 1).reshape(-1, 1, *LAND.shape)
    shown = np.moveaxis(observed, 2, 1)[held.any(axis=(1, 3, 4))]
    for frame, visible in zip(frames, shown):
        assert any(np.array_equal(frame, gap & visible) for gap in gaps)


def test_a_run_of_frames_is_covered_by_a_run_of_masks() -> None:
    observed = np.isfinite(cloudy_dataset(samples=2).sst.values)[:, None]
    held = cloud_points(observed, 0.01, np.random.default_rng(0), run=4)
    covered = held.any(axis=(1, 3, 4))
    assert covered.sum() >= 3
    for sample in covered:
        places = np.flatnonzero(sample)
        assert len(places) == 0 or np.diff(places).max() <= 2


def test_lasting_gaps_are_held_out_as_lasting_gaps() -> None:
    observed = np.isfinite(cloudy_dataset(samples=3, static=True).sst.values)[:, None]
    held = cloud_points(observed, 0.03, np.random.default_rng(1))
    assert held.any() and (held == held[:, :, :1]).all()


def test_equal_masks_leave_random_points() -> None:
    observed = np.ones((1, 1, 6, 4, 4), bool)
    assert cloud_points(observed, 0.1, np.random.default_rng(0)).sum() == round(0.1 * observed.size)
