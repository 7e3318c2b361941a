"""Records of any shape: missing axes, further dimensions, and other grids than the fitted one."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import gappy_dataset
from fieldfill.data.axes import find_axes
from fieldfill.data.flags import FLAGS
from fieldfill.data.grid import Grid
from fieldfill.data.record import open_record
from fieldfill.errors import InputError


def vertical() -> xr.Dataset:
    """Time, depth and longitude."""
    return gappy_dataset().rename(lat="depth").assign_coords(depth=np.linspace(0, 40, 9))


def section() -> xr.Dataset:
    """Time and depth."""
    return vertical().isel(lon=4, drop=True)


def levels() -> xr.Dataset:
    """Two levels of a field, in an unusual order of dimensions, beside a surface and a map."""
    parts = [gappy_dataset(seed=seed) for seed in (1, 2)]
    ds = xr.concat(parts, dim=xr.DataArray([5.0, 10.0], dims="level", name="level", attrs={"axis": "Z"}))
    surface = gappy_dataset(seed=3).sst.rename("ssh")
    return ds.transpose("lat", "level", "time", "lon").assign(ssh=surface, height=surface[0].drop_vars("time"))


SHAPES = {
    "image": (lambda ds: ds.isel(time=0), (None, "lat", "lon")),
    "one frame": (lambda ds: ds.isel(time=[0]), ("time", "lat", "lon")),
    "section": (lambda ds: section(), ("time", None, "depth")),
    "vertical beside longitude": (lambda ds: vertical(), ("time", "depth", "lon")),
    "profile at a place": (lambda ds: section().expand_dims(lat=[4.0], lon=[5.0]), ("time", None, "depth")),
    "longitude only": (lambda ds: ds.isel(lat=0, drop=True), ("time", None, "lon")),
    "latitude only": (lambda ds: ds.isel(lon=1, drop=True), ("time", None, "lat")),
    "level of length 1": (lambda ds: ds.expand_dims(level=[7.0], axis=2), ("time", "lat", "lon")),
}


@pytest.mark.parametrize("case", SHAPES)
def test_what_is_missing_of_the_axes_has_length_1_and_comes_back_as_it_was(case) -> None:
    change, names = SHAPES[case]
    ds = change(gappy_dataset())
    record = open_record(ds)
    assert (record.axes.time, record.axes.y, record.axes.x) == names
    sizes = [1 if name is None else ds.sizes[name] for name in names]
    assert record.shape == (1, 1, *sizes)
    assert np.array_equal(record.arrays()[0].ravel(), record.axes.canonical(ds.sst).values.ravel(), equal_nan=True)
    out = record.to_dataset(np.full(record.shape, 7.0), np.ones(record.shape))
    seen = np.isfinite(ds.sst.values)
    assert out.sst.dims == ds.sst.dims == out.sst_flag.dims
    assert np.array_equal(out.sst.values[seen], ds.sst.values[seen])
    assert (out.sst.values[out.sst_flag.values == FLAGS["filled"]] == 7).all()
    assert all(out[name].identical(ds[name]) for name in ds.coords)


def test_gaps_of_a_single_frame_are_missing_rather_than_outside() -> None:
    assert open_record(gappy_dataset().isel(time=[3])).domain.all()
    assert not open_record(gappy_dataset().isel(time=[3, 4])).domain.all()


def test_axes_that_the_data_lack_can_be_named() -> None:
    ds = xr.Dataset({"v": (("a", "b"), np.zeros((3, 4)))})
    axes = find_axes(ds, ("a", None, "b"))
    assert (axes.time, axes.y, axes.x) == ("a", None, "b") == tuple(vars(find_axes(ds, ("a", "b", None))).values())[:3]
    assert find_axes(ds, (None, "a", "b")).names == ("a", "b")
    with pytest.raises(InputError, match="one of space is needed"):
        find_axes(ds, ("a", None, None))


def test_a_selected_level_keeps_its_dimension() -> None:
    ds = levels()
    record = open_record(ds, ["sst"], sel={"level": 10})
    out = record.to_dataset(np.zeros(record.shape))
    assert out.sst.dims == ds.sst.dims and out.level.values == [10.0] and out.level.attrs == ds.level.attrs
    assert np.array_equal(record.arrays()[0][0, 0], gappy_dataset(seed=2).sst.values.astype(float), equal_nan=True)


def test_each_level_is_a_sample() -> None:
    ds = levels()
    record = open_record(ds, each="level")
    assert record.variables == ("sst",) and record.shape == (2, 1, 20, 9, 12)
    other = open_record(ds[["sst"]].rename(level="sample"))
    assert np.array_equal(record.arrays()[0], other.arrays()[0], equal_nan=True)
    out = record.to_dataset(np.broadcast_to(np.arange(2.0)[:, None, None, None, None], record.shape))
    missing = out.sst_flag == FLAGS["filled"]
    assert ((out.sst == [[[[0.0]], [[1.0]]]]) | ~missing).all() and missing.any()
    assert out.sst.dims == ds.sst.dims and out.ssh.identical(ds.ssh) and out.height.identical(ds.height)


def test_a_domain_may_differ_between_levels() -> None:
    ds = levels()
    wet = xr.DataArray(np.ones((9, 12, 2)), dims=("lat", "lon", "level"))
    wet[3:, :, 1] = 0
    record = open_record(ds.assign(wet=wet), domain="wet", each="level")
    assert record.domain.all()
    observed = record.arrays()[1]
    assert observed[1, 0, :, :3].any() and not observed[1, 0, :, 3:].any() and observed[0, 0, :, 3:].any()
    out = record.to_dataset(np.zeros(record.shape))
    outside = (out.sst_flag == FLAGS["outside_domain"]).transpose("level", "time", "lat", "lon").values
    assert outside[1, :, 3:].all() and not outside[1, :, :3].any() and not outside[0].any()
    # Arranged in another order, it goes with its cells.
    rows = np.array([*range(9)[::-1], -1])
    other = record.arranged((np.arange(20), rows, np.arange(12)), (False, False))
    assert np.array_equal(other.arrays()[1][..., :-1, :], observed[..., ::-1, :])
    assert other.to_dataset(np.zeros(other.shape)).sst_flag.identical(out.sst_flag)


def test_samples_may_have_several_dimensions() -> None:
    ds = xr.concat([levels()[["sst"]], levels()[["sst"]] + 1], dim="run").transpose("level", "time", "run", ...)
    record = open_record(ds, each=("run", "level"))
    assert record.shape[0] == 4
    expected = ds.sst.isel(run=1, level=0).transpose("time", "lat", "lon").values
    assert np.array_equal(record.read(2, slice(None))[0][0], expected, equal_nan=True)


def test_variables_of_other_dimensions_are_left_alone() -> None:
    assert open_record(levels()).variables == ("ssh",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"variables": ["sst"]}, r"also has level=2; select a value with --sel level=5.0 .*--each level"),
        ({"sel": {"level": 7}}, "no level=7 in the data; it has 5.0, 10.0"),
        ({"sel": {"depth": 7}}, "no dimension 'depth'"),
        ({"each": "depth"}, "no dimension 'depth'"),
        ({"each": "lat", "dims": ("time", "lat", "lon")}, "'lat' is one of dims"),
    ],
)
def test_wrong_dimensions_are_refused_in_one_line(arguments, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        open_record(levels(), **arguments)
    assert "\n" not in str(caught.value)


# Other grids


def placed(fitted: xr.Dataset, ds: xr.Dataset, crop: tuple[int, int, int] = (1, 4, 4)):
    record = open_record(ds)
    return record, Grid.of(open_record(fitted)).place(record, crop)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.tuples(st.integers(0, 4), st.integers(6, 9)),
    columns=st.tuples(st.integers(0, 4), st.integers(6, 12)),
    flipped=st.tuples(st.booleans(), st.booleans()),
    turns=st.integers(-1, 1),
    crop=st.tuples(st.integers(1, 12), st.integers(1, 15)),
    swap=st.booleans(),
)
def test_cells_are_matched_by_their_coordinates(rows, columns, flipped, turns, crop, swap) -> None:
    """Whatever part of whatever grid in whatever order: a cell lies where its coordinates are."""
    whole = gappy_dataset()
    part = whole.isel(lat=slice(*rows), lon=slice(*columns))
    part = part.assign_coords(lon=("lon", part.lon.values + 360 * turns, part.lon.attrs))
    part = part.isel(lat=slice(None, None, -1 if flipped[0] else 1), lon=slice(None, None, -1 if flipped[1] else 1))
    fitted, ds = (part, whole) if swap else (whole, part)
    record, placement = placed(fitted, ds, (25, *crop))
    for lie, name in ((placement.rows, "lat"), (placement.columns, "lon")):
        held = lie.cells >= 0
        assert np.array_equal(np.sort(lie.cells[held]), np.arange(ds.sizes[name]))
        inside = held & ~lie.beyond
        here, there = ds[name].values[lie.cells[inside]], fitted[name].values[lie.place[inside]]
        assert np.allclose((here - there + 180) % 360 - 180, 0) and inside.sum() == min(
            whole.sizes[name], len(part[name])
        )
        assert len(lie.cells) >= crop[0 if name == "lat" else 1] and (np.diff(lie.place) == 1).all()
    # There and back: what is filled in the arranged record goes to the cells that it belongs to.
    arranged = placement.arrange(record)
    observed, missing = arranged.arrays()[1], np.isnan(ds.sst.values) & record.domain[0]
    assert observed.shape[2:] == (25, len(placement.rows.cells), len(placement.columns.cells))
    assert observed.sum() == np.isfinite(ds.sst.values).sum()
    number = placement.rows.cells[:, None] * 100 + placement.columns.cells
    out = arranged.to_dataset(np.broadcast_to(number.astype(float), arranged.shape)).sst.values
    own = np.arange(ds.sizes["lat"])[:, None] * 100 + np.arange(ds.sizes["lon"])
    assert np.array_equal(out[missing], np.broadcast_to(own, out.shape)[missing])
    assert np.array_equal(out[~missing], ds.sst.values[~missing], equal_nan=True)


def test_many_columns_are_no_place_for_a_model_of_one() -> None:
    whole = gappy_dataset()
    with pytest.raises(InputError, match="fitted on one 'lon', the data have 12; choose one"):
        placed(whole.isel(lon=slice(5, 6)), whole)
    assert placed(whole.isel(lon=slice(5, 6)), whole.isel(lon=slice(5, 6)))[1].columns.cells.max() == 0


def test_maps_are_cut_and_continued() -> None:
    whole = gappy_dataset()
    _, placement = placed(whole.isel(lat=slice(2, 7)), whole.isel(lat=slice(None, None, -1)))
    rows = np.arange(5.0)[:, None] * np.ones(12)
    assert np.array_equal(placement.cut(rows)[:, 0], [0, 0, 0, 1, 2, 3, 4, 4, 4])
    assert np.array_equal(placement.beyond[:, 0], [True, True, False, False, False, False, False, True, True])


def around(degrees: np.ndarray) -> xr.Dataset:
    ds = gappy_dataset(columns=36)
    return ds.assign_coords(lon=("lon", degrees, {"units": "degrees_east"}))


def test_a_circle_may_begin_anywhere() -> None:
    fitted, ds = around(np.arange(-180.0, 180, 10)), around(np.arange(0.0, 360, 10))
    record, placement = placed(fitted, ds)
    assert placement.periodic == (False, True) == placement.arrange(record).periodic
    assert np.array_equal(ds.lon.values[placement.columns.cells] % 360, fitted.lon.values % 360)
    # A part over the seam lies on the whole circle if the crop does, and is a part otherwise.
    part = ds.isel(lon=slice(15, 21))
    assert placed(fitted, part, (1, 4, 36))[1].periodic == (False, True)
    _, lying = placed(fitted, part, (1, 4, 8))
    assert lying.periodic == (False, False) and len(lying.columns.cells) == 8 and not lying.beyond.any()
    assert np.array_equal(lying.columns.place[:6], [33, 34, 35, 0, 1, 2])
    # A circle around a fitted part of it.
    _, lying = placed(fitted.isel(lon=slice(16, 20)), ds)
    assert lying.periodic == (False, True) and (~lying.columns.beyond).sum() == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ds: ds.isel(lat=slice(None, None, 2)), r"'lat' coordinates are 2.5 apart, .* 1.25; regrid"),
        (lambda ds: ds.assign_coords(lon=ds.lon + 0.2), "'lon' coordinates lie between"),
        (lambda ds: ds.isel(lat=slice(4)).drop_vars("lat"), "no coordinate 'lat'"),
        (lambda ds: ds.rename(lat="y"), "fitted on the dimension 'lat'"),
    ],
)
def test_another_spacing_is_refused_in_one_line(change, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        placed(gappy_dataset(), change(gappy_dataset()))
    assert "\n" not in str(caught.value)


def test_uneven_steps_are_matched_by_value() -> None:
    fitted = section().assign_coords(depth=np.array([0, 1, 2, 4, 8, 16, 24, 32, 40.0]))
    _, lying = placed(fitted, fitted.isel(depth=slice(2, 6)))
    assert np.array_equal(lying.columns.place, [2, 3, 4, 5])
    deeper = fitted.isel(depth=slice(6, None)).assign_coords(depth=[40.0, 48, 56])
    assert np.array_equal(placed(fitted, deeper, (1, 1, 1))[1].columns.place, [8, 9, 10])
    for values in ([2, 8, 16, 24], [2.5, 3, 4, 8], [40, 80, 81, 82]):
        with pytest.raises(InputError, match="uneven steps"):
            placed(fitted, fitted.isel(depth=slice(4)).assign_coords(depth=np.array(values, float)))
