"""A model whose files were cut, edited or mixed up is refused in one line, or fills with finite numbers: never less."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file

import fieldfill as ff
from conftest import QUICK, gappy_dataset
from fieldfill.errors import InputError

Tensors = dict[str, torch.Tensor]
# Settings that nothing reads after a model was fitted.
FITTING = [(name,) for name in ("training", "validation", "audit", "chain", "climatology", "gaussian")]


def data(names: str = "sst", frames: int = 4) -> xr.Dataset:
    return gappy_dataset(frames=frames, rows=6, columns=8, names=names)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ff.Filler(settings=QUICK).fit(data(frames=6)).save(tmp_path_factory.mktemp("models") / "m.ff")


class Copies:
    """Copies of a model, each with a change of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.path = folder / "changed.ff"
        self.path.mkdir()
        self.tensors = load_file(model / "weights.safetensors")
        self.saved = json.loads((model / "model.json").read_text())

    def write(self, tensors: Tensors | None = None, saved: Any = None) -> Path:
        weights, saved = self.path / "weights.safetensors", self.saved if saved is None else saved
        save_file(self.tensors if tensors is None else tensors, weights)
        # Whoever edits a model on purpose writes the digest of the edited weights as well.
        if isinstance(saved, dict) and saved.get("digest") == self.saved["digest"]:
            saved = saved | {"digest": hashlib.sha256(weights.read_bytes()).hexdigest()}
        (self.path / "model.json").write_text(json.dumps(saved))
        return self.path


@pytest.fixture
def copies(tmp_path: Path, model: Path) -> Copies:
    return Copies(tmp_path, model)


def outcome(path: Path, ds: xr.Dataset) -> str:
    """Fills with the model: the line of a refusal, or nothing if all that was filled is finite."""
    try:
        out = ff.load(path).fill(ds, quantiles=(0.05,))
    except InputError as error:
        assert "\n" not in str(error).strip()
        return str(error)
    gaps = np.isin(out.sst_flag.values, (1, 2))
    for name in ("sst", "sst_std", "sst_quantile"):
        assert np.isfinite(out[name].values[..., gaps]).all(), name
    assert (out.sst_std.values[gaps] >= 0).all()
    return ""


def test_an_unchanged_copy_fills_as_the_model_does(copies: Copies, model: Path) -> None:
    assert outcome(copies.write(), data()) == ""
    assert ff.load(copies.path).fill(data()).drop_attrs().identical(ff.load(model).fill(data()).drop_attrs())


ODD_GRIDS = {
    "NaN": np.array([np.nan, 1, 2, 3, 4, 5]),
    "infinite": np.array([-np.inf, 1, 2, 3, 4, 5]),
    "complex": np.arange(6) * 1j,
    "text": np.array(list("abcdef")),
}


@pytest.mark.parametrize("kind", ODD_GRIDS)
def test_a_model_of_an_odd_grid_can_be_read_again(kind: str, tmp_path: Path) -> None:
    ds = data(frames=6).assign_coords(lat=ODD_GRIDS[kind])
    filler = ff.Filler(settings=QUICK).fit(ds)
    again = ff.load(filler.save(tmp_path / "m.ff")).fill(ds)
    assert again.drop_attrs().identical(filler.fill(ds).drop_attrs())


ODD_NAMES = {
    "variable": ({"sst": "s\udc80t"}, {}, r"s\\udc80t"),
    "dimension": ({"lat": "l\udc80t"}, {"dims": ("time", "l\udc80t", "lon")}, r"l\\udc80t"),
    "number": ({"sst": 5}, {}, "variable 5 "),
    "pair": ({"sst": ("a", "b")}, {}, r"variable \('a', 'b'\) "),
}


@pytest.mark.parametrize("kind", ODD_NAMES)
def test_a_name_that_no_model_can_hold_is_refused_before_the_work(kind: str, monkeypatch) -> None:
    names, arguments, words = ODD_NAMES[kind]
    monkeypatch.setattr("fieldfill.workflow.fitting.audited", pytest.fail)
    with pytest.raises(InputError, match=f"{words}.*rename") as caught:
        ff.Filler(settings=QUICK, **arguments).fit(data(frames=6).rename(names))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shapes", [("map", "number"), ("number", "map"), ("number", "number")], ids="-".join)
def test_mean_and_spread_are_maps_or_numbers_each(shapes: tuple[str, str], copies: Copies) -> None:
    kept = {
        "map": lambda x: x.reshape(1, -1)[:, :1, None].expand(1, 6, 8).contiguous(),
        "number": lambda x: x.reshape(1, -1)[:, :1, None].clone(),
    }
    chosen = {f"normaliser.{key}": kind for key, kind in zip(("mean", "std"), shapes)}
    tensors = {name: kept[kind](copies.tensors[name]) for name, kind in chosen.items()}
    assert outcome(copies.write(copies.tensors | tensors), data()) == ""


def one_entry(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[tensor.numel() // 2] = value
        return tensor

    return change


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": one_entry(torch.nan),
    "inf": one_entry(torch.inf),
    "negative": lambda tensor: -tensor.abs() - 1,
    "zero": torch.zeros_like,
    "huge": lambda tensor: torch.full_like(tensor, 1e30),
    "shape": lambda tensor: torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
    "flat": lambda tensor: tensor.reshape(-1)[:1].clone(),
    "half": lambda tensor: tensor.half(),
    "integer": lambda tensor: torch.nan_to_num(tensor.float(), 0, 0, 0).to(torch.int64),
}
FREE = ("exposure", "spread.local.ridge")  # may hold what is not finite


@pytest.mark.parametrize("kind", CHANGES)
def test_no_array_can_be_changed_so_that_a_fill_is_not_finite(kind: str, copies: Copies) -> None:
    ds, networks = data(), 0
    for name, tensor in copies.tensors.items():
        # Other weights of a network give other numbers; a few of them stand for all.
        networks += name.startswith("denoiser.network.")
        if not tensor.numel() or (kind in ("negative", "zero", "huge") and "network" in name and networks % 5):
            continue
        if kind in ("nan", "inf", "negative", "huge") and not tensor.is_floating_point():
            continue
        message = outcome(copies.write(copies.tensors | {name: CHANGES[kind](tensor)}), ds)
        if kind in ("shape", "half", "integer") or (kind in ("nan", "inf") and name not in FREE):
            assert message.startswith(f"the model {copies.path} is damaged (") and message.endswith(
                "); fit it again"
            ), name


def test_an_array_can_neither_be_lost_nor_added_unnoticed(copies: Copies) -> None:
    for name in copies.tensors:
        kept = {key: value for key, value in copies.tensors.items() if key != name}
        if name not in (
            "spread.tails",
            "denoiser.chain.steps.gaussian.field.effort",
        ):  # models of older versions lack them
            assert "is damaged (" in outcome(copies.write(kept), data()), name
    for name in ("denoiser.more", "denoiser.chain.more"):
        assert "is damaged (" in outcome(copies.write(copies.tensors | {name: torch.zeros(2)}), data())


NOTES = ((), ("history",), ("calibration",))  # that a report reads
EMPTY = {("notes", "history"): ([],), ("notes", "calibration"): ({},), ("ensemble",): ({},)}  # and these need nothing


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Keys of all entries of a description, of a list those of its first entry."""
    found = [path] if path else []
    inner: list[Any] = []
    if isinstance(content, dict):
        inner = list(content.items())
    elif isinstance(content, list):
        inner = list(enumerate(content))[:1]
    return found + [place for key, value in inner for place in places(value, (*path, key))]


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the description with another value at ``path``; ``...`` removes it."""
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("value", [..., None, "word", -3, 10**7, 0.37, float("nan"), [], {}], ids=repr)
def test_no_entry_of_the_description_can_be_changed_so_that_a_fill_is_not_finite(value: Any, copies: Copies) -> None:
    ds, messages = data(), {}
    for path in places(copies.saved):
        used = path[1:2] not in FITTING if path[0] == "config" else path[0] != "notes" or path[1:2] in NOTES
        if used:
            messages[path] = outcome(copies.write(saved=changed(copies.saved, path, value)), ds)
    for key in ("config", "variables", "grid", "bank", "notes"):
        assert "is damaged (" in messages[(key,)], key
    for path in (("notes", "history"), ("notes", "calibration"), ("partition",), ("ensemble",)):
        assert "is damaged (" in messages[path] or value in EMPTY.get(path, ()), path


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '"text"', "\x00\x01", "[" * 5000], ids=lambda c: c[:3])
def test_a_description_that_is_none_is_refused(content: str, copies: Copies) -> None:
    path = copies.write()
    (path / "model.json").write_text(content)
    message = outcome(path, data())
    assert "is damaged (" in message or "has format" in message


def test_a_file_of_weights_that_was_cut_is_refused(copies: Copies) -> None:
    path = copies.write()
    whole = (path / "weights.safetensors").read_bytes()
    for size in (0, 5, 400, len(whole) // 2, len(whole) - 1):
        (path / "weights.safetensors").write_bytes(whole[:size])
        assert "is damaged (" in outcome(path, data())
    (path / "model.json").write_bytes(b"\xff\xfe\xfa")
    assert "is damaged (" in outcome(path, data())


def test_weights_of_another_model_are_refused(copies: Copies, tmp_path: Path) -> None:
    other = ff.Filler(settings=QUICK).fit(data("a,b", 6)).save(tmp_path / "other.ff")
    path = copies.write()
    (path / "weights.safetensors").write_bytes((other / "weights.safetensors").read_bytes())
    assert "is damaged (" in outcome(path, data())


def test_the_command_line_refuses_a_damaged_model_in_one_line(copies: Copies, tmp_path: Path) -> None:
    ff.save_dataset(data(), tmp_path / "data.nc")
    copies.write(copies.tensors | {"normaliser.std": -copies.tensors["normaliser.std"]})
    command = [sys.executable, "-m", "fieldfill", "fill", "changed.ff", "data.nc", "-o", "out.nc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.startswith("fieldfill: the model changed.ff is damaged (normaliser.std has ")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out.nc").exists()
