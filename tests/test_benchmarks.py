"""The studies in benchmarks/: each can be imported, and each that can be run describes its options."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
# The others are parts of these.
RUN = [script for script in SCRIPTS if "def main()" in script.read_text()]


@pytest.fixture(autouse=True)
def studies_import_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a script is run, whose folder is where Python looks first."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_study_can_be_imported(script: Path) -> None:
    assert runpy.run_path(str(script))["__doc__"]


def test_every_mask_model_of_the_pictures_has_a_matching_partition() -> None:
    study, generator = runpy.run_path(str(FOLDER / "card_pictures.py")), torch.Generator().manual_seed(0)
    for name, model in study["mask_models"](generator).items():
        bank = model.sample(study["MASKED"], generator)
        _, query = study["matching"](model, bank).split(bank, generator)
        # A context and a query need both of two variables that are each seen with probability 0.6: 36 % of samples.
        least = 0.25 if name == "VariableDropout(0.6)" else 0.5
        assert query.flatten(1).any(-1).float().mean() > least, name


@pytest.mark.parametrize("script", RUN, ids=lambda script: script.stem)
def test_a_study_describes_its_options(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out
