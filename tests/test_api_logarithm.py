"""Variables that are learnt in their logarithm: as if the logarithm were filled, but in the units of the file."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import lognorm, norm

import fieldfill as ff
from conftest import QUICK, gappy_dataset, run_fieldfill
from fieldfill.data.record import open_record
from fieldfill.errors import InputError
from fieldfill.simulate import Advection
from fieldfill.simulate.store import write

PROBABILITIES = [0.05, 0.5, 0.95]


def chlorophyll(dtype: str = "float64") -> xr.Dataset:
    """Chlorophyll over two decades beside a temperature, both with gaps and land."""
    ds = gappy_dataset(names="chl,sst", dtype="float64")
    ds["chl"] = (np.exp(ds.chl - 11)).astype(dtype).assign_attrs(units="mg m-3", standard_name="chlorophyll")
    return ds


@pytest.fixture(scope="module")
def pair() -> tuple[ff.Filler, xr.Dataset, xr.Dataset]:
    """A model of the logarithm, its fill, and the fill of a file that holds the logarithm."""
    ds, settings = chlorophyll(), QUICK
    filler = ff.Filler(settings=settings.model_copy(update={"log": ("chl",)})).fit(ds)
    plain = ff.Filler(settings=settings).fit(ds.assign(chl=np.log(ds.chl)))
    logged = plain.fill(ds.assign(chl=np.log(ds.chl)), members=2, budget=True, quantiles=PROBABILITIES)
    return filler, filler.fill(ds, members=2, budget=True, quantiles=PROBABILITIES), logged


def test_it_is_the_fill_of_the_logarithm_brought_back(pair) -> None:
    _, filled, logged = pair
    ds, gaps = chlorophyll(), filled.chl_flag.values == 1
    for name in ("chl", "chl_quantile", "chl_members"):
        np.testing.assert_allclose(filled[name].values, np.exp(logged[name].values), rtol=1e-5)
        assert (filled[name].values[..., gaps] > 0).all()
    seen = np.isfinite(ds.chl.values)
    assert np.array_equal(filled.chl.values[seen], ds.chl.values[seen])
    for name in ("sst", "sst_std", "sst_quantile", "sst_members", "sst_budget", "chl_flag"):
        np.testing.assert_array_equal(filled[name].values, logged[name].values)
    assert filled.chl.attrs.items() >= ds.chl.attrs.items() and filled.chl_std.attrs["units"] == "mg m-3"
    assert "chl (in its logarithm), sst" in filled.attrs["history"]


def test_spread_and_quantiles_are_those_of_a_log_normal_law(pair) -> None:
    filler, filled, logged = pair
    gaps = filled.chl_flag.values == 1
    m, s = logged.chl.values[gaps], logged.chl_std.values[gaps].astype(float)
    law = lognorm(s=s, scale=np.exp(m))
    np.testing.assert_allclose(filled.chl_std.values[gaps], law.std(), rtol=1e-4)
    np.testing.assert_allclose(filled.chl_budget.sum("part").values[gaps], law.var(), rtol=1e-3)
    assert (filled.chl_std.values[np.isfinite(chlorophyll().chl.values)] == 0).all()
    for c, p in enumerate(PROBABILITIES):
        as_normal = norm.cdf(filler.model_.spread.steps(p)[0])  # the tails of errors need not be normal
        np.testing.assert_allclose(filled.chl_quantile.values[c][gaps], law.ppf(as_normal), rtol=1e-4)


def test_a_saved_model_knows_it_and_keeps_the_type_of_the_file(pair, tmp_path) -> None:
    filler, filled, _ = pair
    again = ff.load(filler.save(tmp_path / "m.ff"))
    assert again.model_.config.log == ("chl",)
    assert again.fill(chlorophyll(), members=2, budget=True, quantiles=PROBABILITIES).equals(filled)
    single = again.fill(chlorophyll("float32"))
    assert single.chl.dtype == "float32"
    np.testing.assert_allclose(single.chl.values, filled.chl.values, rtol=1e-4)


def test_only_positive_values_of_variables_that_are_filled_have_a_logarithm(pair) -> None:
    ds = chlorophyll()
    ds.chl[3, 2, 5] = 0.0
    with pytest.raises(
        InputError, match="'chl' has values without a logarithm, such as 0, the first at frame 3, row 2"
    ):
        pair[0].fill(ds)
    with pytest.raises(InputError, match="log: 'CHL' is none of the variables to fill"):
        open_record(chlorophyll(), log=["CHL"])
    with pytest.raises(InputError, match="log: 'sst' is none"):
        ff.Filler(variables=["chl"], log=["sst"]).fit(chlorophyll())


def test_an_equation_is_not_one_of_the_logarithm(tmp_path) -> None:
    write(Advection(size=8, frames=6, interval=0.04), tmp_path / "a.zarr", samples=2, seed=0)
    ds = np.exp(0.1 * ff.open_dataset(tmp_path / "a.zarr")).assign_attrs(ff.open_dataset(tmp_path / "a.zarr").attrs)
    gappy, _ = ff.hide(ds, "pixel", 0.5)
    filler = ff.Filler(window=3, steps=1, log=["u"], domain=np.ones((8, 8))).fit(gappy)
    with pytest.raises(
        InputError, match="guidance: the equation does not hold for the logarithm of 'u'; leave guidance out"
    ):
        filler.fill(gappy, guidance=0.1)


def test_on_the_command_line(tmp_path) -> None:
    chl, model, filled = (tmp_path / name for name in ("chl.nc", "chl.ff", "filled.nc"))
    ff.save_dataset(chlorophyll("float32"), chl)
    run_fieldfill("fit", chl, "-o", model, "--log", "chl", "--window", 4, "--steps", 2, "--partition", "swap")
    run_fieldfill("fill", model, chl, "-o", filled)
    assert (ff.open_dataset(filled).chl.values[:, :, 1:] > 0).all()
    run_fieldfill("report", filled, "--model", model, "-o", tmp_path / "report.html")
    ff.save_dataset(chlorophyll() - 0.3, tmp_path / "negative.nc")
    message = run_fieldfill("fit", tmp_path / "negative.nc", "-o", tmp_path / "bad.ff", "--log", "chl", check=2).stderr
    assert "'chl' has values without a logarithm" in message and message.count("\n") == 1
    assert not (tmp_path / "bad.ff").exists()
