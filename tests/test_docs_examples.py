"""The code on the pages runs as it stands, on small files and with short trainings and simulations."""

import re
from pathlib import Path

import numpy as np
import pytest

import fieldfill as ff
from conftest import QUICK, gappy_dataset
from fieldfill.presets import PRESETS

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/recipes.md", "docs/baselines.md", "docs/scale-out.md"]
PAGES += [f"docs/data/{card}.md" for card in ("advection", "gaussian", "navier-stokes", "shallow-water")]
# Sizes on the pages that would take minutes, and the ones that are run.
SMALLER = {
    "steps=6000, batch=64": "steps=2, batch=4",
    "compile=True": "compile=False",
    "samples=100": "samples=1",
    "samples=64": "samples=1",
    "reynolds=(1000.0, 1000.0)": "reynolds=(1000.0, 1000.0), size=16, resolution=32, frames=4",
}


def blocks(page: str) -> list:
    text = (ROOT / page).read_text()
    found = re.findall(r"^#+ ([^\n]+)\n(?:(?!^#+ ).)*?^```python\n(.*?)^```", text, re.M | re.S)
    assert len(found) == text.count("```python"), "a section holds two pieces of code"
    return [pytest.param(code, id=f"{page}: {title}") for title, code in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files that the pages speak of."""
    path = tmp_path_factory.mktemp("recipes")
    sst, wind = gappy_dataset(), gappy_dataset(names="wind", seed=1)
    chl = np.exp(gappy_dataset(names="chl") - 10)
    odd = gappy_dataset().rename(time="when", lat="line", lon="pixel").drop_vars(["when", "line", "pixel"])
    files = {
        "sst": sst,
        "wind": wind.fillna(10.0),
        "chl": chl,
        "new": sst.isel(time=slice(8)).assign_coords(time=sst.time[:8] + np.timedelta64(365, "D")),
        "levels": odd.expand_dims(depth=[0.0, 10.0]),
    }
    for name, ds in files.items():
        ff.save_dataset(ds, path / f"{name}.nc")
    ff.save_dataset(sst, path / "sst.zarr")
    ff.Filler(settings=QUICK).fit(sst).save(path / "sst.ff")
    return path


@pytest.mark.parametrize("code", [block for page in PAGES for block in blocks(page)])
def test_code_of_the_pages_runs(code, folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", QUICK)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    if '.save("sst.ff")' in code:
        (tmp_path / "sst.ff").unlink()
    monkeypatch.chdir(tmp_path)
    for whole, part in SMALLER.items():
        code = code.replace(whole, part)
    known = {"ds": gappy_dataset()}
    exec(compile(code, "page", "exec"), known)
    if "filled" in known:
        filled = known["filled"]
        flags = [name for name in filled if str(name).endswith("_flag")]
        assert flags and all(
            np.isfinite(filled[str(n).removesuffix("_flag")].values[filled[n] < 3]).all() for n in flags
        )
