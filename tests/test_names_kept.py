"""What is the user's stays the user's: files, observations, names; what is an earlier fill's stays a fill."""

import hashlib
import json
import os
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK, exit_code, gappy_dataset
from fieldfill.api import budget_of
from fieldfill.baselines import Climatology
from fieldfill.data.flags import FLAGS
from fieldfill.data.record import open_record
from fieldfill.errors import InputError

DIMS = ("time", "lat", "lon")
EVERYTHING = {"members": 2, "budget": True, "quantiles": [0.05, 0.95]}
# Taking the values of an earlier fill for missing is worth a warning, which is not what most tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:values of")


def digest(path: Path) -> dict[str, str]:
    """Contents of a file, or of all files of a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    return ff.Filler(settings=QUICK).fit(gappy_dataset())


@pytest.fixture(scope="module")
def filled(filler) -> xr.Dataset:
    return filler.fill(gappy_dataset(), **EVERYTHING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, filler, filled) -> Path:
    """A model, and a gappy and a filled record in both formats, with other names for the same files."""
    tmp_path = tmp_path_factory.mktemp("files")
    filler.save(tmp_path / "m.ff")
    for suffix in (".nc", ".zarr"):
        ff.save_dataset(gappy_dataset(), tmp_path / f"gappy{suffix}")
        ff.save_dataset(filled, tmp_path / f"filled{suffix}")
    (tmp_path / "sub").mkdir()
    for name in ("gappy", "filled"):
        (tmp_path / f"{name}_link.nc").symlink_to(tmp_path / f"{name}.nc")
        (tmp_path / f"{name}_link.zarr").symlink_to(tmp_path / f"{name}.zarr")
        os.link(tmp_path / f"{name}.nc", tmp_path / f"{name}_hard.nc")
    return tmp_path


SAME = {
    "fill, same file": "fill m.ff gappy.nc -o gappy.nc",
    "fill, same store": "fill m.ff gappy.zarr -o gappy.zarr",
    "fill, roundabout": "fill m.ff gappy.nc -o sub/../gappy.nc",
    "fill, to a symbolic link": "fill m.ff gappy.nc -o gappy_link.nc",
    "fill, from a symbolic link": "fill m.ff gappy_link.nc -o gappy.nc",
    "fill, link to a store": "fill m.ff gappy_link.zarr -o gappy.zarr",
    "fill, hard link": "fill m.ff gappy.nc -o gappy_hard.nc",
    "fill, inside the store": "fill m.ff gappy.zarr -o gappy.zarr/out.nc",
    "fill, inside the store of a link": "fill m.ff gappy_link.zarr -o gappy.zarr/out.zarr",
    "fill, inside the model": "fill m.ff gappy.nc -o m.ff/out.nc",
    "mask, same file": "mask gappy.nc --pattern pixel -o gappy.nc",
    "mask, hard link": "mask gappy.nc --pattern pixel -o gappy_hard.nc",
    "check, same file": "check gappy.nc --window 4 -o gappy.nc",
    "check, symbolic link": "check gappy.nc --window 4 -o gappy_link.nc",
    "report, same file": "report filled.nc -o filled.nc",
    "report, the truth": "report filled.nc --truth gappy.nc -o gappy_link.nc",
    "report, inside the model": "report filled.nc --model m.ff -o m.ff/report.html",
    "report, the model": "report filled.nc --model m.ff -o m.ff",
    "fit, same store": "fit gappy.zarr -o gappy.zarr --window 4 --steps 1",
    "fit, same file": "fit gappy.nc -o gappy_hard.nc --window 4 --steps 1",
    "fit, folder of the data": "fit sub/../gappy.nc -o . --window 4 --steps 1",
}


@pytest.mark.parametrize("case", SAME)
def test_an_output_that_is_an_input_is_refused_and_the_input_stays(folder, case, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    before = digest(folder)
    assert exit_code(*SAME[case].split(), "--overwrite") == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("fieldfill: ") and len(said.err.strip().splitlines()) == 1
    assert "choose another" in said.err
    assert digest(folder) == before


def test_an_equal_output_is_refused_before_overwriting_is_offered(folder, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert exit_code("fill", "m.ff", "gappy.nc", "-o", "gappy.nc") == 2
    assert "--overwrite" not in capsys.readouterr().err


def same_numbers(one: xr.Dataset, two: xr.Dataset) -> bool:
    return set(one.variables) == set(two.variables) and all(
        np.array_equal(one[name].values, two[name].values, equal_nan=one[name].dtype.kind == "f")
        for name in one.variables
    )


def test_a_second_fill_of_a_filled_record_is_the_same_as_the_first(filler, filled) -> None:
    again = filler.fill(filled, **EVERYTHING)
    assert same_numbers(again, filled)
    seen = np.isfinite(gappy_dataset().sst.values)
    assert again.sst.values[seen].tobytes() == gappy_dataset().sst.values[seen].tobytes()
    assert (again.sst_flag.values == 1).any()


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_filled_values_stay_filled_through_a_chain_of_files(folder, tmp_path, suffix, capsys) -> None:
    files = [folder / f"gappy{suffix}", tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"]
    for given, out in pairwise(files):
        assert exit_code("fill", folder / "m.ff", given, "-o", out) == 0
    one, two = (ff.open_dataset(file).load() for file in files[1:])
    assert same_numbers(one, two)
    assert "sst_flag marks as filled" in capsys.readouterr().err


def test_a_model_learns_the_same_from_a_filled_record_as_from_the_gappy_one(filler, filled) -> None:
    again = ff.Filler(settings=QUICK).fit(filled)
    assert same_numbers(again.fill(gappy_dataset()), filler.fill(gappy_dataset()))
    first, second = (ff.check(ds, window=4, partition="swap").to_dict() for ds in (gappy_dataset(), filled))
    assert first == second


def test_baselines_do_not_learn_from_filled_values_either(filled) -> None:
    ds = gappy_dataset()
    one, two = (Climatology().fit(given).fill(given) for given in (ds, filled))
    assert same_numbers(one, two)


def test_cells_without_support_are_no_observations(filler) -> None:
    everywhere = ff.Filler(settings=QUICK, domain=np.ones((9, 12), bool)).fit(gappy_dataset())
    first = everywhere.fill(gappy_dataset())
    assert (first.sst_flag.values == 2).any()
    assert same_numbers(everywhere.fill(first), first)
    record = open_record(first)
    assert np.array_equal(record.arrays()[1][0, 0], np.isfinite(gappy_dataset().sst.values))


def test_a_lazily_opened_fill_is_honoured_too(folder, filler, filled, monkeypatch) -> None:
    monkeypatch.setattr("fieldfill.data.record.IN_MEMORY_BYTES", 0)
    assert same_numbers(filler.fill(ff.open_dataset(folder / "filled.zarr"), **EVERYTHING), filled)


def test_the_history_names_what_was_replaced_and_the_data_given_stay_as_they_are(filler, filled) -> None:
    before = filled.copy(deep=True)
    with pytest.warns(UserWarning, match="sst_flag marks as filled") as caught:
        again = filler.fill(filled)
    assert isinstance(caught[0].message, ff.InputWarning)
    xr.testing.assert_identical(filled, before)
    lines = again.attrs["history"].splitlines()
    assert len(lines) == 3 and "replaces sst_std, sst_flag" in lines[0]
    assert set(again.variables) == {"sst", "sst_std", "sst_flag", *DIMS}, "a realisation of the old fill is left"


def test_a_fill_with_another_number_of_members_replaces_the_old_members(filler, filled) -> None:
    again = filler.fill(filled, members=3, quantiles=[0.5])
    assert again.sizes["member"] == 3 and again["quantile"].values.tolist() == [0.5]


def test_without_its_flag_a_filled_value_is_an_observation_again(filler, filled) -> None:
    again = filler.fill(filled.drop_vars("sst_flag"))
    assert set(np.unique(again.sst_flag)) == {0, 3}


FOREIGN = {
    "sst_std": lambda ds: ds.assign(sst_std=(DIMS, np.full((20, 9, 12), 0.3, "f4"), {"long_name": "retrieval error"})),
    "sst_flag": lambda ds: ds.assign(
        sst_flag=(DIMS, np.ones((20, 9, 12), "i1"), {"flag_values": [0, 1], "flag_meanings": "bad good"})
    ),
    "sst_members": lambda ds: ds.assign(sst_members=(("n", *DIMS), np.ones((2, 20, 9, 12)))),
    "sst_quantile": lambda ds: ds.assign(sst_quantile=("lat", np.ones(9))),
    "sst_budget": lambda ds: ds.assign(sst_budget=7.0),
    "member": lambda ds: ds.assign_coords(member=("member", [3, 4])).assign(forecast=("member", [1.0, 2.0])),
    "quantile": lambda ds: ds.assign_coords(quantile=0.5),
    "part": lambda ds: ds.assign(shape=("part", [1.0, 2.0, 3.0])),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_names_of_the_user_are_refused_with_the_remedy_and_kept_with_it(filler, filled, name) -> None:
    ds = FOREIGN[name](gappy_dataset())
    with pytest.raises(InputError, match=f"'{name}'.*--suffix") as caught:
        filler.fill(ds, **EVERYTHING)
    assert "\n" not in str(caught.value)
    out = filler.fill(ds, suffix="_ff", **EVERYTHING)
    for kept in set(ds.variables) - {"sst"}:
        xr.testing.assert_identical(out[kept].variable, ds[kept].variable)
    for kind in ("std", "flag", "members", "quantile", "budget"):
        assert np.array_equal(out[f"sst_ff_{kind}"].values, filled[f"sst_{kind}"].values, equal_nan=kind != "flag")
    assert np.array_equal(out.sst.values, filled.sst.values, equal_nan=True)


def test_a_name_that_is_not_needed_is_not_in_the_way(filler) -> None:
    ds = FOREIGN["member"](FOREIGN["sst_members"](gappy_dataset()))
    out = filler.fill(ds)
    assert out.sst_members.identical(ds.sst_members) and out.forecast.identical(ds.forecast)


def test_a_foreign_flag_does_not_hide_observations(filler, filled) -> None:
    ds = FOREIGN["sst_flag"](gappy_dataset())
    assert open_record(ds).arrays()[1].sum() == np.isfinite(ds.sst.values).sum()
    with pytest.raises(InputError, match="'sst_flag'"):
        Climatology().fit(ds).fill(ds)


ODD_FLAGS = {
    "without meanings, on a map": (("lat", "lon"), np.ones((9, 12), "i1")),
    "without meanings, of text": (DIMS, np.full((20, 9, 12), "good")),
    "with other meanings": (DIMS, np.ones((20, 9, 12), "i1"), {"flag_meanings": "bad good", "flag_values": [0, 1]}),
    "with our values only": (DIMS, np.ones((20, 9, 12), "i1"), {"flag_values": [0, 1, 2, 3]}),
    "with our meanings only": (DIMS, np.ones((20, 9, 12), "i1"), {"flag_meanings": " ".join(FLAGS)}),
}


@pytest.mark.parametrize("kind", ODD_FLAGS)
def test_flags_of_other_variables_pass_through_whatever_they_mean(filler, tmp_path, kind) -> None:
    chlorophyll = (("time", "lat", "lon"), np.full((20, 9, 12), 1.25))
    ds = gappy_dataset().assign(chl=chlorophyll, chl_flag=ODD_FLAGS[kind], sst_flag=ODD_FLAGS[kind])
    ds.chl.encoding = {"dtype": "int16", "scale_factor": 1.0, "_FillValue": np.int16(-1)}
    ds[5] = ("lat", np.arange(9.0))
    assert open_record(ds, ["sst"]).arrays()[1].sum() == np.isfinite(ds.sst.values).sum()
    out = filler.fill(ds, suffix="_ff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = ff.open_dataset(ff.save_dataset(out, tmp_path / "out.nc")).load()
    assert (again.chl == 1.25).all() and (again.chl_flag.values == ds.chl_flag.values).all()
    assert ff.score(again, gappy_dataset().fillna(9.0), ["sst"]).n.item() == (again.sst_ff_flag == 1).sum()


@pytest.mark.parametrize("suffix", ["a b", "/x", "\0", 3])
def test_an_impossible_suffix_is_refused(filler, suffix) -> None:
    with pytest.raises(InputError, match="suffix"):
        filler.fill(gappy_dataset(), suffix=suffix)


def test_the_filled_variable_names_what_belongs_to_it(filler, filled) -> None:
    expected = "sst_std sst_quantile sst_flag sst_members sst_budget"
    assert sorted(filled.sst.attrs["ancillary_variables"].split()) == sorted(expected.split())
    ds = gappy_dataset().assign(quality=(DIMS, np.ones((20, 9, 12), "i1")))
    ds.sst.attrs["ancillary_variables"] = "quality"
    once = filler.fill(ds)
    assert once.sst.attrs["ancillary_variables"] == "quality sst_std sst_flag"
    assert filler.fill(once, suffix="_x").sst.attrs["ancillary_variables"] == "quality sst_x_std sst_x_flag"
    assert ds.sst.attrs["ancillary_variables"] == "quality"


def test_a_fill_with_another_suffix_replaces_the_earlier_fill(filler, filled) -> None:
    again = filler.fill(filled, suffix="_x")
    assert set(again.variables) == {"sst", "sst_x_std", "sst_x_flag", *DIMS}
    assert np.array_equal(again.sst.values, filled.sst.values, equal_nan=True)
    assert same_numbers(filler.fill(again), filler.fill(gappy_dataset()))


@pytest.fixture(scope="module")
def crowded(folder) -> Path:
    """A file in which every name that a fill would choose is taken."""
    ds = gappy_dataset()
    for change in FOREIGN.values():
        ds = change(ds)
    ds.sst.attrs["ancillary_variables"] = "sst_std sst_flag"
    ff.save_dataset(ds, folder / "crowded.nc")
    return folder


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_scores_and_reports_find_a_fill_with_a_suffix(crowded, tmp_path, suffix, capsys) -> None:
    options = ["--members", 2, "--budget", "--quantiles", "0.05,0.95", "--json"]
    assert exit_code("fill", crowded / "m.ff", crowded / "crowded.nc", "-o", tmp_path / "x.nc", *options) == 2
    assert "--suffix" in capsys.readouterr().err
    out, plain = tmp_path / f"out{suffix}", tmp_path / f"plain{suffix}"
    assert exit_code("fill", crowded / "m.ff", crowded / "crowded.nc", "-o", out, "--suffix", "_ff", *options) == 0
    one = json.loads(capsys.readouterr().out)
    assert exit_code("fill", crowded / "m.ff", crowded / "gappy.nc", "-o", plain, *options) == 0
    two = json.loads(capsys.readouterr().out)
    assert one["cells"] == two["cells"] and one["budget"] == two["budget"]
    truth = gappy_dataset()
    ff.save_dataset(truth.assign(sst=truth.sst.fillna(10.0).where(truth.lon > 0.1)), tmp_path / "truth.nc")
    scores = []
    for path in (out, plain):
        assert exit_code("score", path, "--truth", tmp_path / "truth.nc", "--json") == 0
        scores.append(json.loads(capsys.readouterr().out))
        page = path.with_suffix(".html")
        assert exit_code("report", path, "--truth", tmp_path / "truth.nc", "-o", page, "--json") == 0
        capsys.readouterr()
    assert scores[0] == scores[1] and set(scores[0]["variables"]) == {"sst"}
    assert scores[0]["variables"]["sst"]["crps_ensemble"] > 0
    pages = [path.with_suffix(".html").read_text().split('id="figures"')[1] for path in (out, plain)]
    assert pages[0] == pages[1]


def test_a_renamed_variable_still_has_its_flag_and_spread(filled) -> None:
    truth = gappy_dataset().fillna(10.0)
    before = ff.score(filled, truth)
    after = ff.score(filled.rename(sst="temperature"), truth.rename(sst="temperature"))
    assert before.drop_vars("variable").identical(after.drop_vars("variable"))
    assert budget_of(filled.rename(sst="temperature"))["temperature"] == budget_of(filled)["sst"]


def test_a_report_on_a_stretch_without_observations_is_written(filler, tmp_path) -> None:
    ds = gappy_dataset()
    ds["sst"] = ds.sst.where(ds.time.dt.day > 5)
    ff.save_dataset(filler.fill(ds).isel(time=slice(0, 4)), tmp_path / "part.nc")
    assert exit_code("report", tmp_path / "part.nc", "-o", tmp_path / "part.html") == 0


SEASON_LIKE = ("day_of_year_sin", "day_of_year_cos_std", "day_of_year_sine")


@pytest.fixture(scope="module")
def seasonal() -> xr.Dataset:
    rng = np.random.default_rng(0)
    own = {name: (("lat", "lon"), rng.random((9, 12))) for name in SEASON_LIKE}
    return gappy_dataset().assign(own)


@pytest.fixture(scope="module")
def season_filler(seasonal) -> ff.Filler:
    return ff.Filler(settings=QUICK.model_copy(update={"inputs": ("day-of-year",)})).fit(seasonal)


def test_the_season_as_an_input_leaves_the_names_of_the_user_alone(seasonal, season_filler) -> None:
    out = season_filler.fill(seasonal)
    for name in SEASON_LIKE:
        assert out[name].identical(seasonal[name])
    assert set(out.data_vars) == {"sst", "sst_std", "sst_flag", *SEASON_LIKE}
    without = season_filler.fill(gappy_dataset())
    assert np.array_equal(out.sst.values, without.sst.values, equal_nan=True)
    assert "day_of_year" not in out.attrs["history"] and "sst" in out.attrs["history"]


def test_a_variable_to_fill_may_be_called_like_the_season() -> None:
    ds = gappy_dataset(names="sst,day_of_year_sin")
    out = ff.Filler(settings=QUICK.model_copy(update={"inputs": ("day-of-year",)})).fit(ds).fill(ds)
    for name in ds.data_vars:
        seen = np.isfinite(ds[name].values)
        assert np.array_equal(out[name].values[seen], ds[name].values[seen])
        assert (out[f"{name}_flag"].values == 1).any()


def test_the_command_fills_with_the_season(seasonal, season_filler, tmp_path, capsys) -> None:
    season_filler.save(tmp_path / "m.ff")
    ff.save_dataset(seasonal, tmp_path / "in.nc")
    assert exit_code("fill", tmp_path / "m.ff", tmp_path / "in.nc", "-o", tmp_path / "out.nc", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)["cells"]) == {"sst"}


@pytest.mark.parametrize("given", [False, True])
def test_observations_where_a_model_found_no_domain_stay(filler, tmp_path, given) -> None:
    """The first column was never observed when the model was fitted; a later record has values there."""
    domain = np.isfinite(gappy_dataset().sst.values).any(0) if given else None
    fitted = ff.Filler(settings=QUICK, domain=domain).fit(gappy_dataset()) if given else filler
    later = gappy_dataset(seed=1)
    later.sst[3:6, 2, 0] = [12.5, np.nan, 13.5]
    fitted.save(tmp_path / "m.ff")
    for model in (fitted, ff.load(tmp_path / "m.ff")):
        out = model.fill(later, members=1).isel(time=slice(3, 6), lat=2, lon=0)
        if given:  # where the user says that there is no field, there is none
            assert out.sst.isnull().all() and (out.sst_flag == 3).all()
            continue
        assert out.sst.values[[0, 2]].tolist() == [12.5, 13.5] and np.isnan(out.sst[1])
        assert out.sst_flag.values.tolist() == [0, 3, 0]
        assert out.sst_std.values[[0, 2]].tolist() == [0, 0] and out.sst_members.values[0, 2] == 13.5


def test_no_warning_comes_with_an_ordinary_fill(filler) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        filler.fill(gappy_dataset())
