"""Crops: space–time boxes of a record, the unit in which everything is learnt and filled.

A crop has T frames, h rows and w columns of one sample. A small grid is one crop in space, a short record is one in
time. Crops hold unitless values; maps of the place (domain, mean, height ...) are cut together with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.data.cover import Axis, Tiling
from fieldfill.data.other_times import OtherTimes
from fieldfill.data.record import IN_MEMORY_BYTES, Record
from fieldfill.data.transforms import Normaliser
from fieldfill.errors import InputError
from fieldfill.seeds import position_stream

__all__ = ["Batch", "Crops", "HoldOut", "Place"]

# Cells that are read at once.
SLAB_CELLS = 2**23
# Cells (B, C, T, H, W) that go through a network at once, unless settings change it.
NETWORK_CELLS = 2**21
# Validation crops that are looked at together, at most.
VALIDATED_AT_ONCE = 16
# Standard deviations from the mean; the fourth power of more overflows float32.
FARTHEST = 1e9
# Share of the domain cells of the best placed crop that a crop must have to be drawn.
LEAST_DOMAIN = 0.1

Place: TypeAlias = tuple[int, int, int, int]
"""Sample, first frame, first row and first column of a crop."""


@dataclass(frozen=True)
class Batch:
    """Crops with what is visible of them.

    Attributes
    ----------
    places
        where they lie.
    x
        (B, C, T, H, W) unitless values, 0 where not observed.
    observed
        (B, C, T, H, W) bool.
    maps
        (B, K, H, W) what does not change in time.
    domain
        (B, C, H, W) bool: where the field exists.
    """

    places: tuple[Place, ...]
    x: Tensor
    observed: Tensor
    maps: Tensor
    domain: Tensor

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def joined(cls, batches: Sequence["Batch"]) -> "Batch":
        """Several batches as one."""
        places = tuple(place for batch in batches for place in batch.places)
        names = ("x", "observed", "maps", "domain")
        return cls(places, *(torch.cat([getattr(batch, name) for batch in batches]) for name in names))


@dataclass(frozen=True)
class HoldOut:
    """Observed cells that training never sees, so that error can be measured without any truth.

    Attributes
    ----------
    places
        of the validation crops.
    masks
        (C, T, H, W) bool of each of them, True = held out.
    weights
        how much a held-out cell of each of them counts.
    """

    places: tuple[Place, ...] = ()
    masks: tuple[Tensor, ...] = ()
    weights: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    def weights_of(self, chosen: Sequence[int]) -> Tensor:
        """Weights (N,) of the cells of some validation crops, by number."""
        return torch.tensor([self.weights[i] for i in chosen], dtype=torch.float64)

    def part(self, chosen: slice) -> "HoldOut":
        return HoldOut(self.places[chosen], self.masks[chosen], self.weights[chosen])

    def within(self, place: Place, observed: Tensor, axes: Sequence[Axis]) -> Tensor:
        """The held-out cells among those of ``observed`` (C, T, H, W), a crop at ``place``."""
        held = torch.zeros_like(observed)
        for (sample, *starts), mask in zip(self.places, self.masks):
            if sample != place[0]:
                continue
            frames, rows, columns = (
                list(axis.overlap(mine, other, length))
                for axis, mine, other, length in zip(axes, place[1:], starts, mask.shape[1:])
            )
            for f, f_mask in frames:
                for r, r_mask in rows:
                    for c, c_mask in columns:
                        held[:, f, r, c] |= mask[:, f_mask, r_mask, c_mask]
        return held & observed


@dataclass
class Crops:
    """All crops of a record as unitless tensors; a small record is kept in memory, a large one read on demand.

    Attributes
    ----------
    shape
        frames, rows and columns of a crop.
    held
        cells that only validation sees.
    maps
        (K, H, W) of the whole grid.
    others
        what the record shows of each cell at other times than those of a crop; it adds 2C maps to every crop.
    """

    record: Record
    normaliser: Normaliser
    shape: tuple[int, int, int]
    held: HoldOut = field(default_factory=HoldOut)
    maps: Tensor | None = None
    others: OtherTimes | None = None

    def __post_init__(self) -> None:
        samples, _, *sizes = self.record.shape
        wraps = (False, *self.record.periodic)
        frames, rows, columns = (
            Axis(size, length, wrap and length < size) for size, length, wrap in zip(sizes, self.shape, wraps)
        )
        self.axes = frames, rows, columns
        self.domain = torch.from_numpy(self.record.domain)
        self._base = Normaliser(self.record.mean, self.record.std)
        self._kept: tuple[Tensor, Tensor] | None = None
        if 5 * np.prod(self.record.shape) <= IN_MEMORY_BYTES:
            kept = torch.empty(self.record.shape), torch.empty(self.record.shape, dtype=torch.bool)
            for sample in range(samples):
                kept[0][sample], kept[1][sample] = self._read_frames(sample, 0, sizes[0])
            self._kept = kept
        self._spots = self._find_spots()
        self.normalise(self.normaliser)

    def _find_spots(self) -> Tensor:
        """Rows and columns (N, 2) at which crops with enough of the domain begin."""
        rows, columns = self.axes[1:]
        inside = np.pad(
            self.record.domain.any(0), [(0, axis.length if axis.wraps else 0) for axis in (rows, columns)], "wrap"
        )
        total = np.pad(inside.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        h, w = rows.length, columns.length
        cells = (total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w])[: rows.places, : columns.places]
        return torch.from_numpy(np.argwhere(cells >= max(1, LEAST_DOMAIN * cells.max())))

    def normalise(self, normaliser: Normaliser) -> None:
        """Goes on with another normaliser; nothing is read again."""
        self.normaliser = normaliser
        shift, scale = self._base.relative(normaliser)
        self._shift, self._scale = torch.from_numpy(shift).float(), torch.from_numpy(scale).float()

    def __len__(self) -> int:
        """Number of different crops."""
        return self.record.shape[0] * self.axes[0].places * len(self._spots)

    @property
    def places_in_space(self) -> int:
        """Number of different rows and columns at which crops begin."""
        return len(self._spots)

    def place(self, number: int) -> Place:
        """Where crop ``number`` lies."""
        number, spot = divmod(number, len(self._spots))
        sample, frame = divmod(number, self.axes[0].places)
        row, column = self._spots[spot].tolist()
        return sample, frame, row, column

    def spot_around(self, cell: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns at which the crop begins that has a cell closest to its middle."""
        away = torch.zeros(len(self._spots))
        for axis, place, starts in zip(self.axes[1:], cell, self._spots.T):
            off = (starts + axis.length // 2 - place).abs()
            away += torch.minimum(off, axis.size - off) ** 2 if axis.wraps else off**2
        row, column = self._spots[int(away.argmin())].tolist()
        return row, column

    @property
    def length(self) -> int:
        """Frames of a crop."""
        return self.shape[0]

    @property
    def cells(self) -> int:
        """Cells (C · T · H · W) of a crop."""
        return self.record.shape[1] * int(np.prod(self.shape))

    @property
    def at_once(self) -> int:
        """Crops that may go through a network together, for the sake of memory."""
        return max(1, NETWORK_CELLS // self.cells)

    @property
    def tiling(self) -> Tiling:
        """The crops that fill a sample: half of each overlaps in time, a third in space."""
        frames, rows, columns = self.shape
        return Tiling(self.axes, (max(1, frames // 2), max(1, rows - rows // 3), max(1, columns - columns // 3)))

    @property
    def periodic(self) -> tuple[bool, bool]:
        """Whether rows and columns of a crop close on themselves."""
        rows, columns = (
            closed and axis.length == axis.size for closed, axis in zip(self.record.periodic, self.axes[1:])
        )
        return rows, columns

    def _read_frames(self, sample: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """x, observed (C, T, H, W) of whole frames, a slab at a time: reading takes several times what it returns."""
        _, variables, _, rows, columns = self.record.shape
        shape, slab = (variables, stop - start, rows, columns), max(1, SLAB_CELLS // (variables * rows * columns))
        x, observed = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
        for first in range(start, stop, slab):
            values, seen = self.record.read(sample, slice(first, min(first + slab, stop)))
            frames = slice(first - start, first - start + slab)
            x[:, frames], observed[:, frames] = self._base.to_tensor(values), torch.from_numpy(seen)
        return x, observed

    def _in_units(self, x: Tensor, observed: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Values (C, T, H, W) in the units of the normaliser, 0 where not observed."""
        x = torch.where(observed, (x - shift[:, None]) / scale[:, None], 0)
        near = x.abs() <= FARTHEST
        if not near.all():
            far = (~near).flatten(1).sum(1)
            name = self.record.variables[int(far.argmax())]
            raise InputError(
                f"variable '{name}': {int(far.max())} values lie more than {FARTHEST:g} standard deviations from "
                "the mean of those that were learnt; check that they have the same units, set them to NaN if they mean "
                "missing, or fit again"
            )
        return x

    def cut(self, whole: Tensor, place: Place) -> Tensor:
        """The rows and columns of a crop of values (..., H, W)."""
        for axis, start, dim in zip(self.axes[1:], place[2:], (-2, -1)):
            if axis.wraps and start + axis.length > axis.size:
                whole = whole.index_select(dim, torch.from_numpy(axis.cells(start)))
            else:
                whole = whole.narrow(dim, start, axis.length)
        return whole

    def at(self, place: Place, length: int | None = None) -> tuple[Tensor, Tensor]:
        """x, observed (C, T, H, W) of one crop (or of another ``length`` in time), held-out cells included."""
        sample, start, row, column = place
        stop = start + (length or self.length)
        if self._kept is not None:
            x, observed = (self.cut(part[sample, :, start:stop], place) for part in self._kept)
        else:
            rows, columns = (axis.cells(first) for axis, first in zip(self.axes[1:], (row, column)))
            values, seen = self.record.read(sample, slice(start, stop), rows, columns)
            x, observed = self._base.to_tensor(values), torch.from_numpy(seen)
        shift = self._shift if self._shift[0].numel() == 1 else self.cut(self._shift, place)
        return self._in_units(x, observed, shift, self.scale_at(place)), observed

    def scale_at(self, place: Place) -> Tensor:
        """Unit of the crop at ``place``, (C, 1, 1) or (C, H, W), as a share of the spread of each variable."""
        return self._scale if self._scale[0].numel() == 1 else self.cut(self._scale, place)

    def frames(self, sample: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """x, observed (C, T, H, W) of whole frames without the held-out cells."""
        if self._kept is not None:
            x, observed = (part[sample, :, start:stop] for part in self._kept)
        else:
            x, observed = self._read_frames(sample, start, stop)
        frames, rows, columns = self.axes
        axes = (Axis(frames.size, stop - start), *(Axis(axis.size, axis.size, axis.wraps) for axis in (rows, columns)))
        observed = observed & ~self.held.within((sample, start, 0, 0), observed, axes)
        return self._in_units(x, observed, self._shift, self._scale), observed

    def slabs(self, count: int, parts: int, generator: Generator) -> list[tuple[int, int, int]]:
        """(sample, start, stop) of stretches in time that fit into memory as whole frames, about ``count`` frames.

        They are at least as long as a crop, and if possible at least ``parts``.
        """
        samples, _, frames, _, _ = self.record.shape
        found = self.all_slabs(max(self.length, samples * frames // parts))
        step = found[0][2]
        order = torch.randperm(len(found), generator=generator)[: max(1, count // step)].tolist()
        return sorted(found[i] for i in order)

    def all_slabs(self, longest: int) -> list[tuple[int, int, int]]:
        """(sample, start, stop) of stretches in time, of at most ``longest`` frames, that hold all whole frames."""
        samples, variables, frames, rows, columns = self.record.shape
        step = max(1, min(frames, longest, SLAB_CELLS // (variables * rows * columns)))
        return [(s, first, min(first + step, frames)) for s in range(samples) for first in range(0, frames, step)]

    def visible(self, place: Place, length: int | None = None) -> tuple[Tensor, Tensor]:
        """The same without the held-out cells."""
        x, observed = self.at(place, length)
        if self.held.places:
            axes = (Axis(self.axes[0].size, observed.shape[1]), *self.axes[1:])
            observed = observed & ~self.held.within(place, observed, axes)
        return x * observed, observed

    def training(self, places: Sequence[Place]) -> Batch:
        """Crops without the held-out cells."""
        return self._batch(places, *(torch.stack(part) for part in zip(*(self.visible(place) for place in places))))

    def held_out(self, chosen: Sequence[int]) -> tuple[Batch, Tensor]:
        """Validation crops, by number, with all their values, and the held-out cells of each.

        Observed are all others, without the held-out cells of any crop.
        """
        places = [self.held.places[i] for i in chosen]
        pairs = [self.at(place) for place in places]
        x, observed = (torch.stack(part) for part in zip(*pairs))
        hidden = torch.stack([self.held.within(place, seen, self.axes) for place, (_, seen) in zip(places, pairs)])
        return self._batch(places, x, observed & ~hidden), torch.stack([self.held.masks[i] for i in chosen])

    def _batch(self, places: Sequence[Place], x: Tensor, observed: Tensor) -> Batch:
        """Crops x seen at ``observed``, both (B, C, T, H, W), with the maps of their places."""
        maps = torch.stack([self._maps_at(*of) for of in zip(places, x, observed)])
        return Batch(tuple(places), x, observed, maps, torch.stack([self.cut(self.domain, place) for place in places]))

    def _maps_at(self, place: Place, x: Tensor, observed: Tensor) -> Tensor:
        """Maps (K, H, W) of a crop x (C, T, H, W) seen at ``observed``; those of other times come last."""
        maps = self.domain.new_zeros(0, *self.domain.shape[1:], dtype=torch.float32) if self.maps is None else self.maps
        maps = self.cut(maps, place)
        if self.others is None:
            return maps
        sums = (self.cut(whole, place) for whole in self.others.sums(place[0]))
        return torch.cat([maps, self.others.maps(*place[:2], x, observed, *sums)])

    def validation(self, seed: int, mine: range | None = None) -> Iterator[tuple[range, Batch, Tensor, Tensor]]:
        """Validation crops, some at a time: their numbers, then as `held_out`, and standard normal noise of their own.

        ``mine`` is the part of them that this process looks at.
        """
        mine = range(len(self.held)) if mine is None else mine
        step = min(VALIDATED_AT_ONCE, self.at_once)
        for first in mine[::step]:
            chosen = range(first, min(first + step, mine.stop))
            batch, held = self.held_out(chosen)
            noise = [torch.randn(batch.x[:1].shape, generator=position_stream(seed, "validation", i)) for i in chosen]
            yield chosen, batch, held, torch.cat(noise)

    def some(self, count: int, generator: Generator) -> list[Place]:
        """At most ``count`` different places, at random."""
        total = len(self)
        if total <= 2**20:
            return [self.place(i) for i in torch.randperm(total, generator=generator)[:count].tolist()]
        return [self.place(i) for i in torch.randint(total, (count,), generator=generator).unique().tolist()]

    def draw(self, count: int, generator: Generator) -> Batch:
        """A random training batch of ``count`` crops."""
        chosen = torch.randint(len(self), (count,), generator=generator).tolist()
        return self.training([self.place(i) for i in chosen])

    def spread_out(self, count: int, generator: Generator, least: int = 1) -> list[Place]:
        """Up to ``count`` places in random order, that do not overlap unless fewer than ``least`` would exist."""
        strides, good = list(self.shape), set(map(tuple, self._spots.tolist()))
        frames, rows, columns = (axis.apart() for axis in self.axes)
        while True:
            spots = [(row, column) for row in rows for column in columns if (row, column) in good]
            total = self.record.shape[0] * len(frames) * len(spots)
            if total >= least or max(strides) == 1:
                break
            strides = [(stride + 1) // 2 for stride in strides]
            frames, rows, columns = (axis.cover(stride) for axis, stride in zip(self.axes, strides))
        found = []
        for number in torch.randperm(total, generator=generator)[:count].tolist():
            number, spot = divmod(number, len(spots))
            sample, frame = divmod(number, len(frames))
            found.append((sample, frames[frame], *spots[spot]))
        return found

    def stretches(self, count: int, generator: Generator, longest: int | None = None) -> list[tuple[Place, int]]:
        """Places and lengths of stretches in time, in random order, together about ``count`` frames.

        Each has all lags of a crop; ``longest`` is eight times that by default.
        """
        samples, _, frames, _, _ = self.record.shape
        step = min(frames, 8 * self.length if longest is None else longest)
        rows, columns = (axis.cover(axis.length) for axis in self.axes[1:])
        parts = [
            ((sample, first, row, column), min(step, frames - first))
            for sample in range(samples)
            for first in range(0, frames, step)
            for row in rows
            for column in columns
        ]
        order = torch.randperm(len(parts), generator=generator)[: max(1, count // step)].tolist()
        return [parts[i] for i in order if parts[i][1] > 1 or frames == 1]

    def masks(self, count: int, generator: Generator, least: int = 1, limit_bytes: int = 2**27) -> Tensor:
        """Observation masks (N, C, T, H, W) of spread-out crops, at most ``count`` and ``limit_bytes``.

        Outside the domain nothing hides the field: the masks are True there.
        """
        places = self.spread_out(max(2, min(count, limit_bytes // self.cells)), generator, least)
        return torch.stack([self.visible(place)[1] | ~self.cut(self.domain, place)[:, None] for place in places])
