"""Streams of randomness that do not depend on each other."""

import torch

from fieldfill.seeds import place_stream


def test_every_place_has_a_stream_of_its_own() -> None:
    first = torch.rand(4, generator=place_stream(0, 1, 2))
    assert torch.equal(first, torch.rand(4, generator=place_stream(0, 1, 2)))
    for other in ((0, 2, 1), (1, 1, 2), (-1, 1, 2), (0, 1, 2, 0)):
        assert not torch.equal(first, torch.rand(4, generator=place_stream(*other)))
