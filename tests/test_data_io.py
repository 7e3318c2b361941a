"""Files as people have them, in and out."""

import json

import numpy as np
import pytest
import xarray as xr

from conftest import gappy_dataset
from fieldfill.data.io import open_dataset, replacing, save_dataset
from fieldfill.data.record import open_record
from fieldfill.errors import InputError, InputWarning


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_what_is_written_is_read_back(tmp_path, suffix) -> None:
    ds = gappy_dataset()
    path = save_dataset(ds, tmp_path / f"out{suffix}")
    assert open_dataset(path).load().identical(ds)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_classic_netcdf_is_read(tmp_path) -> None:
    ds = gappy_dataset(dtype="float64")
    ds.to_netcdf(tmp_path / "old.nc", engine="scipy")
    assert np.array_equal(open_dataset(tmp_path / "old.nc").sst.values, ds.sst.values, equal_nan=True)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_times_of_a_year_0_stay_numbers_and_are_written_as_they_were(tmp_path, suffix) -> None:
    """Climatologies are often counted from the year 0, which no calendar of CF has by default."""
    ds = gappy_dataset(frames=4).assign_coords(time=np.arange(4.0))
    ds.time.attrs["units"] = "hour since 0000-01-01 00:00:00"
    path = save_dataset(ds, tmp_path / f"in{suffix}")
    with pytest.warns(InputWarning, match="the times of in.* stay numbers: unable to decode time units 'hour since 0"):
        found = open_dataset(path)
    assert found.load().identical(ds)
    out = save_dataset(open_record(found).to_dataset(np.full((1, 1, 4, 9, 12), 10.5)), tmp_path / f"out{suffix}")
    again = xr.open_dataset(out, decode_times=False, engine="zarr" if suffix == ".zarr" else None)
    assert again.time.attrs == ds.time.attrs and np.array_equal(again.time, ds.time)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_packed_values_keep_packing_and_observed_values(tmp_path, suffix) -> None:
    ds = gappy_dataset(dtype="float64")
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 10.0, "_FillValue": -32768}
    ds.to_netcdf(tmp_path / "packed.nc", engine="h5netcdf", encoding={"sst": packing})
    packed = open_dataset(tmp_path / "packed.nc").load()
    record = open_record(packed)
    path = save_dataset(record.to_dataset(np.full(record.shape, 10.5)), tmp_path / f"out{suffix}")
    out = open_dataset(path).load()
    assert out.sst.encoding["dtype"] == np.int16 and out.sst.encoding["scale_factor"] == 0.01
    seen = np.isfinite(packed.sst.values)
    assert np.array_equal(out.sst.values[seen], packed.sst.values[seen])


def test_packing_that_cannot_hold_the_filled_values_is_dropped(tmp_path) -> None:
    ds = gappy_dataset()
    packing = {"dtype": "int8", "scale_factor": 0.1, "add_offset": 10.0, "_FillValue": -128}
    ds.to_netcdf(tmp_path / "packed.nc", engine="h5netcdf", encoding={"sst": packing})
    packed = open_dataset(tmp_path / "packed.nc").load()
    record = open_record(packed)
    path = save_dataset(record.to_dataset(np.full(record.shape, 1e4)), tmp_path / "out.nc")
    out = open_dataset(path).load()
    assert (out.sst.values[np.isnan(packed.sst.values) & (np.arange(12) > 0)] == 1e4).all()
    seen = np.isfinite(packed.sst.values)
    assert np.array_equal(out.sst.values[seen], packed.sst.values[seen])


def test_failure_leaves_nothing_behind(tmp_path) -> None:
    target = tmp_path / "out.nc"
    with pytest.raises(RuntimeError), replacing(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="No space"), replacing(target):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_existing_output_is_kept_unless_overwritten(tmp_path) -> None:
    path = save_dataset(gappy_dataset(), tmp_path / "out.nc")
    with pytest.raises(InputError, match="already exists"):
        save_dataset(gappy_dataset(seed=1), path)
    assert open_dataset(path).load().identical(gappy_dataset())
    save_dataset(gappy_dataset(seed=1), path, overwrite=True)
    assert open_dataset(path).load().identical(gappy_dataset(seed=1))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.nc", None, "no such file"),
        ("text.nc", b"hello world", "neither NetCDF"),
        ("torn.nc", b"\x89HDF\r\n\x1a\n" + bytes(100), "cannot read"),
        ("torn.grib", b"GRIB" + bytes(10), "cannot read"),
        ("empty.nc", b"", "neither NetCDF"),
    ],
)
def test_unreadable_files_are_named_in_one_line(tmp_path, name, content, words) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_dataset(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_plain_folder_is_not_a_store(tmp_path) -> None:
    with pytest.raises(InputError, match="not a Zarr store"):
        open_dataset(tmp_path)


def test_groups_that_are_not_read_are_named(tmp_path) -> None:
    more = xr.Dataset({"level": ("n", [1])})
    files = [tmp_path / name for name in ("a.nc", "a3.zarr", "a2.zarr")]
    gappy_dataset().to_netcdf(files[0], engine="h5netcdf")
    more.to_netcdf(files[0], group="quality/deep", mode="a", engine="h5netcdf")
    for path, version in ((files[1], 3), (files[2], 2)):
        gappy_dataset().to_zarr(path, zarr_format=version, consolidated=False)
        more.to_zarr(path, group="quality/deep", mode="a", zarr_format=version, consolidated=False)
    for path in files:
        with pytest.warns(InputWarning, match=f"{path.name} has groups \\(quality\\)") as caught:
            assert open_dataset(path).load().identical(gappy_dataset())
        assert len(caught) == 1


def test_a_store_without_consolidated_metadata_is_read_whatever_it_says(tmp_path) -> None:
    path = save_dataset(gappy_dataset(), tmp_path / "a.zarr")
    root = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps(root | {"consolidated_metadata": None}))
    assert open_dataset(path).load().identical(gappy_dataset())


def era5_layout(kind: str) -> xr.Dataset:
    """The layouts in which ERA5 is handed out."""
    rng = np.random.default_rng(0)
    shape = (6, 5, 8)
    time = np.datetime64("2019-03-01", "ns") + np.arange(6) * np.timedelta64(1, "h")
    coords = {"latitude": np.linspace(58, 57, 5), "longitude": np.linspace(350, 351.75, 8)}
    if kind == "old":
        dims = ("time", "latitude", "longitude")
        return xr.Dataset(
            {"t2m": (dims, rng.normal(size=shape)), "u10": (dims, rng.normal(size=shape))},
            {"time": time, **coords},
        )
    if kind == "expver":
        values = rng.normal(size=(6, 2, 5, 8))
        values[:4, 1] = np.nan
        values[4:, 0] = np.nan
        dims = ("time", "expver", "latitude", "longitude")
        return xr.Dataset({"t2m": (dims, values, {"units": "K"})}, {"time": time, "expver": [1, 5], **coords})
    if kind == "new":
        dims = ("valid_time", "latitude", "longitude")
        extra = {"number": 0, "expver": ("valid_time", np.array(["0001"] * 4 + ["0005"] * 2))}
        return xr.Dataset({"t2m": (dims, rng.normal(size=shape))}, {"valid_time": time, **extra, **coords})
    dims = ("time", "latitude", "longitude")
    names = ("2m_temperature", "10m_u_component_of_wind")
    return xr.Dataset(
        {name: (dims, rng.normal(size=shape).astype("float32")) for name in names}, {"time": time, **coords}
    )


@pytest.mark.parametrize("kind", ["old", "new", "expver", "arco"])
def test_every_layout_of_era5_becomes_a_record(tmp_path, kind) -> None:
    ds = era5_layout(kind)
    path = tmp_path / ("era5.zarr" if kind == "arco" else "era5.nc")
    if kind == "arco":
        ds.chunk(time=1).to_zarr(path)
    else:
        ds.to_netcdf(path, engine="h5netcdf")
    record = open_record(open_dataset(path))
    assert record.shape == (1, 1 if kind in ("new", "expver") else 2, 6, 5, 8)
    assert record.domain.all()
    values, observed = record.read(0, slice(0, 6))
    assert observed.all()
    if kind == "expver":
        assert np.array_equal(values[0], np.where(np.isnan(ds.t2m[:, 0]), ds.t2m[:, 1], ds.t2m[:, 0]))


def test_the_real_era5_file_opens_with_its_metadata(era5) -> None:
    ds = open_dataset(era5)
    record = open_record(ds)
    assert record.shape == (1, 1, 744, 33, 49) and record.variables == ("t2m",)
    assert ds.t2m.attrs["units"] == "K" and ds.latitude.values[0] > ds.latitude.values[-1]
    assert 270 < record.mean[0] < 290
    assert not list(era5.parent.glob("*.idx"))
