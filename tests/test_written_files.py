"""A finished fill reaches its file: values bit for bit, and nothing odd in the metadata can stop it."""

import json
import warnings

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import fieldfill as ff
from conftest import QUICK, exit_code, gappy_dataset
from fieldfill.data.record import open_record

F4, F8 = np.float32, np.float64
FORMATS = [".nc", ".zarr"]


# Storage type and attributes of a packed variable, as archives have them; -1 marks the gaps.
PACKINGS = {
    "double scale and offset": ("i2", {"scale_factor": F8(0.01), "add_offset": F8(10), "_FillValue": np.int16(-1)}),
    "single scale and offset": ("i2", {"scale_factor": F4(0.01), "add_offset": F4(10), "_FillValue": np.int16(-1)}),
    "single scale, double offset": ("i2", {"scale_factor": F4(0.01), "add_offset": F8(9), "_FillValue": np.int16(-1)}),
    "single scale alone": ("i2", {"scale_factor": F4(0.1), "_FillValue": np.int16(-1)}),
    "single offset alone": ("i2", {"add_offset": F4(273.15), "_FillValue": np.int16(-1)}),
    "whole numbers": ("i2", {"_FillValue": np.int16(-1)}),
    "missing_value alone": ("i2", {"scale_factor": F8(0.5), "missing_value": np.int16(-1)}),
    "two fill values": ("i2", {"scale_factor": F4(0.1), "_FillValue": np.int16(-1), "missing_value": np.int16(-2)}),
    "long, single scale": ("i4", {"scale_factor": F4(0.001), "_FillValue": np.int32(-1)}),
    "long, double scale": ("i4", {"scale_factor": F8(0.001), "_FillValue": np.int32(-1)}),
    "negative scale": ("i2", {"scale_factor": F8(-0.01), "_FillValue": np.int16(-1)}),
    "scale of zero": ("i2", {"scale_factor": F8(0), "add_offset": F8(5), "_FillValue": np.int16(-1)}),
    "scale in a list": ("i2", {"scale_factor": np.array([0.01], F4), "_FillValue": np.int16(-1)}),
    "unsigned bytes": ("i1", {"scale_factor": F8(0.1), "_Unsigned": "true", "_FillValue": np.int8(-1)}),
    "packed into floats": ("f4", {"scale_factor": F8(0.01), "_FillValue": F4(-1)}),
    "packed into floats, single scale": ("f4", {"scale_factor": F4(0.01), "_FillValue": F4(-1)}),
    "plain floats": ("f4", {"_FillValue": F4(-1)}),
    "plain floats, two fill values": ("f4", {"_FillValue": F4(-1), "missing_value": F4(-999)}),
    "plain doubles, NaN beside -1": ("f8", {"_FillValue": F8(np.nan), "missing_value": F8(-1)}),
}


def write_packed(path, storage: str, attrs: dict, seed: int = 0) -> None:
    """A file of packed numbers with gaps, written without any packing of xarray's own."""
    rng = np.random.default_rng(seed)
    shape = (8, 5, 6)
    top = 90 if storage == "i1" else 900
    raw = rng.integers(0, top, shape).astype(storage)
    raw[rng.random(shape) < 0.4] = -1
    coords = {"time": np.arange(8.0), "lat": np.arange(5.0), "lon": np.arange(6.0)}
    ds = xr.Dataset({"sst": (("time", "lat", "lon"), raw, attrs)}, coords)
    if path.suffix == ".zarr":
        ds.to_zarr(path, consolidated=False)
    else:
        ds.to_netcdf(path, engine="scipy" if path.suffix == ".nc3" else "h5netcdf")


def filled_and_saved(source, target) -> tuple[xr.Dataset, xr.Dataset, np.ndarray]:
    """What was opened, what is read back after a fill, and the values that were filled in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = ff.open_dataset(source).load()
        record = open_record(given)
        rng = np.random.default_rng(1)
        values = given.sst.values[np.isfinite(given.sst.values)]
        filled = rng.uniform(values.min(), values.max(), record.shape)
        std = rng.uniform(0.1, 0.2, record.shape)
        ff.save_dataset(record.to_dataset(filled, std, members=np.stack([filled] * 2, axis=1)), target)
        return given, ff.open_dataset(target).load(), filled[0, 0]


def assert_observations_kept(given: xr.Dataset, out: xr.Dataset) -> None:
    seen = np.isfinite(given.sst.values)
    assert out.sst.dtype == given.sst.dtype
    assert out.sst.values[seen].tobytes() == given.sst.values[seen].tobytes()
    assert out.sst_members.dtype == given.sst.dtype
    assert all(member[seen].tobytes() == given.sst.values[seen].tobytes() for member in out.sst_members.values)


# xarray cannot read a list as the scale of a Zarr array, so there is none to start from.
PAIRS = [(p, s) for p in PACKINGS for s in (".nc", ".nc3", ".zarr") if (p, s) != ("scale in a list", ".zarr")]


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize(("packing", "source"), PAIRS)
def test_observed_values_of_every_packing_come_back_bit_for_bit(tmp_path, packing, source, target) -> None:
    storage, attrs = PACKINGS[packing]
    write_packed(tmp_path / f"in{source}", storage, attrs)
    given, out, filled = filled_and_saved(tmp_path / f"in{source}", tmp_path / f"out{target}")
    assert_observations_kept(given, out)
    gaps = np.isnan(given.sst.values)
    step = np.abs(np.ravel(attrs.get("scale_factor", 1.0))[0]) if storage != "f8" else 0.0
    np.testing.assert_allclose(out.sst.values[gaps], filled[gaps], rtol=1e-6, atol=0.51 * step)


@settings(max_examples=15, deadline=None)
@given(
    scale=st.floats(2**-13, 1024, width=32), offset=st.floats(-8192, 8192, width=32), target=st.sampled_from(FORMATS)
)
def test_any_single_precision_packing_keeps_the_observed_values(tmp_path_factory, scale, offset, target) -> None:
    folder = tmp_path_factory.mktemp("packed")
    packing = {"scale_factor": F4(scale), "add_offset": F4(offset), "_FillValue": np.int16(-1)}
    write_packed(folder / "in.nc", "i2", packing)
    given, out, _ = filled_and_saved(folder / "in.nc", folder / f"out{target}")
    assert_observations_kept(given, out)


@pytest.mark.parametrize("target", FORMATS)
def test_what_a_fill_adds_is_never_packed(tmp_path, target) -> None:
    write_packed(tmp_path / "in.nc", *PACKINGS["whole numbers"])
    _, out, filled = filled_and_saved(tmp_path / "in.nc", tmp_path / f"out{target}")
    for name in ("sst_std", "sst_members"):
        assert "scale_factor" not in out[name].encoding and out[name].encoding["dtype"].kind == "f"
    gaps = out.sst_flag.values == 1
    assert np.array_equal(out.sst_members.values[0][gaps], filled[gaps].astype("f4"))


def test_hidden_cells_of_a_packing_without_fill_value_stay_hidden(tmp_path) -> None:
    raw = np.arange(240, dtype="i2").reshape(8, 5, 6)
    ds = xr.Dataset({"sst": (("time", "lat", "lon"), raw, {"scale_factor": 0.5})})
    ds.to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    gappy, _ = ff.hide(ff.open_dataset(tmp_path / "in.nc"), "pixel", 0.5)
    out = ff.open_dataset(ff.save_dataset(gappy, tmp_path / "out.nc")).load()
    assert np.array_equal(out.sst.values, gappy.sst.values, equal_nan=True) and out.sst.isnull().any()


def test_limits_in_packed_numbers_do_not_outlive_the_packing(tmp_path) -> None:
    attrs = {"scale_factor": F4(0.01), "_FillValue": np.int16(-1), "valid_min": np.int16(0), "valid_max": np.int16(900)}
    write_packed(tmp_path / "in.nc", "i2", attrs)
    packed = filled_and_saved(tmp_path / "in.nc", tmp_path / "out.nc")[1]
    plain = filled_and_saved(tmp_path / "in.nc", tmp_path / "out.zarr")[1]
    assert packed.sst.encoding["dtype"] == np.int16 and packed.sst.attrs["valid_max"] == 900
    assert plain.sst.encoding["dtype"] == np.float32 and "valid_max" not in plain.sst.attrs


def encoded(ds: xr.Dataset, name: str, **encoding) -> xr.Dataset:
    ds[name].encoding = encoding
    return ds


def noted(ds: xr.Dataset, name: str | None = None, **attrs) -> xr.Dataset:
    (ds if name is None else ds[name]).attrs.update(attrs)
    return ds


def with_unlimited(ds: xr.Dataset) -> xr.Dataset:
    ds.encoding = {"unlimited_dims": {"gone"}}
    return ds


SINCE = "days since 1990-01-01"
MULTI = xr.Coordinates.from_pandas_multiindex(
    xr.Dataset(coords={"a": [0, 1], "b": [5, 6, 7]}).stack(point=("a", "b")).indexes["point"], "point"
)
COMPOUND = np.zeros(9, dtype=[("a", "f4"), ("b", "i4")])
AWKWARD = {
    "two fill values": lambda ds: encoded(ds, "sst", _FillValue=-999.0, missing_value=-888.0),
    "NaN beside a number": lambda ds: encoded(ds, "sst", _FillValue=np.nan, missing_value=-999.0),
    "packing beyond its type": lambda ds: encoded(ds, "sst", dtype="int16", scale_factor=1e-9, _FillValue=0),
    "packing without meaning": lambda ds: encoded(ds, "sst", dtype="float8", scale_factor="small", add_offset=[]),
    "scale without a number": lambda ds: encoded(ds, "sst", dtype="int16", scale_factor=[], _FillValue="none"),
    "units of decoded time": lambda ds: noted(ds, "time", units=SINCE, calendar="standard"),
    "units of time twice": lambda ds: encoded(noted(ds, "time", units=SINCE), "time", units=SINCE),
    "fill value among attributes": lambda ds: encoded(noted(ds, "sst", _FillValue=1.0), "sst", _FillValue=2.0),
    "scale left among attributes": lambda ds: noted(ds, "sst", scale_factor=2.0, add_offset=1.0),
    "type left among attributes": lambda ds: noted(ds, "sst", dtype="bool"),
    "missing value that was filled in": lambda ds: noted(ds, "sst", missing_value=F4(10.5)),
    "fill value that was filled in": lambda ds: encoded(noted(ds, "sst", _FillValue=F4(10.5)), "sst", _FillValue=-1.0),
    "None": lambda ds: noted(noted(ds, source=None), "sst", source=None),
    "dict": lambda ds: noted(noted(ds, source={"a": [1]}), "sst", source={"a": [1]}),
    "mixed list": lambda ds: noted(noted(ds, source=[1, "a", None]), "sst", source=[1, "a", None]),
    "bool": lambda ds: noted(noted(ds, source=True), "lon", periodic=np.bool_(True)),
    "NUL": lambda ds: noted(noted(ds, source="a\0b"), "sst", source="a\0b"),
    "lone surrogate": lambda ds: noted(noted(ds, source="a\udc80b"), "sst", source="a\udc80b"),
    "attribute without a name": lambda ds: noted(ds, "sst", **{"": 1}),
    "attribute of a type without meaning": lambda ds: noted(ds, "sst", source=object()),
    "compound": lambda ds: ds.assign(odd=("lat", COMPOUND)),
    "mixed objects": lambda ds: ds.assign(odd=("lat", np.array([1, "a", None, *range(6)], dtype=object))),
    "text with a late NUL": lambda ds: ds.assign(odd=("lat", np.array(["a"] * 8 + ["b\0c"], dtype=object))),
    "slash in a name": lambda ds: ds.assign({"quality/level": ("lat", np.arange(9.0))}),
    "slash in a dimension": lambda ds: ds.assign(odd=(("lat", "n/v"), np.zeros((9, 2)))),
    "name that is no text": lambda ds: ds.assign({7: ("lat", np.arange(9.0))}),
    "MultiIndex": lambda ds: ds.assign_coords(MULTI).assign(odd=("point", np.arange(6.0))),
    "history of lines": lambda ds: ds.assign_attrs(history=["one", "two"]),
    "history of numbers": lambda ds: ds.assign_attrs(history=np.arange(3)),
    "no history": lambda ds: ds.assign_attrs(history=None),
    "history of bytes": lambda ds: ds.assign_attrs(history=b"made by a test"),
    "lost unlimited dimension": with_unlimited,
}


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("case", AWKWARD)
def test_what_cannot_be_written_never_takes_the_result_with_it(tmp_path, case, target) -> None:
    ds = AWKWARD[case](gappy_dataset().assign(depth=(("lat", "lon"), np.ones((9, 12)), {"units": "m"})))
    record = open_record(ds, ["sst"])
    filled = record.to_dataset(np.full(record.shape, 10.5), np.full(record.shape, 0.1), history="filled by a test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        out = ff.open_dataset(ff.save_dataset(filled, tmp_path / f"out{target}")).load()
    for name in ("sst", "sst_std", "sst_flag", "time", "lat", "lon", "depth"):
        assert out[name].dtype == filled[name].dtype
        assert np.array_equal(out[name].values, filled[name].values, equal_nan=name.startswith("sst"))
    assert out.sst.attrs["units"] == "degC" and out.attrs["title"] == "test" and out.depth.attrs == {"units": "m"}
    assert out.attrs["history"].splitlines()[0].endswith("filled by a test")
    assert [p.name for p in tmp_path.iterdir()] == [f"out{target}"]


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("name", [".", "..", "zarr.json", ".zarray"])
def test_a_variable_with_a_name_that_means_another_file_is_renamed_rather_than_lost(tmp_path, target, name) -> None:
    record = open_record(gappy_dataset().rename(sst=name))
    filled = record.to_dataset(np.full(record.shape, 10.5), np.full(record.shape, 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ff.InputWarning)
        (tmp_path / "sub").mkdir()
        out = ff.open_dataset(ff.save_dataset(filled, tmp_path / "sub" / f"out{target}")).load()
    (written,) = set(out.variables) - {f"{name}_std", f"{name}_flag", "time", "lat", "lon"}
    assert np.array_equal(out[written].values, filled[name].values, equal_nan=True)
    assert [p.name for p in tmp_path.iterdir()] == ["sub"]


@pytest.mark.parametrize("target", FORMATS)
def test_chunks_of_any_size_are_written(tmp_path, target) -> None:
    for number, sizes in enumerate([(5, 3, 12), (1, 19), (7, 7, 6), (20,)]):
        ds = gappy_dataset().chunk(time=sizes, lat=(4, 5))
        assert ff.open_dataset(ff.save_dataset(ds, tmp_path / f"{number}{target}")).load().identical(gappy_dataset())


@pytest.mark.parametrize("target", FORMATS)
def test_a_data_array_is_written_as_well(tmp_path, target) -> None:
    out = ff.open_dataset(ff.save_dataset(gappy_dataset().sst, tmp_path / f"out{target}"))
    assert out.sst.identical(gappy_dataset().sst)


@pytest.mark.parametrize("target", FORMATS)
def test_an_extended_double_is_written_as_close_as_the_format_allows(tmp_path, target) -> None:
    record = open_record(gappy_dataset(dtype="longdouble"))
    filled = record.to_dataset(np.full(record.shape, 10.5), np.full(record.shape, 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ff.InputWarning)
        out = ff.open_dataset(ff.save_dataset(filled, tmp_path / f"out{target}")).load()
    expected = filled.sst.values if target == ".nc" else filled.sst.values.astype(float)
    assert out.sst.dtype == expected.dtype and np.array_equal(out.sst.values, expected, equal_nan=True)


@pytest.mark.parametrize("target", FORMATS)
def test_a_filled_variable_with_a_slash_is_renamed_rather_than_lost(tmp_path, target) -> None:
    record = open_record(gappy_dataset().rename(sst="sea/sst"))
    filled = record.to_dataset(np.full(record.shape, 10.5), np.full(record.shape, 0.1))
    with pytest.warns(UserWarning, match="sea_sst"):
        path = ff.save_dataset(filled, tmp_path / f"out{target}")
    out = ff.open_dataset(path).load()
    assert np.array_equal(out.sea_sst.values, filled["sea/sst"].values, equal_nan=True)
    truth = out.drop_vars(["sea_sst_std", "sea_sst_flag"]).fillna(10.5)
    assert ff.score(out, truth).n.item() == (out.sea_sst_flag == 1).sum()


def test_as_much_as_possible_is_kept_and_the_rest_is_named_in_one_warning(tmp_path) -> None:
    ds = gappy_dataset().assign(odd=("lat", COMPOUND)).assign_coords(MULTI)
    noted(ds, "sst", note="a\0b", nested={"a": [1]}, nothing=None, sure=True)
    with pytest.warns(UserWarning) as caught:
        path = ff.save_dataset(ds, tmp_path / "out.nc")
    (warning,) = caught
    text = str(warning.message)
    assert isinstance(warning.message, ff.InputWarning) and "\n" not in text
    for word in ("'odd'", "'nothing'", "'point'", "out.nc"):
        assert word in text
    out = ff.open_dataset(path).load()
    assert out.sst.attrs["note"] == "ab" and json.loads(out.sst.attrs["nested"]) == {"a": [1]}
    assert out.sst.attrs["sure"] == 1 and "nothing" not in out.sst.attrs and "odd" not in out
    assert out.a.dims == out.b.dims == ("point",)
    assert ds.sst.attrs["sure"] is True and "point" in ds.indexes  # the data set that was given stays as it is


@pytest.mark.parametrize("target", FORMATS)
def test_saving_leaves_the_data_set_as_it_was(tmp_path, target) -> None:
    ds = noted(gappy_dataset().rename(lat="row/lat"), "sst", source=object())
    ds.time.encoding = {"units": SINCE, "dtype": "int64", "chunksizes": (3,)}
    ds.sst.encoding = {"dtype": "int8", "scale_factor": 1e-9, "_FillValue": 0}
    before, encodings = ds.copy(deep=True), {name: dict(ds[name].encoding) for name in ds.variables}
    with pytest.warns(UserWarning):
        ff.save_dataset(ds, tmp_path / f"out{target}")
    assert ds.drop_attrs().identical(before.drop_attrs()) and "source" in ds.sst.attrs
    assert {name: ds[name].encoding for name in ds.variables} == encodings


def test_a_result_is_written_even_without_a_folder_of_temporary_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = ff.save_dataset(gappy_dataset(), tmp_path / "out.nc")
    assert ff.open_dataset(path).load().identical(gappy_dataset())


def test_ordinary_data_are_written_without_a_word(tmp_path) -> None:
    for source in FORMATS:
        ff.save_dataset(gappy_dataset(), tmp_path / f"in{source}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for target in FORMATS:
                ff.save_dataset(ff.open_dataset(tmp_path / f"in{source}"), tmp_path / f"out{source}{target}")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ff.Filler(settings=QUICK).fit(gappy_dataset()).save(tmp_path_factory.mktemp("model") / "m.ff")


def test_the_command_names_what_it_leaves_out_before_it_fills(tmp_path, model, capsys) -> None:
    noted(gappy_dataset(), "sst", source=None).to_zarr(tmp_path / "in.zarr")
    assert exit_code("fill", model, tmp_path / "in.zarr", "-o", tmp_path / "out.nc") == 0
    lines = capsys.readouterr().err.splitlines()
    said = [i for i, line in enumerate(lines) if "'source'" in line]
    assert len(said) == 1 and lines[said[0]].startswith("fieldfill: ")
    assert said[0] < next(i for i, line in enumerate(lines) if line.startswith("filling"))
    assert ff.open_dataset(tmp_path / "out.nc").sst_flag.max() == 3


@pytest.mark.parametrize("target", FORMATS)
def test_the_command_fills_a_file_that_xarray_alone_could_not_write_again(tmp_path, model, target, capsys) -> None:
    path = tmp_path / "in.nc"
    ds = gappy_dataset().fillna(-1)
    noted(ds, "sst", _FillValue=F4(-1), missing_value=F4(-2)).to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        file.create_dataset("odd", data=COMPOUND)
        file["odd"].dims[0].attach_scale(file["lat"])
    assert exit_code("fill", model, path, "-o", tmp_path / f"out{target}") == 0, capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given, out = ff.open_dataset(path).load(), ff.open_dataset(tmp_path / f"out{target}").load()
    seen = np.isfinite(given.sst.values)
    assert seen.any() and not seen.all()
    assert out.sst.values[seen].tobytes() == given.sst.values[seen].tobytes()
