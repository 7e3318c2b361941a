"""Presets, and settings that are changed by text."""

import pytest

from fieldfill.config import Settings, build_chain
from fieldfill.errors import InputError
from fieldfill.presets import PRESETS, adjusted, preset

CHANGES = {
    "training.batch=64": ("training", "batch", 64),
    "validation.wanted=12": ("validation", "wanted", 12),
    "audit.cells=5000": ("audit", "cells", 5000),
    "chain.least_gain=0.5": ("chain", "least_gain", 0.5),
    "climatology.smoothing=0,3": ("climatology", "smoothing", (0.0, 3.0)),
    "gaussian.tapers=9,5": ("gaussian", "tapers", (9.0, 5.0)),
    "drift.fastest=6": ("drift", "fastest", 6.0),
    "waves.rounds=8": ("waves", "rounds", 8),
    "motion.fastest=4": ("motion", "fastest", 4.0),
    "neighbourhood.coarse=7": ("neighbourhood", "coarse", 7.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_of_a_group_is_changed_by_text_and_no_other_is(change: str) -> None:
    group, name, value = CHANGES[change]
    changed = adjusted(Settings(), [change])
    assert getattr(getattr(changed, group), name) == value != getattr(getattr(Settings(), group), name)
    back = getattr(getattr(Settings(), group), name)
    text = ",".join(map(str, back)) if isinstance(back, tuple) else str(back)
    assert adjusted(changed, [f"{group}.{name}={text}"]) == Settings()


@pytest.mark.parametrize("group", ["chain", "gaussian", "drift", "waves", "motion", "neighbourhood"])
def test_the_groups_of_the_chain_and_its_estimators_reach_them(group: str) -> None:
    (change,) = (change for change, (of, *_) in CHANGES.items() if of == group)
    chain = build_chain(adjusted(Settings(), [change]), (4, 8, 8), 1, (False, False), 1)
    _, name, value = CHANGES[change]
    assert getattr({"chain": chain, **chain.steps}[group].settings, name) == value


def test_no_estimators_can_be_given_by_text() -> None:
    assert adjusted(Settings(), ["estimators="]).estimators == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("foo=1", "cannot set 'foo=1'; write name=value with a name out of window, .*, motion.…"),
        ("motion=4", "cannot set 'motion=4'"),
        ("motion.foo=1", "out of motion.trust, motion.fastest"),
        ("foo.bar=1", "cannot set 'foo.bar=1'"),
        ("window", "cannot set 'window'"),
        ("motion.fastest=nan", "cannot set motion.fastest to 'nan'"),
        ("motion.fastest=-1", "cannot set motion.fastest to '-1'"),
        ("drift.clarity=2", "cannot set drift.clarity to '2'"),
        ("waves.rounds=many", "cannot set waves.rounds to 'many'"),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(change: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        adjusted(Settings(), [change])
    assert "\n" not in str(refused.value)


def test_presets_are_named_and_others_are_refused() -> None:
    assert preset("paper").estimators == () and preset("fast", window=4).window == 4
    with pytest.raises(InputError, match=f"unknown preset 'slow'; choose one of {', '.join(PRESETS)}"):
        preset("slow")
