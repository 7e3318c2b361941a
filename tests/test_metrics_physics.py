"""Physical scores: the truth is perfect, noise is not, and what does not fit the equation is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from conftest import run_fieldfill
from fieldfill.api import physical_scores
from fieldfill.baselines import Climatology, LinearTime
from fieldfill.config import simulator_of
from fieldfill.data import pieces
from fieldfill.data.io import open_dataset, save_dataset
from fieldfill.errors import InputError
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.simulate.store import write

SIMULATORS = {
    "advection": Advection(size=16, frames=8, width=(0.1, 0.2)),
    "shallow-water": ShallowWater(size=16, frames=8),
    "basin": ShallowWater(size=16, frames=8, walls=True),
    "navier-stokes": NavierStokes(size=16, frames=8, resolution=32, warmup=0.1),
    "kolmogorov": NavierStokes.kolmogorov(size=32, frames=8, resolution=32, warmup=0.1),
    "gaussian": GaussianField(size=(12, 16), frames=8),
    "open-gaussian": GaussianField(size=16, frames=8, periodic=False),
}
EQUATIONS = [name for name in SIMULATORS if "gaussian" not in name]


@pytest.fixture(scope="module")
def truths(tmp_path_factory) -> dict[str, xr.Dataset]:
    folder = tmp_path_factory.mktemp("physics")
    return {name: open_dataset(write(sim, folder / f"{name}.zarr", samples=5)) for name, sim in SIMULATORS.items()}


def noisy(truth: xr.Dataset, share: float = 0.1, seed: int = 0) -> xr.Dataset:
    """The truth with noise of a tenth of its standard deviation in a share of the cells."""
    rng = np.random.default_rng(seed)
    out = truth.copy()
    for name in truth.data_vars:
        noise = 0.1 * truth[name].values.std() * rng.standard_normal(truth[name].shape)
        out[name] = truth[name] + np.where(rng.random(noise.shape) < share, noise, 0).astype("float32")
    return out


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_simulator_comes_back_as_it_was(truths, name) -> None:
    assert simulator_of(truths[name]) == SIMULATORS[name]


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_truth_is_perfect_against_itself(truths, name) -> None:
    scores = physical_scores(truths[name], truths[name])
    for key, score in scores.items():
        if key.endswith("_ratio"):
            assert score.item() == 1
        if key.endswith(("_spectrum_error", "_error", "_drift")):
            assert np.all(score.values == 0)
        if key.endswith("_truth"):
            assert score.item() == scores[key.removesuffix("_truth")].item() > 0


@pytest.mark.parametrize("name", SIMULATORS)
def test_every_score_says_what_it_is(truths, name) -> None:
    scores = physical_scores(truths[name], truths[name])
    assert all(score.attrs["units"] and score.attrs["long_name"] for score in scores.values())
    assert scores.attrs["simulator"] == type(SIMULATORS[name]).__name__ and scores.attrs["samples"] == 5


@pytest.mark.parametrize("name", EQUATIONS)
def test_noise_raises_the_residual_and_the_small_scales(truths, name) -> None:
    weak, strong = (physical_scores(noisy(truths[name], share), truths[name]) for share in (0.02, 0.2))
    for v in SIMULATORS[name].variables:
        assert 1 < weak[f"{v}_residual_ratio"] < strong[f"{v}_residual_ratio"]
        assert strong[f"{v}_spectrum_error"].sel(band="small") > 0
    for key in strong:
        if key.endswith(("_error", "_drift")) and "spectrum" not in key:
            assert strong[key] > weak[key] > 0


def test_a_smoothed_field_loses_its_small_scales_first(truths) -> None:
    truth = truths["advection"]
    smooth = truth.assign(u=(truth.u + truth.u.roll(x=1) + truth.u.roll(y=1) + truth.u.roll(x=1, y=1)) / 4)
    large, medium, small = physical_scores(smooth, truth).u_spectrum_error.values
    assert small < medium < large < 0


@pytest.mark.parametrize(
    "n, band", [(1, "large"), (2, "large"), (3, "medium"), (4, "medium"), (5, "small"), (7, "small")]
)
def test_a_wave_counts_in_its_own_band_only(truths, n, band) -> None:
    truth = truths["advection"]
    wave = truth.assign(u=truth.u + 5 * np.cos(2 * np.pi * n * truth.x))
    scores = physical_scores(wave, truth)
    assert f"{band} " in scores.band.attrs["long_name"]
    error = scores.u_spectrum_error
    assert error.sel(band=band) > 0.5 and np.allclose(error.drop_sel(band=band), 0, atol=1e-4)


def test_half_the_amplitude_is_two_octaves_less_energy(truths) -> None:
    truth = truths["open-gaussian"]
    error = physical_scores(truth.assign(z=truth.z / 2), truth).z_spectrum_error
    assert np.allclose(error, -2, atol=1e-6)


def test_a_field_with_twice_the_height_has_known_errors(truths) -> None:
    """Everything is linear or quadratic in the field, so that every score follows by hand."""
    truth = truths["advection"]
    scores = physical_scores(truth.assign(u=2 * truth.u), truth)
    assert np.isclose(scores.u_residual_ratio, 2) and np.isclose(scores.energy_error, 3)
    assert np.isclose(scores.energy_drift, 0, atol=1e-6) and np.isclose(scores.mass_error, 0, atol=1e-6)
    shifted = physical_scores(truth.assign(u=truth.u + 0.5), truth)
    assert np.isclose(shifted.mass_error, 0.5, atol=1e-3) and np.isclose(shifted.mass_drift, 0, atol=1e-6)


def test_propagation_of_the_true_first_frame_is_at_the_level_of_the_solver(truths) -> None:
    truth = truths["advection"]
    # Only the first frame counts: whatever stands in the others, the true sequence is what it is compared with.
    first = truth.assign(u=truth.u.where(truth.time < 0.01, 0.0))
    scores = physical_scores(first, truth)
    assert scores.propagation_mse == scores.propagation_mse_truth < 1e-4 * float((truth.u**2).mean())
    # A constant error stays as it is: its square adds to the floor, up to the cross term.
    raised = physical_scores(truth.assign(u=truth.u + 0.3), truth)
    assert np.isclose(raised.propagation_mse - raised.propagation_mse_truth, 0.09, atol=1e-3)


def test_units_follow_from_those_of_the_fields(truths) -> None:
    scores = physical_scores(truths["shallow-water"], truths["shallow-water"])
    units = {key: score.attrs["units"] for key, score in scores.items()}
    assert units["h_residual"] == "m s-1" and units["u_residual"] == "m s-2" and units["divergence"] == "s-1"


def test_only_the_navier_stokes_residual_without_its_small_modes_is_called_poor(truths) -> None:
    def poor(name: str) -> bool:
        return "poor" in physical_scores(truths[name], truths[name]).vorticity_residual_ratio.attrs["long_name"]

    assert poor("navier-stokes") and not poor("kolmogorov")


@pytest.mark.parametrize("name", EQUATIONS)
def test_blocks_of_samples_change_nothing(truths, name, monkeypatch) -> None:
    filled, truth = noisy(truths[name]), truths[name]
    whole = physical_scores(filled, truth)
    monkeypatch.setattr(pieces, "CELLS_AT_ONCE", 1)
    xr.testing.assert_allclose(physical_scores(filled, truth), whole, rtol=1e-12)


def test_samples_and_frames_are_matched_by_their_coordinates(truths) -> None:
    truth = truths["shallow-water"]
    some = noisy(truth).isel(sample=[3, 1], time=slice(2, 7)).transpose("x", "y", "sample", "time")
    whole = physical_scores(some, truth)
    xr.testing.assert_allclose(whole, physical_scores(some, truth.isel(sample=[1, 3], time=slice(1, 8))))
    alone = physical_scores(some.isel(sample=0), truth.isel(sample=3))
    xr.testing.assert_allclose(alone, physical_scores(some.isel(sample=[0]), truth).assign_attrs(alone.attrs))
    assert alone.attrs["samples"] == 1 and whole.attrs["frames"] == 5


def test_two_frames_have_no_residual_but_the_rest(truths) -> None:
    scores = physical_scores(truths["advection"].isel(time=slice(0, 2)), truths["advection"])
    assert "u_residual" not in scores and "propagation_mse" in scores


def test_data_that_no_simulator_made_have_no_physical_scores(truths) -> None:
    bare = truths["advection"].copy()
    bare.attrs = {"title": "measured"}
    assert physical_scores(truths["advection"], bare) is None


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda ds: ds.drop_vars("u"), "no variable u"),
        (lambda ds: ds.isel(x=slice(0, 8)), "'x' of 'h'"),
        (lambda ds: ds.isel(y=slice(None, None, -1)), "'y' of 'h'"),
        (lambda ds: ds.isel(time=slice(None, None, 2)), "'time' of 'h'"),
        (lambda ds: ds.where(ds.x > 1e5), "NaN"),
        (lambda ds: ds.isel(y=0), "dimensions"),
        (lambda ds: ds.isel(sample=slice(0, 0)), "none empty"),
    ],
)
def test_what_does_not_fit_the_equation_is_refused(truths, change, reason) -> None:
    with pytest.raises(InputError, match=reason):
        physical_scores(change(truths["shallow-water"]), truths["shallow-water"])


@pytest.mark.parametrize(
    "attrs, reason",
    [
        ({"simulator": "Burgers"}, "known are Advection"),
        ({"settings": "{"}, "cannot rebuild ShallowWater"),
        ({"settings": '{"salt": 35}'}, "salt"),
        ({"settings": "[1]"}, "cannot rebuild"),
        ({"settings": '{"size": 1}'}, "size=1"),
    ],
)
def test_a_truth_with_broken_attributes_is_refused(truths, attrs, reason) -> None:
    truth = truths["shallow-water"]
    with pytest.raises(InputError, match=reason):
        physical_scores(truth, truth.assign_attrs(attrs))


def test_a_truth_without_its_parameters_is_refused(truths) -> None:
    truth = truths["shallow-water"]
    with pytest.raises(InputError, match="coordinates gravity"):
        physical_scores(truth, truth.drop_vars("gravity"))


@pytest.fixture(scope="module")
def water(tmp_path_factory) -> Path:
    """Simulated and masked by the command line."""
    folder = tmp_path_factory.mktemp("water")
    run_fieldfill("simulate", "shallow-water", "-o", folder / "t.zarr", "--samples", 4, "--size", 16, "--frames", 6)
    run_fieldfill("mask", folder / "t.zarr", "--pattern", "pixel", "--observed", 0.6, "-o", folder / "g.nc")
    return folder


def test_score_adds_the_physics_of_simulated_data(water) -> None:
    truth, gappy = open_dataset(water / "t.zarr"), open_dataset(water / "g.nc")
    filled = LinearTime(domain=np.ones((16, 16), bool)).fit(gappy).fill(gappy)
    out = save_dataset(filled, water / "filled.nc")
    result = json.loads(run_fieldfill("score", out, "--truth", water / "t.zarr", "--json").stdout)["physics"]
    expected = physical_scores(open_dataset(out), truth)
    assert set(result) == set(expected) and list(result["v_spectrum_error"]) == ["large", "medium", "small"]
    assert result["h_residual_ratio"] == pytest.approx(expected.h_residual_ratio.item()) and (
        result["h_residual_ratio"] > 10
    )
    text = run_fieldfill("score", out, "--truth", water / "t.zarr").stdout
    assert "mse" in text and "h_residual_ratio = " in text and "divergence_truth" in text


def test_score_goes_on_without_physics_where_the_field_does_not_fit(water) -> None:
    gappy = open_dataset(water / "g.nc")
    part = gappy[["h"]].isel(x=slice(0, 8))
    out = save_dataset(Climatology(domain=np.ones((16, 8), bool)).fit(part).fill(part), water / "part.nc")
    done = run_fieldfill("score", out, "--truth", water / "t.zarr", "--json")
    assert set(json.loads(done.stdout)) == {"variables"} and "no variable u, v" in done.stderr
