"""Optional inputs of the network: places, season, maps."""

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK
from fieldfill.data.axes import find_axes
from fieldfill.data.inputs import static_maps
from fieldfill.data.transforms import SEASON, Season
from fieldfill.errors import InputError


def data(samples: int | None = None) -> xr.Dataset:
    dims, shape = ("time", "lat", "lon"), (5, 4, 6)
    if samples is not None:
        dims, shape = ("sample", *dims), (samples, *shape)
    return xr.Dataset(
        {"sst": (dims, np.ones(shape)), "depth": (("lon", "lat"), np.arange(24.0).reshape(6, 4))},
        coords={"time": np.datetime64("2024-01-01", "ns") + np.arange(5) * np.timedelta64(73, "D")},
    )


def test_coordinates_tell_cells_apart_and_close_where_the_axis_does() -> None:
    ds = data()
    maps = static_maps(ds, find_axes(ds), ["coordinates"], (False, True))
    assert maps.shape == (3, 4, 6)
    assert len(np.unique(maps.reshape(3, -1), axis=1).T) == 24
    step = np.linalg.norm(maps[1:, 0] - np.roll(maps[1:, 0], 1, axis=1), axis=0)
    assert step == pytest.approx(np.full(6, step[0]))  # the last column is as near to the first as any neighbour


def test_a_map_is_standardised_and_turned_to_rows_and_columns() -> None:
    ds = data()
    (depth,) = static_maps(ds, find_axes(ds), ["depth"], (False, False))
    assert depth.mean() == pytest.approx(0, abs=1e-6) and depth.std() == pytest.approx(1, rel=1e-5)
    assert np.corrcoef(depth.ravel(), ds.depth.transpose("lat", "lon").values.ravel())[0, 1] == pytest.approx(1)


def test_missing_places_of_a_map_are_its_mean() -> None:
    ds = data()
    ds.depth[0, 0] = np.nan
    (depth,) = static_maps(ds, find_axes(ds), ["depth"], (False, False))
    assert depth[0, 0] == 0 and np.isfinite(depth).all()


@pytest.mark.parametrize("samples", [None, 3])
def test_the_season_comes_back_after_a_year(samples: int | None) -> None:
    ds = data(samples)
    out = Season().apply(ds, find_axes(ds))
    for name in SEASON:
        assert out[name].dims == ds.sst.dims and out[name].shape == ds.sst.shape
        line = out[name].transpose("time", ...).values.reshape(5, -1)
        assert (line == line[:, :1]).all()
    wave = np.hypot(*(out[name].values for name in SEASON))
    assert wave == pytest.approx(np.ones_like(wave))
    xr.testing.assert_identical(Season().undo(out), ds)


def test_what_cannot_be_an_input_is_named() -> None:
    ds = data()
    with pytest.raises(InputError, match="no variable 'orography'"):
        static_maps(ds, find_axes(ds), ["orography"], (False, False))
    with pytest.raises(InputError, match="belongs to the variables"):
        static_maps(ds, find_axes(ds), ["sst"], (False, False))
    with pytest.raises(InputError, match="needs dates"):
        Season().apply(ds.assign_coords(time=np.arange(5.0)), find_axes(ds))


def test_a_model_knows_its_inputs_when_it_is_read_again(tmp_path) -> None:
    generator = np.random.default_rng(0)
    shape = (24, 10, 9)
    sst = np.where(generator.random(shape) < 0.6, generator.standard_normal(shape), np.nan)
    ds = xr.Dataset(
        {
            "sst": (("time", "lat", "lon"), sst),
            "wind": (("time", "lat", "lon"), generator.standard_normal(shape)),
            "depth": (("lat", "lon"), generator.standard_normal(shape[1:])),
        },
        coords={"time": np.datetime64("2024-01-01", "ns") + np.arange(24) * np.timedelta64(9, "D")},
    )
    inputs = ("coordinates", "day-of-year", "depth")
    config = QUICK.model_copy(update={"inputs": inputs, "partition": "auto"})
    filler = ff.Filler(settings=config).fit(ds)
    filled = filler.fill(ds)
    assert filler.model_.maps.shape == (3, 10, 9)
    assert set(filled.data_vars) == {"depth"} | {f"{v}{end}" for v in ("sst", "wind") for end in ("", "_std", "_flag")}
    assert np.isfinite(filled.sst).all() and np.array_equal(filled.wind, ds.wind)
    again = ff.load(filler.save(tmp_path / "model.ff")).fill(ds)
    xr.testing.assert_identical(again.drop_attrs(), filled.drop_attrs())
