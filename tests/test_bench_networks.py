"""Networks other than the default one train and fill on every data set of the benchmark, in small."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from fieldfill import Filler
from fieldfill.bench.cases import CASES, DATA, SCALES, Unavailable, load
from fieldfill.bench.methods import learnt

SMOKE = SCALES["smoke"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.mark.parametrize(("network", "data"), zip(cycle(["fno", "space-time-unet"]), DATA))
def test_other_networks_train_and_fill_on_every_data_set(network: str, data: str, cache: Path) -> None:
    case = next(case for case in CASES.values() if case.data == data and not case.record)
    try:
        given = load(case, SMOKE, 0, cache)
    except Unavailable as reason:
        pytest.skip(str(reason))
    config = learnt("fieldfill", case, SMOKE, given.frames, None, {"network": network})
    # With the whole correction, every validation shows what the network has become.
    config = config.model_copy(update={"training": replace(config.training, shrink=False)})
    filler = Filler(settings=config, domain=given.domain).fit(given.train)
    before, *_, after = filler.model_.notes["history"]
    assert after["step"] == SMOKE.steps and np.isfinite(after["loss"])
    assert after["validation"] != before["validation"]  # the network has learnt to answer something
    filled = filler.fill(given.test)
    for name, before in given.test.data_vars.items():
        after, seen = filled[name].values, ~np.isnan(before.values)
        inside = np.broadcast_to(given.domain, after.shape)
        assert np.isfinite(after[inside]).all() and np.isfinite(filled[f"{name}_std"].values[inside & ~seen]).all()
        np.testing.assert_array_equal(after[seen], before.values[seen])
