"""Laws of every partition that can be asked for by name, over random masks of any structure."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import seeded
from fieldfill.config import build_partition

OVERLAPPING = {"all-observed", "hide-more", "hide-more:block:3x3"}  # the query holds the context there, by definition
NAMES = ["swap", "pixel", "station", "frame", "variable", "block:3x3", "block:2x4", *OVERLAPPING]


@st.composite
def masks(draw) -> torch.Tensor:
    """Observed cells (N, C, T, H, W): independent, static, shared by variables, by frames, empty or full rows."""
    generator = seeded(draw(st.integers(0, 2**31)))
    shape = [draw(st.integers(3, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 4)), *(draw(st.integers(4, 9)),) * 2]
    drawn = list(shape)
    for dim in (1, 2, 3, 4):
        if draw(st.booleans()):
            drawn[dim] = 1  # constant along this dimension
    observed = torch.rand(drawn, generator=generator) < draw(st.sampled_from([0.05, 0.3, 0.7, 1.0]))
    observed = observed.expand(shape).clone()
    observed[0] &= draw(st.booleans())  # sometimes a row with nothing at all
    return observed


@settings(max_examples=60, deadline=None)
@given(observed=masks(), seed=st.integers(0, 99))
def test_every_partition_keeps_its_promises(observed, seed) -> None:
    for name in NAMES:
        partition = build_partition(name, observed, (0.5, 0.95))
        context, query = partition.split(observed, seeded(seed))
        assert context.dtype == query.dtype == torch.bool and context.shape == query.shape == observed.shape
        assert not (context & ~observed).any() and not (query & ~observed).any(), name
        if name not in OVERLAPPING:
            assert not (context & query).any(), name
        # A row is either split or given up openly: nothing to query, and all that was observed as context.
        unsplit = ~query.flatten(1).any(1)
        assert torch.equal(context[unsplit], observed[unsplit]), name
        again = partition.split(observed, seeded(seed))
        assert torch.equal(context, again[0]) and torch.equal(query, again[1]), name


@settings(max_examples=40, deadline=None)
@given(observed=masks(), seed=st.integers(0, 99))
def test_contexts_for_inference_stay_inside_and_keep_the_structure(observed, seed) -> None:
    static = (observed == observed[:, :, :1]).flatten(1).all(1)
    for name in NAMES:
        partition = build_partition(name, observed, (0.5, 0.95))
        contexts = partition.contexts(observed, 3, seeded(seed), keep=0.7)
        assert contexts.shape == (3, *observed.shape) and not (contexts & ~observed).any(), name
        if name in ("pixel", "block:3x3") and static.all():
            assert (contexts == contexts[:, :, :, :1]).all(), f"{name} moves where the gaps do not"
        if name == "swap" and static.all():
            assert (contexts == contexts[:, :, :, :1]).all(), "donors are static, so must contexts be"


def test_variables_without_changing_gaps_are_shown_and_never_asked_for() -> None:
    observed = torch.rand(6, 3, 2, 6, 6, generator=seeded()) < 0.5
    observed[:, 1] = True
    for name in NAMES:
        partition = build_partition(name, observed, (0.5, 0.95))
        generator = seeded()
        context, query = partition.split(observed, generator)
        assert context[:, 1].all() and not query[:, 1].any() and query[:, [0, 2]].any(), name
        for design in ("random", "balanced", "enumerated"):
            contexts = partition.contexts(observed, 3, generator, design=design)
            assert contexts[:, :, 1].all() and not (contexts & ~observed).any(), (name, design)
