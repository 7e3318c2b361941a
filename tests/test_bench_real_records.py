"""Real records of the benchmark, made in small: what is hidden, who sees it, which rows come of it."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.ndimage import binary_opening

from fieldfill.bench import rows
from fieldfill.bench.benches import jobs_of
from fieldfill.bench.cases import CASES, SCALES, Data, Unavailable, load
from fieldfill.bench.measuring import metrics
from fieldfill.bench.methods import check_size, learnt, methods_of
from fieldfill.bench.real_records import REAL_FOLDER, REAL_PLACE, REAL_RECORDS
from fieldfill.bench.result_tables import real_table, to_html
from fieldfill.bench.results_page import results_page
from fieldfill.bench.runner import Runner
from fieldfill.bench.summary import Summary
from fieldfill.presets import preset

SMOKE, CPU = SCALES["smoke"], SCALES["cpu"]
REAL = Path(os.environ.get(REAL_FOLDER, Path(__file__).parents[1] / REAL_PLACE))
# Straight tracks in every frame, in the form row = first + slope (column - 10).
TRACKS = ((5, 2.0), (38, -2.0), (2, 0.5), (35, -0.4), (20, 3.0))
# What hidden values are raised by, where a method that saw them would give itself away.
RAISED = 1000.0

# File: frames, rows, columns; names of dimensions; unit of the time axis.
LAYOUTS: dict[str, tuple[tuple[int, int, int], tuple[str, str, str], str]] = {
    "ndvi_mask_study.nc": ((16, 24, 20), ("time", "y", "x"), ""),
    "soil_moisture_swaths.nc": ((40, 12, 14), ("time", "lat", "lon"), "days since 2011-07-11"),
    "co2_swaths.nc": ((15, 12, 20), ("time", "lat", "lon"), "days since 2003-05-01"),
    "sea_level_maps.nc": ((6, 40, 60), ("time", "latitude", "longitude"), "days since 1950-01-01"),
    "sea_level_tracks.nc": ((8, 40, 60), ("time", "lat", "lon"), "days since 2014-05-15"),
    "stations.nc": ((90, 8, 9), ("time", "lat", "lon"), "days since 1990-01-01"),
    "piv_wake.nc": ((4, 48, 70), ("time", "y", "x"), ""),
    "radar_rain.nc": ((12, 32, 32), ("time", "y", "x"), "minutes since 2020-10-31"),
    "one_frame_simulated.nc": ((1, 24, 30), ("time", "lat", "lon"), "days since 2016-08-04"),
    "lake_section.nc": ((400, 1, 8), ("time", "y", "depth"), "hours since 2020-06-01"),
    "coads_climatology.nc": ((4, 24, 32), ("TIME", "COADSY", "COADSX"), "days since 2000-01-01"),
}


def tiny(file: str) -> xr.Dataset:
    """A small record in the layout of a file: smooth fields with the gaps of its kind."""
    (frames, height, width), dims, unit = LAYOUTS[file]
    rng = np.random.default_rng(7)
    t, row, column = np.ogrid[:frames, :height, :width]
    field = 10 + 3 * np.sin(0.4 * column + 0.2 * t) + 2 * np.cos(0.5 * row - 0.1 * t)
    cloud = np.sin(0.6 * column + 0.9 * t) + np.cos(0.5 * row + 0.7 * t) > 0.6
    land = (row < 3) & (column < 4) & (t >= 0)
    some = {
        "ndvi_mask_study.nc": {"ndvi": np.where(rng.random(field.shape) < 0.1, np.nan, field)},
        "soil_moisture_swaths.nc": {"sm": np.where(cloud | land, np.nan, field)},
        "co2_swaths.nc": {"co2": np.where(cloud, np.nan, field)},
        "sea_level_maps.nc": {"adt": np.where(land, np.nan, field)},
        "sea_level_tracks.nc": {"adt": np.where(on_tracks(height, width).any(axis=0) & (t >= 0), field, np.nan)},
        "stations.nc": {name: np.where(rng.random((height, width)) < 0.6, np.nan, field) for name in ("tmax",)},
        "piv_wake.nc": {name: np.where(rng.random(field.shape) < 0.01, np.nan, field) for name in "uv"},
        "radar_rain.nc": {"rain": np.maximum(field - 10, 0)},
        "one_frame_simulated.nc": {"lst": np.where(cloud, np.nan, field), "lst_truth": field},
        "lake_section.nc": {"temp": np.where((t % 90 < 12) & (column > 2), np.nan, field)},
        "coads_climatology.nc": {
            name: np.where(cloud | land, np.nan, field + i) for i, name in enumerate(REAL_RECORDS["coads"].variables)
        },
    }[file]
    if file == "ndvi_mask_study.nc":
        some["ndvi_masked50"] = np.where(cloud, np.nan, some["ndvi"])
    if file == "stations.nc":
        some |= {name: some["tmax"] + shift for name, shift in (("tmin", -5.0), ("tdp", -8.0), ("precip", 1.0))}
        some["tdp"] = np.where(column == 4, np.nan, some["tdp"])
    ds = xr.Dataset({name: (dims, values.astype("float32"), {"units": "K"}) for name, values in some.items()})
    if file == "lake_section.nc":
        ds = ds.isel(y=0).transpose("depth", "time")
    if file == "coads_climatology.nc":
        degrees = (("COADSY", height, "degrees_north"), ("COADSX", width, "degrees_east"))
        ds = ds.assign_coords({dim: (dim, 2.0 * np.arange(size), {"units": units}) for dim, size, units in degrees})
    steps = np.arange(frames) * (3 if unit.startswith("hours") else 1)
    return ds.assign_coords({dims[0]: (dims[0], steps, {"units": unit} if unit else {})})


def on_tracks(height: int, width: int) -> np.ndarray:
    """Cells (tracks, H, W) of the straight tracks."""
    row, column = np.arange(height)[:, None], np.arange(width)
    return np.stack([abs(row - first - slope * (column - 10)) < max(0.5, abs(slope) / 2) for first, slope in TRACKS])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in LAYOUTS:
        tiny(file).to_netcdf(tmp_path / file, engine="h5netcdf")
    monkeypatch.setenv(REAL_FOLDER, str(tmp_path))
    return tmp_path


def loaded(name: str) -> tuple[Data, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The data of a case; what is left and what is hidden of each variable, time first."""
    data = load(CASES[name], CPU, 0, Path("unused"))

    def cells(ds: xr.Dataset) -> dict[str, np.ndarray]:
        times = [dim for dim in ds.dims if str(dim).lower() == "time"]
        return {str(name): value.transpose(*times, ...).notnull().values for name, value in ds.data_vars.items()}

    return data, cells(data.test), cells(data.truth)


def raise_hidden_values(folder: Path, name: str) -> None:
    """Writes the file of a record again with other values at the cells that are hidden."""
    record = REAL_RECORDS[name]
    truth = load(CASES[name], CPU, 0, Path("unused")).truth
    source = xr.load_dataset(folder / record.file, decode_times=False)
    for variable in record.variables:
        hidden = truth[variable].notnull().transpose(*source[variable].dims).values
        source[variable] = source[variable].copy(data=source[variable].values + np.float32(RAISED) * hidden)
    source.to_netcdf(folder / record.file, engine="h5netcdf")


@pytest.mark.parametrize("name", REAL_RECORDS)
def test_observed_cells_are_given_or_hidden_and_hidden_values_are_nowhere_in_what_is_given(
    name: str, folder: Path
) -> None:
    record = REAL_RECORDS[name]
    source = xr.load_dataset(folder / record.file)
    data, left, hidden = loaded(name)
    assert tuple(map(str, data.test.data_vars)) == record.variables and set(data.test.coords) <= set(source.dims)
    for variable in record.variables:
        assert not (left[variable] & hidden[variable]).any() and hidden[variable].any() and left[variable].any()
        both = data.test[variable].fillna(data.truth[variable])
        assert both.dims == source[variable].dims
        np.testing.assert_array_equal(both.values, source[variable].values)
    inside = np.stack([source[variable].notnull().any(str(data.test[variable].dims[0])) for variable in hidden])
    if name not in ("lake", "one-frame"):
        np.testing.assert_array_equal(data.domain, inside)
    raise_hidden_values(folder, name)
    again = load(CASES[name], CPU, 0, Path("unused"))
    assert again.test.identical(data.test) and again.train.identical(data.train)
    assert not again.truth.identical(data.truth)


def test_what_another_variable_lacks_is_hidden(folder: Path) -> None:
    for name, complete, masked in (("ndvi", "ndvi", "ndvi_masked50"), ("one-frame", "lst_truth", "lst")):
        source = xr.load_dataset(folder / REAL_RECORDS[name].file)
        _, _, hidden = loaded(name)
        expected = source[complete].notnull() & source[masked].isnull()
        np.testing.assert_array_equal(hidden[complete], expected.values)


@pytest.mark.parametrize(("name", "shift"), [("soil-moisture", 2), ("co2", 3), ("lake", 240)])
def test_gaps_of_a_later_frame_are_hidden(name: str, shift: int, folder: Path) -> None:
    _, left, hidden = loaded(name)
    (variable,) = REAL_RECORDS[name].variables
    seen = left[variable] | hidden[variable]
    changed = hidden[variable].any(axis=(1, *range(2, seen.ndim)))
    expected = np.stack([frame & ~seen[(t + shift) % len(seen)] for t, frame in enumerate(seen)])
    np.testing.assert_array_equal(hidden[variable][changed], expected[changed])
    possible = expected.any(axis=(1, *range(2, seen.ndim)))
    assert changed.sum() == possible.sum() if name == "lake" else 0.4 < changed.sum() / possible.sum() < 0.95


def test_six_straight_lines_a_day_are_left_of_a_map(folder: Path) -> None:
    _, left, _ = loaded("sea-level-maps")
    # A line of this slope is 3.2 rows high and so 1 or 2 cells wide.
    assert left["adt"].sum(axis=2).max() <= 6 * 2
    assert len({frame.tobytes() for frame in left["adt"]}) == len(left["adt"])


def test_a_track_is_hidden_as_a_whole_or_not_at_all(folder: Path) -> None:
    _, left, hidden = loaded("sea-level-tracks")
    alone = on_tracks(*left["adt"].shape[1:])
    # Where tracks meet, a cell belongs to either of them.
    own = alone & (alone.sum(axis=0) == 1)
    shares = np.array([[frame[track].mean() for track in own] for frame in hidden["adt"]])
    assert ((shares < 0.2) | (shares > 0.8)).all()
    assert 0.1 < (shares > 0.5).mean() < 0.45


def test_a_quarter_of_the_stations_lose_all_variables_for_a_month(folder: Path) -> None:
    source = xr.load_dataset(folder / "stations.nc")
    _, left, hidden = loaded("stations")
    stations = left["tmax"].any(axis=0) | hidden["tmax"].any(axis=0)
    chosen = []
    for month in np.unique(source.time.dt.month):
        days = (source.time.dt.month == month).values
        lost = {name: cells[days] for name, cells in hidden.items()}
        assert all((cells == cells[0]).all() for cells in lost.values())
        assert lost["tmax"][0].sum() == round(0.25 * stations.sum())
        np.testing.assert_array_equal(lost["tmin"], lost["tmax"])
        np.testing.assert_array_equal(lost["tdp"], lost["tmax"] & source.tdp.notnull().any("time").values)
        chosen.append(lost["tmax"][0].tobytes())
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize(("name", "side"), [("piv", 16), ("coads", 8)])
def test_blocks_of_all_variables_are_hidden_together(name: str, side: int, folder: Path) -> None:
    _, left, hidden = loaded(name)
    seen = {variable: left[variable] | cells for variable, cells in hidden.items()}
    for t in range(len(next(iter(hidden.values())))):
        # An observed cell is in a hidden block if any variable is hidden there; what was missing fills the block up.
        lost = np.any([cells[t] for cells in hidden.values()], axis=0)
        given = np.any([cells[t] for cells in left.values()], axis=0)
        assert not (lost & given).any()
        around = np.pad(~given, side, constant_values=True)
        opened = binary_opening(around, np.ones((side, side)))[side:-side, side:-side]
        assert (opened | ~lost).all()
        total = np.any([cells[t] for cells in seen.values()], axis=0).sum()
        assert 0.08 < lost.sum() / total < 0.35


def test_two_opposite_sectors_turn_from_frame_to_frame(folder: Path) -> None:
    _, _, hidden = loaded("radar")
    rain = hidden["rain"]
    assert (abs(rain.mean(axis=(1, 2)) - 0.2) < 0.05).all()
    np.testing.assert_array_equal(rain, rain[:, ::-1, ::-1])
    row, column = np.mgrid[:32, :32] - 15.5
    # Twice the direction is the same for both sectors.
    turned = [np.angle(np.exp(2j * np.arctan2(row, column)[frame]).mean(), deg=True) / 2 for frame in rain]
    # On so coarse a grid the direction is known to a few degrees.
    np.testing.assert_allclose(np.diff(turned) % 180, 25, atol=6)


@pytest.mark.parametrize(
    ("name", "case"),
    [("ndvi", "ndvi50"), ("soil-moisture", "soil"), ("co2", "co2"), ("sea-level-maps", "sea_level")],
)
def test_the_reference_protocol_hides_the_same_cells(
    name: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, source = REAL / "hide.py", REAL / REAL_RECORDS[name].file
    if not (reference.exists() and source.exists()):
        pytest.skip(f"no real records at {REAL}: set {REAL_FOLDER} to their folder")
    spec = importlib.util.spec_from_file_location("reference_protocol", reference)
    assert spec is not None and spec.loader is not None
    protocol = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(protocol)
    protocol.main(case, str(source), str(tmp_path))
    monkeypatch.setenv(REAL_FOLDER, str(REAL))
    data, left, hidden = loaded(name)
    (variable,) = REAL_RECORDS[name].variables
    for file, cells in (("gappy.nc", left), ("truth.nc", hidden)):
        theirs = xr.load_dataset(tmp_path / file, decode_times=False)[variable]
        np.testing.assert_array_equal(theirs.notnull().values, cells[variable])
    np.testing.assert_allclose(data.truth[variable].values, theirs.values, rtol=1e-6)


def test_rows_are_written_scored_at_hidden_cells_and_become_a_table(folder: Path, tmp_path: Path) -> None:
    raise_hidden_values(folder, "radar")
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1)
    wanted = ("climatology", "linear_time", "first_estimate", "fieldfill")
    jobs = [job for job in jobs_of(["real"], SMOKE, case="radar") if job.method in wanted]
    assert runner.run(jobs, [0]) == {"made": 4, "kept": 0, "not available": 0}
    found = {row["method"]: row for row in rows.read(runner.results)}
    assert set(found) == set(wanted)
    for row in found.values():
        rain = row["metrics"]["variables"]["rain"]
        assert abs(rain["rmse"] - RAISED) < 10 and rain["units"] == "K"
        assert abs(rain["rmse_above_zero"] - RAISED) < 10 and rain["rmse_zero"] is None
        assert min(row["fill_seconds"], row["train_seconds"]) >= 0
    ours, first = found["fieldfill"], found["first_estimate"]
    assert ours["first_estimate"] == {"rain": first["metrics"]["variables"]["rain"]["rmse"]}
    assert ours["train_steps"] == first["train_steps"] == SMOKE.steps
    assert [stage["name"] for stage in ours["stages"]][-1] == "network" and len(ours["crop"]) == 3
    assert all({"held_out", "standard_error"} <= set(stage) for stage in ours["stages"])
    assert ours["effective_crops"] > 0 and ours["validation_crops"] > 0
    covered = [ours["metrics"]["variables"]["rain"][key] for key in ("coverage50", "coverage90")]
    assert covered == [0.0, 0.0] and first["metrics"]["variables"]["rain"]["coverage90"] is None
    assert sum(path.suffix == ".ff" for path in runner.cache.rglob("*.ff")) == 1
    _table_of(Summary(found.values()))


def _table_of(found: Summary) -> None:
    table = real_table(found)
    assert table is not None and [line[0] for line in table.lines] == ["radar: rain (K)", "radar: rain, above 0 (K)"]
    assert all(len(line) == len(table.heads) for line in table.lines)
    assert sorted(table.heads[1:-1]) == ["`climatology`", "`fieldfill`", "`first_estimate`", "`linear_time`"]
    assert any(cell.startswith("**") for cell in table.lines[0]) and table.lines[0][-1] == "0% / 0%"
    assert table.markdown() in results_page(found)
    assert "<td><b>" in to_html([table])


def test_a_missing_folder_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REAL_FOLDER, str(tmp_path / "nowhere"))
    said: list[str] = []
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1, log=said.append)
    assert runner.run(jobs_of(["real"], SMOKE, case="lake", method="nearest"), [0])["not available"] == 1
    assert "not available: no file lake_section.nc: set FIELDFILL_REAL" in said[0] and "\n" not in said[0]


def test_slow_methods_are_left_out_of_large_records() -> None:
    with pytest.raises(Unavailable, match=r"oi is left out above 5,000,000 cells .* radar has 9,437,184"):
        check_size("oi", CASES["radar"], 144 * 256 * 256)
    check_size("oi", CASES["co2"], 15 * 150 * 360)
    check_size("linear_time", CASES["radar"], 144 * 256 * 256)
    check_size("oi", CASES["era5-record-pixel1"], 10**9)


def test_real_records_are_filled_as_users_do_and_single_frames_not_in_time() -> None:
    assert learnt("fieldfill", CASES["ndvi"], CPU, 48, None, {}) == preset("fast", minutes=5.0)
    assert learnt("fieldfill", CASES["ndvi"], CPU, 48, 2.0, {}).minutes == 2.0
    assert {"linear_time", "temporal", "eof"}.isdisjoint(methods_of(CASES["one-frame"]))
    jobs = [job.method for job in jobs_of(["real"], CPU, case="lake")]
    assert jobs[-2:] == ["first_estimate", "fieldfill"] and {"eof", "oi", "nearest"} <= set(jobs)


def test_cells_without_a_truth_are_not_scored() -> None:
    flags = np.array([[0, 1, 1, 1]], "int8").reshape(1, 1, 4)
    filled = xr.Dataset()
    for name in "ab":
        filled[name] = (("time", "y", "x"), np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4))
        filled[f"{name}_flag"] = (("time", "y", "x"), flags)
    values = {"a": [np.nan, 0.0, 4.0, np.nan], "b": [5.0, np.nan, np.nan, np.nan]}
    truth = xr.Dataset({name: (("time", "y", "x"), np.reshape(row, (1, 1, 4))) for name, row in values.items()})
    found = metrics(filled, truth, zeros_apart=True)
    assert found["mse_missing"] == pytest.approx((4 + 1) / 2) and found["variance_missing"] == pytest.approx(4.0)
    assert found["share_of_variance"] == pytest.approx(2.5 / 4)
    assert found["variables"]["a"]["rmse_above_zero"] == 1 and found["variables"]["a"]["rmse_zero"] == 2
    assert found["variables"]["b"]["mse"] is None and found["variables"]["b"]["variance_missing"] is None
