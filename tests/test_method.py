"""Every method, ours and the baselines, follows one protocol."""

import numpy as np
import pytest
import xarray as xr
from sklearn.base import clone

import fieldfill as ff
from fieldfill import baselines
from fieldfill.method import Method
from fieldfill.simulate.gaussian_field import GaussianField

FRAMES, ROWS, COLUMNS = 12, 10, 10


def every_method() -> dict[str, Method]:
    """One of each, small enough to fit within seconds."""
    field = GaussianField(size=ROWS)
    plain = [
        baselines.Climatology(),
        baselines.LinearTime(),
        baselines.Nearest(),
        baselines.TemporalConsistency(),
        baselines.Telea(),
        baselines.NavierStokesInpainting(),
        baselines.Biharmonic(),
        baselines.BestInpainting(),
        baselines.EOF(),
        baselines.OptimalInterpolation(window=4, probes=0, steps=4),
        baselines.GaussianOptimum(field=field),
        ff.Filler(window=4, steps=1, seed=3),
    ]
    return {type(method).__name__: method for method in plain}


METHODS = every_method()


def test_every_registered_baseline_is_among_them() -> None:
    assert {kind.__name__ for kind in baselines.BASELINES.values()} | {"Filler"} == set(METHODS)


@pytest.fixture(scope="module")
def gappy() -> xr.Dataset:
    random = np.random.default_rng(0)
    values = np.exp(0.2 * random.normal(size=(FRAMES, ROWS, COLUMNS)).cumsum(0))
    values[random.random(values.shape) < 0.4] = np.nan
    values[0] = np.where(np.isfinite(values[0]), values[0], 1.0)
    return xr.Dataset({"chl": (("time", "y", "x"), values)})


@pytest.mark.parametrize("name", METHODS)
def test_a_clone_has_the_same_parameters_and_has_learnt_nothing(name: str) -> None:
    method = METHODS[name]
    copy = clone(method)
    assert type(copy) is type(method) and copy is not method
    assert repr(copy) == repr(method) and copy.get_params().keys() == method.get_params().keys()
    assert not copy.fitted


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_set_by_name_and_unknown_ones_are_refused(name: str) -> None:
    copy = clone(METHODS[name])
    assert copy.set_params(variables=("chl",)) is copy and copy.variables == ("chl",)
    with pytest.raises(ff.InputError, match="no parameter 'vrbls'"):
        copy.set_params(vrbls=("chl",))


@pytest.mark.parametrize("name", METHODS)
def test_the_repr_names_what_differs_from_the_defaults(name: str) -> None:
    copy = clone(METHODS[name]).set_params(log=("chl",))
    assert repr(copy).startswith(f"{type(copy).__name__}(") and "log=('chl',)" in repr(copy)
    assert "domain" not in repr(copy) and "candidates" not in repr(copy)
    copy.set_params(domain=np.ones((ROWS, COLUMNS), bool))
    assert f"domain=<ndarray ({ROWS}, {COLUMNS})>" in repr(copy)


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_given_by_keyword_only(name: str) -> None:
    with pytest.raises(TypeError):
        type(METHODS[name])(("chl",))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "GaussianOptimum"])
def test_fit_returns_the_method_and_a_fill_in_logarithms_is_positive(name: str, gappy: xr.Dataset) -> None:
    method = clone(METHODS[name]).set_params(log=("chl",))
    assert "not fitted yet" in method._repr_html_()
    assert method.fit(gappy) is method and method.fitted
    assert "(fitted)" in method._repr_html_() and "<script" not in method._repr_html_()
    summary = method.summary()
    assert summary["variables"] == ["chl"] and all(key in method._repr_html_() for key in summary)
    if name in ("EOF", "BestInpainting", "OptimalInterpolation"):
        assert summary["held_out"] > 0
    filled = method.fill(gappy).chl
    seen = np.isfinite(gappy.chl.values)
    assert (filled.values > 0).all() and np.array_equal(filled.values[seen], gappy.chl.values[seen])


def test_text_of_the_user_is_escaped_in_the_table() -> None:
    table = baselines.Climatology(variables=("<img src=x onerror=alert(1)>",))._repr_html_()
    assert "<img" not in table and "&lt;img" in table


@pytest.mark.parametrize(
    "given",
    [{"window": 4}, {"crop": 16}, {"preset": "fast"}, {"steps": 3}, {"log": ("chl",)}, {"inputs": ("coordinates",)}],
)
def test_arguments_beside_complete_settings_are_refused(given: dict) -> None:
    with pytest.raises(ff.InputError, match=f"both settings and {next(iter(given))}"):
        ff.Filler(settings=ff.Settings(), **given)


@pytest.mark.parametrize(
    "given", [{"network": "foo"}, {"estimators": ("gausian",)}, {"prediction": "x"}, {"partition": "blok:3x3"}]
)
def test_names_in_settings_are_checked_when_they_are_given(given: dict) -> None:
    with pytest.raises(ValueError, match="unknown"):
        ff.Settings(**given)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert ff.__version__ == version("fieldfill")


def test_a_loaded_filler_fits_again_to_the_same_model(gappy: xr.Dataset, tmp_path) -> None:
    domain = np.ones((ROWS, COLUMNS), bool)
    domain[0] = False
    first = ff.Filler(window=4, steps=2, seed=5, domain=domain).fit(gappy)
    again = ff.load(first.save(tmp_path / "m.ff"))
    assert again.summary() == first.summary()
    xr.testing.assert_identical(clone(again).fit(gappy).fill(gappy).drop_attrs(), first.fill(gappy).drop_attrs())


def test_check_audits_what_fit_sees(gappy: xr.Dataset) -> None:
    audit = ff.check(gappy, window=4, log=["chl"], seed=7)
    model = ff.Filler(window=4, log=("chl",), steps=1, seed=7).fit(gappy).model_
    assert audit.partition == model.partition_name
    np.testing.assert_array_equal(audit.audit.per_cell.numpy(), model.exposure.numpy())


def test_a_summary_has_stages_with_errors_and_standard_errors(gappy: xr.Dataset) -> None:
    found = ff.Filler(window=4, steps=1).fit(gappy).summary()
    assert {stage["name"] for stage in found["stages"]} >= {"gaussian", "motion", "neighbourhood", "network"}
    assert all(stage["held_out"] > 0 for stage in found["stages"])
    assert found["stages"][-1]["standard_error"] > 0 and found["validation_crops"] > 1
