"""The facade: fit, fill, save, load – and what must be true of every filled data set."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr

import fieldfill as ff
from conftest import QUICK, crops_of, field_of, gappy_dataset, seeded, simulated_dataset
from fieldfill.api import budget_of
from fieldfill.data.record import open_record
from fieldfill.errors import InputError
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.presets import PRESETS
from fieldfill.sampling.contexts import Ensemble, single_step
from fieldfill.sampling.members import Walk
from fieldfill.sampling.solvers import Solver
from fieldfill.seeds import place_stream
from fieldfill.simulate.gaussian_field import GaussianField


def fitted(ds: xr.Dataset, partition: str = "swap", **arguments) -> ff.Filler:
    return ff.Filler(settings=QUICK.model_copy(update={"partition": partition}), **arguments).fit(ds)


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    return fitted(gappy_dataset(names="a,b"))


def with_contexts(filler: ff.Filler, **settings) -> ff.Filler:
    """The same model with a mean over contexts, whatever validation chose."""
    other = ff.Filler(settings=filler.settings)
    other.model_ = replace(filler.model_, ensemble=Ensemble(2, **settings))
    return other


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_observed_cells_are_untouched_and_every_gap_is_filled(dtype) -> None:
    ds = gappy_dataset(dtype=dtype)
    filled = fitted(ds).fill(ds)
    seen = np.isfinite(ds.sst.values)
    assert filled.sst.dtype == dtype
    assert np.array_equal(filled.sst.values[seen].view(np.uint8), ds.sst.values[seen].view(np.uint8))
    assert np.isfinite(filled.sst.values[:, :, 1:]).all() and np.isnan(filled.sst.values[:, :, 0]).all()
    assert (filled.sst_flag.values[:, :, 0] == 3).all() and set(np.unique(filled.sst_flag)) == {0, 1, 3}
    gaps = filled.sst_flag.values == 1
    assert (filled.sst_std.values[gaps] > 0).all() and (filled.sst_std.values[seen] == 0).all()
    assert filled.attrs["history"].splitlines()[1:] == ["made by a test"]


def test_filling_is_a_function_of_model_data_and_seed(filler) -> None:
    ds = gappy_dataset(names="a,b")
    state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    filler = with_contexts(filler)
    first, second, other = filler.fill(ds), filler.fill(ds), filler.fill(ds, seed=5)
    for name in ("a", "b", "a_std", "b_flag"):
        assert first[name].identical(second[name])
    gaps = first.a_flag.values == 1
    assert not np.array_equal(first.a.values[gaps], other.a.values[gaps])
    assert torch.equal(state[0], torch.random.get_rng_state()) and np.array_equal(state[1], np.random.get_state()[1])  # noqa: NPY002


def test_two_fits_with_one_seed_are_bit_identical() -> None:
    ds = gappy_dataset()
    assert fitted(ds).fill(ds).sst.identical(fitted(ds).fill(ds).sst)


def test_a_loaded_model_fills_like_the_one_that_was_saved(filler, tmp_path) -> None:
    ds = gappy_dataset(names="a,b")
    path = filler.save(tmp_path / "m.ff")
    loaded = ff.load(path)
    assert loaded.fill(ds).drop_attrs().identical(filler.fill(ds).drop_attrs())
    assert sorted(p.name for p in path.iterdir()) == ["model.json", "weights.safetensors"]
    with pytest.raises(InputError, match="already exists"):
        filler.save(path)


def test_a_model_fills_data_it_has_not_seen(filler) -> None:
    new = gappy_dataset(names="a,b", frames=11, seed=7)
    filled = filler.fill(new)
    assert filled.sizes["time"] == 11 and np.isfinite(filled.b.values[:, :, 1:]).all()


@pytest.mark.parametrize("partition", ["swap", "pixel", "frame", "block:3x3", "all-observed", "hide-more", "station"])
def test_every_partition_can_be_asked_for_by_name(partition, tmp_path) -> None:
    ds = gappy_dataset()
    filler = fitted(ds, partition)
    assert filler.model_.partition_name == partition
    again = ff.load(filler.save(tmp_path / "m.ff"))
    assert np.isfinite(again.fill(ds).sst.values[:, :, 1:]).all()


def test_samples_dims_in_any_order_and_dataarrays() -> None:
    ds = xr.concat([gappy_dataset(seed=1), gappy_dataset(seed=2)], dim="sample").transpose(
        "lon", "sample", "time", "lat"
    )
    filled = fitted(ds).fill(ds)
    assert filled.sst.dims == ds.sst.dims and filled.sizes["sample"] == 2
    array = gappy_dataset().sst
    assert set(fitted(array).fill(array).data_vars) == {"sst", "sst_std", "sst_flag"}


def test_cells_of_a_given_domain_that_were_never_seen_are_flagged() -> None:
    ds = gappy_dataset()
    filled = fitted(ds, domain=np.ones((9, 12), bool)).fill(ds)
    assert (filled.sst_flag.values[:, :, 0] == 2).all() and np.isfinite(filled.sst.values).all()


def test_masks_may_differ_between_variables() -> None:
    ds = gappy_dataset(names="a,b")
    ds["b"] = ds.b.where(ds.time.dt.day % 3 != 0)
    filled = fitted(ds).fill(ds)
    assert np.isfinite(filled.b.values[:, :, 1:]).all()


def test_members_agree_with_the_observations_and_follow_the_seed(filler) -> None:
    ds = gappy_dataset(names="a,b")
    first, second = (filler.fill(ds, members=3, seed=4) for _ in range(2))
    other = filler.fill(ds, members=3, seed=5)
    plain = filler.fill(ds, seed=4)
    for name in ("a", "b"):
        members = first[f"{name}_members"]
        assert members.dims[0] == "member" and members.sizes["member"] == 3 and members.dtype == ds[name].dtype
        assert first.member.attrs["standard_name"] == "realization"
        seen, gaps = np.isfinite(ds[name].values), first[f"{name}_flag"].values == 1
        assert (members.values[:, seen] == ds[name].values[seen]).all()
        assert np.isfinite(members.values[:, gaps]).all() and np.isnan(members.values[:, :, :, 0]).all()
        assert members.identical(second[f"{name}_members"])
        assert (members.values[:, gaps] != other[f"{name}_members"].values[:, gaps]).mean() > 0.9
        assert (members.values[0, gaps] != members.values[1, gaps]).mean() > 0.9
        assert first[name].equals(plain[name]) and first[f"{name}_std"].identical(plain[f"{name}_std"])


def test_a_sample_does_not_depend_on_what_else_is_filled(filler) -> None:
    """Crops of many samples share a batch, yet a fill of the first sample alone is the same."""
    parts = [gappy_dataset(names="a,b", seed=seed, frames=10) for seed in (1, 2, 3)]
    together = filler.fill(xr.concat(parts, dim="sample"), members=2).isel(sample=0, drop=True)
    alone = filler.fill(parts[0], members=2)
    for name in ("a", "a_std", "b_members"):
        np.testing.assert_allclose(together[name].values, alone[name].values, atol=2e-4)


def test_members_have_the_mean_and_the_spread_that_are_stated(filler) -> None:
    ds = gappy_dataset(names="a,b", frames=16)
    filled = filler.fill(ds, members=60)
    gaps = filled.a_flag.values == 1
    left = (filled.a_members - filled.a).values[:, gaps]
    std = filled.a_std.values[gaps]
    assert (left.mean(0) ** 2).mean() < 0.05 * (std**2).mean()  # 1/60 is Monte-Carlo error
    assert (left**2).mean() == pytest.approx((std**2).mean(), rel=0.25)


def test_members_are_continuous_across_windows() -> None:
    """From frame to frame realisations change by as much where a window takes over as elsewhere."""
    field = GaussianField(size=8, frames=40, memory=0.95, velocity=(0.2, 0.3))
    generator = seeded()
    values = field.simulate(1, generator)[0]
    observed = torch.rand(values.shape, generator=generator) >= 0.9
    crops = crops_of(simulated_dataset(field, values, observed), 8, held=0)
    chain = Chain([Gaussian(field_of(field, steps=40, tolerance=1e-7, frames=8))])
    model = SimpleNamespace(denoiser=SimpleNamespace(chain=chain), domain=torch.ones(1, 8, 8, dtype=torch.bool))
    drawn, square = Walk(model, crops, 0, seed=0).residuals(100, 100)
    change = drawn.diff(dim=2).square().mean((0, 1, 3, 4))
    taken_over = torch.tensor([(frame + 1) % 4 == 2 and frame > 4 for frame in range(39)])
    assert change[taken_over].mean().item() == pytest.approx(change[~taken_over].mean().item(), rel=0.1)
    assert square.mean((0, 2, 3))[10:30].std() < 0.15 * square.mean()
    assert not torch.allclose(drawn[:, :, 8:16], drawn[:, :, 16:24], atol=0.1)


@pytest.mark.parametrize("sampler", ["conditional", "exact", "weighted"])
def test_every_sampler_makes_members(filler, sampler) -> None:
    ds = gappy_dataset(names="a,b", frames=6)
    filled = filler.fill(ds, members=2, sampler=sampler, solver=Solver(4))
    seen, gaps = np.isfinite(ds.a.values), filled.a_flag.values == 1
    assert (filled.a_members.values[:, seen] == ds.a.values[seen]).all()
    assert np.isfinite(filled.a_members.values[:, gaps]).all()
    assert np.abs(filled.a_members.values[0, gaps] - filled.a_members.values[1, gaps]).mean() > 1e-3


def test_a_model_without_the_gaussian_estimator_makes_weighted_members() -> None:
    ds = gappy_dataset(frames=8)
    config = QUICK.model_copy(update={"partition": "swap", "estimators": ("pull-push", "motion")})
    filler = ff.Filler(settings=config).fit(ds)
    members = filler.fill(ds, members=2, solver=Solver(3)).sst_members.values
    assert np.isfinite(members[:, :, :, 1:]).all()
    with pytest.raises(InputError, match="weighted"):
        filler.fill(ds, members=2, sampler="exact")


def test_crops_too_sparse_for_the_density_of_training_are_reported(filler) -> None:
    ds = gappy_dataset(names="a,b", frames=8)
    ds["a"], ds["b"] = (ds[name].where((ds.time.dt.day > 4) | (ds.lat > 48)) for name in ("a", "b"))
    filled = with_contexts(filler, density=0.4).fill(ds)
    assert "; 1 of 2 crops have fewer observations" in filled.attrs["history"]


def test_impossible_members_and_guidance_are_refused(filler) -> None:
    ds = gappy_dataset(names="a,b")
    for arguments, words in [
        ({"members": -1}, "members=-1"),
        ({"members": 1, "sampler": "magic"}, "unknown sampler"),
        ({"guidance": "strong"}, "guidance='strong'"),
        ({"guidance": 1.0}, "no simulator"),
    ]:
        with pytest.raises(InputError, match=words):
            filler.fill(ds, **arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ds: ds.drop_vars("b"), "no variable 'b'"),
        (lambda ds: ds.drop_vars("lat").isel(lat=slice(0, 8)), "fitted on 9 'lat'"),
        (lambda ds: ds.assign_coords(lon=2 * ds.lon), "apart, those that were fitted on"),
        (lambda ds: ds.rename(lat="y"), "'lat'"),
    ],
)
def test_data_that_do_not_fit_the_model_are_refused(filler, change, words) -> None:
    with pytest.raises(InputError, match=words):
        filler.fill(change(gappy_dataset(names="a,b")))


def test_a_broken_or_foreign_model_is_refused(filler, tmp_path) -> None:
    with pytest.raises(InputError, match="no such model"):
        ff.load(tmp_path / "none.ff")
    with pytest.raises(InputError, match="not a fieldfill model"):
        ff.load(tmp_path)
    path = filler.save(tmp_path / "m.ff")
    (path / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="damaged"):
        ff.load(path)
    path = filler.save(tmp_path / "n.ff")
    description = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(InputError, match="format 99"):
        ff.load(path)


def test_wrong_settings_are_refused() -> None:
    ds = gappy_dataset()
    for arguments, words in [
        ({"preset": "huge"}, "unknown preset"),
        ({"partition": "magic"}, "unknown partition"),
        ({"partition": "block"}, "block:3x3"),
        ({"window": 99}, "shorter window"),
        ({"steps": 0}, "steps=0"),
        ({"minutes": -1.0}, "minutes"),
    ]:
        with pytest.raises(InputError, match=words):
            ff.Filler(**arguments).fit(ds)
    with pytest.raises(InputError, match="call fit"):
        ff.Filler().fill(ds)


def test_the_paper_preset_is_the_published_method() -> None:
    paper = PRESETS["paper"]
    assert paper.estimators == () and paper.contexts == 10 and not paper.choose_contexts
    assert paper.keep == (0.7, 0.7) and paper.training.time_power == 1.0


def test_resuming_with_other_settings_is_refused(tmp_path) -> None:
    ds = gappy_dataset()
    config = QUICK.model_copy(update={"partition": "pixel"})
    ff.Filler(settings=config).fit(ds, checkpoint=tmp_path / "m.part")
    with pytest.raises(InputError, match="seed differ"):
        ff.Filler(settings=config, seed=1).fit(ds, checkpoint=tmp_path / "m.part", resume=True)
    with pytest.raises(InputError, match="mean differ"):
        ff.Filler(settings=config).fit(ds + 1, checkpoint=tmp_path / "m.part", resume=True)


def test_check_reports_and_maps(tmp_path) -> None:
    found = ff.check(gappy_dataset(frames=60), window=4)
    result = found.to_dict()
    assert result["verdict"] in ("ok", "partly", "unlearnable")
    assert set(result["exposure"]) >= {"min", "median", "max_over_min"}
    assert result["partition"] in result["candidates"] and 0 <= result["unlearnable_share"] <= 1
    assert found.to_dataset().sst_exposure.dims == ("lat", "lon")
    assert result["partition"] in str(found)


@pytest.mark.slow
def test_the_real_era5_file_is_masked_fitted_and_filled_with_its_metadata(era5, tmp_path) -> None:
    truth = ff.open_dataset(era5).isel(time=slice(0, 60))
    gappy, share = ff.hide(truth, "pixel", 0.2, every=3)
    assert share == pytest.approx(0.2, abs=0.02)
    config = QUICK.model_copy(update={"window": 3, "partition": "pixel"})
    everywhere = np.ones((33, 49), bool)  # 1 % of the cells are never observed in so few windows
    filled = ff.Filler(settings=config, domain=everywhere).fit(gappy).fill(gappy)
    path = ff.save_dataset(filled, tmp_path / "out.nc")
    out = ff.open_dataset(path).load()
    assert out.t2m.attrs == truth.t2m.attrs | {"ancillary_variables": "t2m_std t2m_flag"}
    for name in ("latitude", "longitude", "time", "valid_time"):
        assert out[name].equals(truth[name].load())
    seen = np.isfinite(gappy.t2m.values)
    assert np.array_equal(out.t2m.values[seen], truth.t2m.values[seen]) and np.isfinite(out.t2m.values).all()


def test_the_budget_of_a_fill_is_that_of_its_contexts_and_adds_up_to_its_variance(filler) -> None:
    """One crop, whose contexts are drawn here once more: the variance between them is known without any budget."""
    ds, filler = gappy_dataset(names="a,b", frames=4), with_contexts(filler)
    model, filled = filler.model_, filler.fill(ds, budget=True, seed=3)
    crops = model.crops(open_record(ds, domain=model.domain.numpy()))
    place = (0, 0, 0, 0)
    batch, streams = crops.training([place]), [place_stream(3, *place)]
    parts = batch.x, batch.observed, batch.maps
    found = single_step(model.denoiser, *parts, model.partition, model.ensemble, streams)
    between = (found.between / found.contexts.view(-1, 1, 1, 1, 1)).sqrt().numpy()
    chance = model.normaliser.spread_to_values(between)[0] ** 2
    shares = budget_of(filled)
    for c, name in enumerate(("a", "b")):
        std, budget = filled[f"{name}_std"].values, filled[f"{name}_budget"]
        gaps = filled[f"{name}_flag"].values == 1
        contexts = np.minimum(chance[c], std**2)
        assert contexts[gaps].max() > 0
        np.testing.assert_allclose(budget.sel(part="contexts").values[gaps], contexts[gaps], rtol=1e-3, atol=1e-9)
        np.testing.assert_allclose(budget.sum("part", skipna=False).values, std**2, rtol=1e-4, atol=1e-8)
        assert (budget.values[:, filled[f"{name}_flag"].values == 0] == 0).all()
        assert list(shares[name]) == ["contexts", "information", "rest"]
        assert shares[name]["contexts"] == pytest.approx(contexts[gaps].sum() / (std[gaps] ** 2).sum(), rel=1e-3)
    assert set(shares) == {"a", "b"}
