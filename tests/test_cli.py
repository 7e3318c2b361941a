"""The command line, some of it in real processes: what it prints, what it writes, how it fails."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import gappy_dataset, run_fieldfill, run_process
from fieldfill.cli.main import main

FIT = ["--window", "4", "--steps", "3", "--partition", "swap"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    ff.save_dataset(gappy_dataset(), folder / "gappy.nc")
    truth = gappy_dataset()
    truth["sst"] = truth.sst.fillna(10.0).where(truth.lon > 0.1)
    ff.save_dataset(truth, folder / "truth.nc")
    run_process("fit", folder / "gappy.nc", "-o", folder / "m.ff", *FIT)
    run_process("fill", folder / "m.ff", folder / "gappy.nc", "-o", folder / "filled.nc")
    return folder


def test_python_and_command_line_give_the_same_numbers(files) -> None:
    ds = ff.open_dataset(files / "gappy.nc").load()
    here = ff.Filler(window=4, steps=3, partition="swap").fit(ds).fill(ds)
    there = ff.open_dataset(files / "filled.nc").load()
    for name in ("sst", "sst_std", "sst_flag"):
        assert np.array_equal(here[name].values, there[name].values, equal_nan=True)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_filled_file_is_the_same_file_with_the_holes_filled(files, tmp_path, suffix) -> None:
    result = json.loads(
        run_fieldfill("fill", files / "m.ff", files / "gappy.nc", "-o", tmp_path / f"out{suffix}", "--json").stdout
    )
    out, ds = ff.open_dataset(tmp_path / f"out{suffix}").load(), ff.open_dataset(files / "gappy.nc").load()
    seen = np.isfinite(ds.sst.values)
    assert np.array_equal(out.sst.values[seen], ds.sst.values[seen])
    assert out.sst.attrs == ds.sst.attrs | {"ancillary_variables": "sst_std sst_flag"}
    assert sum(result["cells"]["sst"].values()) == ds.sst.size
    assert out.sst_flag.attrs["flag_meanings"].split()[0] == "observed"


def test_members_quantiles_and_the_budget_are_added_on_request(files, tmp_path) -> None:
    options = ["--members", "2", "--budget", "--quantiles", "0.05, 0.95", "--json"]
    result = json.loads(
        run_fieldfill("fill", files / "m.ff", files / "gappy.nc", "-o", tmp_path / "out.nc", *options).stdout
    )
    out, ds = ff.open_dataset(tmp_path / "out.nc").load(), ff.open_dataset(files / "gappy.nc").load()
    seen = np.isfinite(ds.sst.values)
    assert out.sst_members.dims == ("member", *ds.sst.dims) and out.member.attrs["standard_name"] == "realization"
    assert all(np.array_equal(member[seen], ds.sst.values[seen]) for member in out.sst_members.values)
    assert np.isfinite(out.sst_members.values[:, out.sst_flag.values == 1]).all()
    assert sum(result["budget"]["sst"].values()) == pytest.approx(1)
    low, high = (out.sst_quantile.sel(quantile=p).values for p in (0.05, 0.95))
    assert np.array_equal(low < high, out.sst_flag.values == 1) and np.array_equal(low[seen], ds.sst.values[seen])


def test_score_prints_the_contract(files) -> None:
    result = json.loads(run_fieldfill("score", files / "filled.nc", "--truth", files / "truth.nc", "--json").stdout)
    assert set(result["variables"]["sst"]) >= {"mse", "rmse", "mae", "mse_all", "crps", "coverage90", "n"}
    assert "mse" in run_fieldfill("score", files / "filled.nc", "--truth", files / "truth.nc").stdout


def test_check_prints_the_contract_and_exits_by_its_verdict(files) -> None:
    done = run_fieldfill("check", files / "gappy.nc", "--window", "4", "--json", check=None)
    result = json.loads(done.stdout)
    assert set(result) >= {"verdict", "partition", "exposure", "unlearnable_share", "candidates"}
    assert done.returncode == (0 if result["verdict"] == "ok" else 1)


def test_report_is_one_page_with_or_without_truth(files, tmp_path) -> None:
    run_fieldfill("report", files / "filled.nc", "-o", tmp_path / "a.html")
    options = ["--truth", files / "truth.nc", "--model", files / "m.ff", "--json"]
    result = json.loads(run_fieldfill("report", files / "filled.nc", "-o", tmp_path / "b.html", *options).stdout)
    assert result["report"].endswith("b.html")
    assert "held-out" in (tmp_path / "b.html").read_text() and (tmp_path / "a.html").stat().st_size > 10**6


def test_mask_hides_cells_and_keeps_the_rest(files, tmp_path) -> None:
    run_fieldfill(
        "mask",
        files / "truth.nc",
        "--pattern",
        "pixel",
        "--observed",
        "0.5",
        "-o",
        tmp_path / "g.zarr",
        "--seed",
        "3",
    )
    run_fieldfill(
        "mask",
        files / "truth.nc",
        "--pattern",
        "pixel",
        "--observed",
        "0.5",
        "-o",
        tmp_path / "h.nc",
        "--seed",
        "3",
    )
    one, two = ff.open_dataset(tmp_path / "g.zarr").load(), ff.open_dataset(tmp_path / "h.nc").load()
    truth = ff.open_dataset(files / "truth.nc").load()
    assert one.sst.equals(two.sst)
    kept = np.isfinite(one.sst.values)
    assert np.array_equal(one.sst.values[kept], truth.sst.values[kept])
    assert 0.3 < kept[:, :, 1:].mean() < 0.7
    assert json.loads(one.attrs["fieldfill_mask"]) == {
        "pattern": "pixel",
        "observed": 0.5,
        "every": None,
        "seed": 3,
    }


def test_versions_and_help() -> None:
    assert run_fieldfill("--version").stdout == f"{ff.__version__}\n"
    assert "torch" in json.loads(run_fieldfill("versions", "--json").stdout)
    for command in ("demo", "check", "fit", "fill", "score", "mask", "simulate", "report", "versions"):
        assert "Example: fieldfill" in run_fieldfill(command, "--help").stdout


@pytest.fixture(scope="module")
def bad_files(files):
    ds = gappy_dataset()
    ds.assign(sst=ds.sst * np.nan).to_netcdf(files / "empty.nc", engine="h5netcdf")
    ds.assign(sst=ds.sst.where(ds.sst < 11, np.inf)).to_netcdf(files / "inf.nc", engine="h5netcdf")
    ds.isel(lat=slice(0, 7)).to_netcdf(files / "smaller.nc", engine="h5netcdf")
    ds.isel(lat=slice(None, None, 2)).to_netcdf(files / "coarser.nc", engine="h5netcdf")
    ds.expand_dims(level=[10, 20]).to_netcdf(files / "levels.nc", engine="h5netcdf")
    ds.rename(sst="salt").to_netcdf(files / "salt.nc", engine="h5netcdf")
    nowhere = xr.DataArray(np.zeros((9, 12)), dims=("lat", "lon"))
    ds.assign(sea=nowhere).to_netcdf(files / "nowhere.nc", engine="h5netcdf")
    (files / "text.nc").write_text("hello")
    return files


BAD = {
    "missing file": ["fit", "none.nc", "-o", "x.ff"],
    "unreadable file": ["fit", "text.nc", "-o", "x.ff"],
    "unknown variable": ["fit", "gappy.nc", "-o", "x.ff", "--vars", "salt"],
    "several levels": ["fit", "levels.nc", "-o", "x.ff"],
    "unknown level": ["fit", "levels.nc", "-o", "x.ff", "--sel", "level=15"],
    "level without a value": ["check", "levels.nc", "--sel", "level"],
    "each of nothing": ["check", "levels.nc", "--each", "depth"],
    "all NaN": ["fit", "empty.nc", "-o", "x.ff"],
    "infinite": ["fit", "inf.nc", "-o", "x.ff"],
    "nothing in the domain": ["fit", "nowhere.nc", "-o", "x.ff", "--domain", "sea"],
    "long window": ["fit", "gappy.nc", "-o", "x.ff", "--window", "21"],
    "existing model": ["fit", "gappy.nc", "-o", "m.ff"],
    "no folder": ["fit", "gappy.nc", "-o", "nowhere/x.ff"],
    "unknown preset": ["fit", "gappy.nc", "-o", "x.ff", "--preset", "best"],
    "unknown partition": ["check", "gappy.nc", "--partition", "best"],
    "two dims": ["check", "gappy.nc", "--dims", "time,lat"],
    "existing output": ["fill", "m.ff", "gappy.nc", "-o", "filled.nc"],
    "unknown format": ["fill", "m.ff", "gappy.nc", "-o", "x.csv"],
    "not a model": ["fill", "gappy.nc", "gappy.nc", "-o", "x.nc"],
    "no model": ["fill", "none.ff", "gappy.nc", "-o", "x.nc"],
    "other variables": ["fill", "m.ff", "salt.nc", "-o", "x.nc"],
    "other grid": ["fill", "m.ff", "coarser.nc", "-o", "x.nc"],
    "other truth": ["score", "filled.nc", "--truth", "smaller.nc"],
    "unknown pattern": ["mask", "truth.nc", "--pattern", "stripes", "-o", "x.nc"],
    "impossible share": ["mask", "truth.nc", "--pattern", "pixel", "--observed", "1.5", "-o", "x.nc"],
    "unknown setting": ["fit", "gappy.nc", "-o", "x.ff", "--set", "colour=blue"],
    "impossible setting": ["fit", "gappy.nc", "-o", "x.ff", "--set", "training.batch=many"],
    "unknown network": [
        "fit",
        "gappy.nc",
        "-o",
        "x.ff",
        "--window",
        "4",
        "--partition",
        "swap",
        "--set",
        "network=best",
    ],
    "unknown input": ["fit", "gappy.nc", "-o", "x.ff", "--window", "4", "--partition", "swap", "--inputs", "depth"],
    "unknown sampler": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--members", "2", "--sampler", "best"],
    "unknown order": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--members", "2", "--order", "3"],
    "no probability": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--quantiles", "0.05,95"],
    "no number": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--quantiles", "some"],
    "no weight": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--guidance", "much"],
    "no equation": ["fill", "m.ff", "gappy.nc", "-o", "x.nc", "--guidance", "auto"],
    "unknown option": ["fit", "gappy.nc", "-o", "x.ff", "--quick"],
}


def wrong_call(bad_files, case) -> list[str]:
    """The arguments of a wrong call with file names made complete."""
    return [str(bad_files / a) if a.endswith((".nc", ".ff", ".csv")) else a for a in BAD[case]]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(bad_files, case, monkeypatch, capsys) -> None:
    before = sorted(p.name for p in bad_files.iterdir())
    monkeypatch.setattr(sys, "argv", ["fieldfill", *wrong_call(bad_files, case)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 2 and said.out == ""
    assert said.err.startswith("fieldfill: ") and len(said.err.strip().splitlines()) == 1
    assert sorted(p.name for p in bad_files.iterdir() if ".ff.part" not in p.name) == before


@pytest.mark.parametrize("case", ["infinite", "other grid", "unknown option"])
def test_real_processes_fail_the_same_way(bad_files, case) -> None:
    done = run_process(*wrong_call(bad_files, case), check=2)
    assert done.stdout == "" and done.stderr.startswith("fieldfill: ") and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_killed_fit_is_resumed_to_the_same_weights(tmp_path) -> None:
    ff.save_dataset(gappy_dataset(frames=30), tmp_path / "gappy.nc")
    options = ["--window", "4", "--steps", "60", "--partition", "swap", "--seed", "4"]
    command = [
        sys.executable,
        "-m",
        "fieldfill",
        "fit",
        tmp_path / "gappy.nc",
        "-o",
        tmp_path / "killed.ff",
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "killed.ff.part" / "checkpoint.pt"
    for _ in range(1200):
        if checkpoint.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (tmp_path / "killed.ff").exists()
    refused = run_fieldfill("fit", tmp_path / "gappy.nc", "-o", tmp_path / "killed.ff", *options, check=2)
    assert "--resume continues it" in refused.stderr and checkpoint.exists()
    run_fieldfill("fit", tmp_path / "gappy.nc", "-o", tmp_path / "killed.ff", *options, "--resume")
    run_fieldfill("fit", tmp_path / "gappy.nc", "-o", tmp_path / "whole.ff", *options)
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("killed.ff", "whole.ff")]
    assert weights[0] == weights[1]
    assert not checkpoint.parent.exists()
