"""The border between xarray and arrays: axes, domain, statistics, and the way back."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import gappy_dataset
from fieldfill.data.axes import find_axes, wraps_around
from fieldfill.data.flags import FLAGS
from fieldfill.data.record import open_record
from fieldfill.errors import InputError


def test_axes_are_found_by_cf_metadata_before_names() -> None:
    ds = xr.Dataset({"v": (("x", "lat", "t"), np.zeros((3, 4, 5)))})
    ds = ds.assign_coords(
        x=("x", np.arange(3), {"axis": "T"}),
        lat=("lat", np.arange(4), {"axis": "X"}),
        t=("t", np.arange(5), {"standard_name": "latitude"}),
    )
    axes = find_axes(ds)
    assert (axes.time, axes.y, axes.x) == ("x", "t", "lat")


@pytest.mark.parametrize(
    "names",
    [
        ("time", "lat", "lon"),
        ("valid_time", "latitude", "longitude"),
        ("Time", "south_north", "west_east"),
        ("t", "y", "x"),
    ],
)
def test_axes_are_found_by_usual_names(names) -> None:
    ds = xr.Dataset({"v": (names, np.zeros((3, 4, 5)))})
    assert find_axes(ds).names == names


def test_axes_can_be_given() -> None:
    ds = xr.Dataset({"v": (("a", "b", "c"), np.zeros((3, 4, 5)))})
    assert find_axes(ds, ("c", "a", "b")).names == ("c", "a", "b")
    with pytest.raises(InputError, match="no dimension of space"):
        find_axes(ds)
    with pytest.raises(InputError, match="no dimension 'z'"):
        find_axes(ds, ("a", "b", "z"))


@pytest.mark.parametrize(("last", "closed"), [(359.0, True), (179.0, False)])
def test_a_full_circle_of_longitudes_wraps_around(last, closed) -> None:
    ds = xr.Dataset(coords={"lon": ("lon", np.arange(0, last + 1), {"units": "degrees_east"})})
    assert wraps_around(ds, "lon") == closed


def test_unobserved_cells_are_outside_unless_a_domain_says_otherwise() -> None:
    ds = gappy_dataset()
    assert not open_record(ds).domain[0, :, 0].any()
    assert open_record(ds).domain[0, :, 1:].all()
    sea = xr.DataArray(np.ones((9, 12)), dims=("lat", "lon"))
    assert open_record(ds, domain=sea).domain.all()
    assert open_record(ds.assign(sea=sea), domain="sea").domain.all()
    assert open_record(ds, domain=np.ones((9, 12), bool)).domain.all()


def test_statistics_are_those_of_the_observed_cells() -> None:
    ds = gappy_dataset(dtype="float64", names="a,b")
    record = open_record(ds)
    for c, name in enumerate(("a", "b")):
        assert record.mean[c] == pytest.approx(np.nanmean(ds[name]), rel=1e-12)
        assert record.std[c] == pytest.approx(np.nanstd(ds[name]), rel=1e-12)


def test_statistics_survive_a_large_offset_and_slabs() -> None:
    ds = gappy_dataset(frames=3000, dtype="float64")
    ds["sst"] = ds.sst + 1e6
    record = open_record(ds)
    assert record.std[0] == pytest.approx(np.nanstd(ds.sst), rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", [("time", "lat", "lon"), ("lon", "time", "lat")], ids=str)
def test_observed_cells_come_back_bit_for_bit(dtype, order) -> None:
    ds = gappy_dataset(dtype=dtype).transpose(*order)
    record = open_record(ds)
    out = record.to_dataset(np.full(record.shape, 1 / 3), np.full(record.shape, 0.1))
    seen = np.isfinite(ds.sst.values)
    assert out.sst.dims == order and out.sst.dtype == dtype
    assert np.array_equal(out.sst.values[seen].view(np.uint8), ds.sst.values[seen].view(np.uint8))
    assert (out.sst_std.values[seen] == 0).all()
    assert (out.sst_flag.values[seen] == FLAGS["observed"]).all()


def test_land_stays_missing_and_gaps_are_filled_and_flagged() -> None:
    ds = gappy_dataset()
    record = open_record(ds)
    unsupported = np.zeros(record.shape, bool)
    unsupported[..., 3] = True
    out = record.to_dataset(np.full(record.shape, 7.0), np.full(record.shape, 0.1), unsupported)
    assert np.isnan(out.sst.values[:, :, 0]).all() and np.isnan(out.sst_std.values[:, :, 0]).all()
    assert (out.sst_flag.values[:, :, 0] == FLAGS["outside_domain"]).all()
    assert np.isfinite(out.sst.values[:, :, 1:]).all()
    missing = np.isnan(ds.sst.values)
    assert (out.sst_flag.values[missing & (np.arange(12) == 3)] == FLAGS["filled_without_support"]).all()
    assert (out.sst_flag.values[missing & (np.arange(12) > 3)] == FLAGS["filled"]).all()


def test_metadata_survive_and_history_gains_one_line() -> None:
    ds = gappy_dataset().assign(crs=0, bathymetry=(("lat", "lon"), np.ones((9, 12))))
    ds.sst.encoding = {"scale_factor": 0.01, "dtype": "int16"}
    record = open_record(ds)
    out = record.to_dataset(np.zeros(record.shape), history="filled by a test")
    assert out.sst.attrs == ds.sst.attrs | {"ancillary_variables": "sst_flag"} and out.sst.encoding == ds.sst.encoding
    for name in ("crs", "bathymetry", "time", "lat", "lon"):
        assert out[name].identical(ds[name])
    lines = out.attrs["history"].splitlines()
    assert len(lines) == 2 and lines[1] == "made by a test" and lines[0].endswith("filled by a test")
    assert ds.attrs["history"] == "made by a test"


def test_members_get_their_own_dimension() -> None:
    record = open_record(gappy_dataset())
    members = np.zeros((1, 3, *record.shape[1:]))
    out = record.to_dataset(np.zeros(record.shape), members=members)
    assert out.sst_members.dims == ("member", "time", "lat", "lon")
    assert out.member.attrs["standard_name"] == "realization"


def test_samples_are_independent_sequences() -> None:
    one, two = gappy_dataset(seed=1), gappy_dataset(seed=2)
    ds = xr.concat([one, two], dim="sample").transpose("time", "sample", "lat", "lon")
    record = open_record(ds)
    assert record.shape == (2, 1, 20, 9, 12)
    values, observed = record.read(1, slice(5, 9))
    assert np.array_equal(values[0], two.sst.values[5:9].astype(float), equal_nan=True)
    assert np.array_equal(observed[0], np.isfinite(two.sst.values[5:9]))
    out = record.to_dataset(np.zeros(record.shape))
    assert out.sst.dims == ds.sst.dims and np.array_equal(
        out.sst.values == 0, np.isnan(ds.sst.values) & (np.arange(12) > 0)
    )


def test_a_filled_file_can_be_filled_again() -> None:
    record = open_record(gappy_dataset())
    out = record.to_dataset(np.zeros(record.shape), np.ones(record.shape))
    assert open_record(out).variables == ("sst",)


BAD = {
    "unknown variable": (lambda ds: ds, {"variables": ["salt"]}, "no variable 'salt'"),
    "all NaN": (lambda ds: ds.assign(sst=ds.sst * np.nan), {}, "no observed value"),
    "infinite": (lambda ds: ds.assign(sst=ds.sst.where(ds.sst < 11.9, np.inf)), {}, "infinite values"),
    "empty domain": (
        lambda ds: ds,
        {"domain": np.zeros((9, 12), bool)},
        "no observed value inside the given domain",
    ),
    "wrong domain": (lambda ds: ds, {"domain": np.ones((3, 3), bool)}, "shape"),
    "integer": (
        lambda ds: ds.assign(n=ds.sst.notnull().astype(int)),
        {"variables": ["n"]},
        "convert it to float",
    ),
    "extra dimension": (lambda ds: ds.expand_dims(depth=2), {}, "--each depth"),
    "not xarray": (lambda ds: ds.sst.values, {}, "xarray"),
    "no name": (lambda ds: ds, {"variables": []}, "no variable was named"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case) -> None:
    change, arguments, words = BAD[case]
    with pytest.raises(InputError, match=words) as caught:
        open_record(change(gappy_dataset()), **arguments)
    assert "\n" not in str(caught.value)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), frames=st.integers(2, 6), rows=st.integers(1, 5), columns=st.integers(2, 5))
def test_reading_gives_the_values_of_the_file(seed, frames, rows, columns) -> None:
    ds = gappy_dataset(frames, rows, columns, seed=seed, dtype="float64")
    if not np.isfinite(ds.sst).any():
        return
    record = open_record(ds)
    values, observed = record.arrays()
    assert np.array_equal(values[0, 0], ds.sst.values, equal_nan=True)
    assert np.array_equal(observed[0, 0], np.isfinite(ds.sst.values))
    box = np.arange(rows)[::-1], np.arange(columns - 1, 2 * columns - 2) % columns  # any order, over the seam
    part, seen = record.read(0, slice(1, frames), *box)
    assert np.array_equal(part, values[0, :, 1:][:, :, box[0][:, None], box[1]], equal_nan=True)
    assert np.array_equal(seen, observed[0, :, 1:][:, :, box[0][:, None], box[1]])


def test_cells_that_were_ever_observed_do_not_depend_on_the_domain() -> None:
    """A given domain may hold cells that no frame shows, and leave out cells that some do."""
    ds, domain = gappy_dataset(names="a,b"), np.ones((9, 12), bool)
    domain[:, 6:] = False
    record = open_record(ds, domain=domain)
    assert np.array_equal(record.counts, np.isfinite([ds.a, ds.b]).sum(1))
    assert (record.domain & (record.counts == 0)).any() and (~record.domain & (record.counts > 0)).any()
    assert np.array_equal(open_record(ds).domain, record.counts > 0)
