"""Inpainting frame by frame: what image processing makes of a hole from its rim.

Cells outside the domain are holes like the gaps, so that nothing of the land enters the sea. A frame
without any observation takes the mean of every cell. On a periodic axis a frame is continued by a quarter
of its size.
"""

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fieldfill.baselines.baseline import Baseline, Gappy
from fieldfill.baselines.cross_validation import cloud_points
from fieldfill.errors import MissingPackage

__all__ = ["BestInpainting", "Biharmonic", "FrameInpainting", "NavierStokesInpainting", "Telea"]

# Range that values are scaled to: OpenCV's Telea adds errors of a few units to whatever it is given.
FULL_SCALE = float(np.iinfo(np.uint16).max)


@dataclass(kw_only=True, eq=False, repr=False)
class FrameInpainting(Baseline):
    """Base class: every frame of every variable on its own."""

    @abc.abstractmethod
    def _inpaint(self, frame: np.ndarray, hole: np.ndarray) -> np.ndarray:
        """frame (H, W) with zeros in the hole, 0 … 1 elsewhere; hole bool, neither empty nor everything."""

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        margin = [(size // 4 if closed else 0,) * 2 for size, closed in zip(data.domain.shape[1:], data.periodic)]
        rows, columns = (slice(pad, size + pad) for (pad, _), size in zip(margin, data.domain.shape[1:]))
        filled = np.full(data.values.shape, np.nan)
        for s, c, t in np.argwhere(data.observed.any(axis=(3, 4))):
            frame = np.pad(data.values[s, c, t], margin, mode="wrap")
            hole = np.isnan(frame)
            low, high = np.nanmin(frame), np.nanmax(frame)
            span = high - low if high > low else 1.0
            if hole.any():
                frame = low + span * self._inpaint(np.where(hole, 0.0, (frame - low) / span), hole)
            filled[s, c, t] = frame[rows, columns]
        return self._complete(filled, data), None


@dataclass(kw_only=True, eq=False, repr=False)
class _OpenCV(FrameInpainting):
    """OpenCV on float32, one channel, scaled to the range of 16 bits.

    Parameters
    ----------
    radius
        Of the neighbourhood that a cell is filled from, in cells.
    """

    flag: ClassVar[str]
    radius: float = 3.0

    def _inpaint(self, frame: np.ndarray, hole: np.ndarray) -> np.ndarray:
        cv2 = _optional("cv2", "opencv-python-headless", f"the baseline '{self.name}'")
        scaled = (FULL_SCALE * frame).astype(np.float32)
        return cv2.inpaint(scaled, hole.astype(np.uint8), self.radius, getattr(cv2, self.flag)) / FULL_SCALE


@dataclass(kw_only=True, eq=False, repr=False)
class Telea(_OpenCV):
    """Fast marching from the rim inwards.

    Telea: An image inpainting technique based on the fast marching method, 2004.
    """

    name: ClassVar[str] = "telea"
    flag: ClassVar[str] = "INPAINT_TELEA"


@dataclass(kw_only=True, eq=False, repr=False)
class NavierStokesInpainting(_OpenCV):
    """Transport of the image along its isophotes.

    Bertalmio, Bertozzi, Sapiro: Navier-Stokes, fluid dynamics, and image and video inpainting, 2001.
    """

    name: ClassVar[str] = "navier_stokes"
    flag: ClassVar[str] = "INPAINT_NS"


@dataclass(kw_only=True, eq=False, repr=False)
class Biharmonic(FrameInpainting):
    """The smooth surface through the rim that solves the biharmonic equation, by scikit-image.

    Damelin, Hoang: On surface completion and image inpainting by biharmonic functions, 2018.
    """

    name: ClassVar[str] = "biharmonic"

    def _inpaint(self, frame: np.ndarray, hole: np.ndarray) -> np.ndarray:
        restoration = _optional("skimage.restoration", "scikit-image", f"the baseline '{self.name}'")
        return restoration.inpaint_biharmonic(frame, hole)


@dataclass(kw_only=True, eq=False, repr=False)
class BestInpainting(Baseline):
    """The one of several inpaintings that fills cloud-shaped held-out cells best, all variables together."""

    name: ClassVar[str] = "inpainting"
    share: float = 0.03
    seed: int = 0
    candidates: tuple[FrameInpainting, ...] = field(
        default_factory=lambda: (Telea(), NavierStokesInpainting(), Biharmonic()), repr=False
    )

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        held = cloud_points(data.observed, self.share, np.random.default_rng(self.seed))
        frames = np.asarray(held.any(axis=(0, 1, 3, 4)))
        part = data.without(held).at(frames)
        spread = np.nanstd(data.values, axis=(0, 2, 3, 4))[:, None, None, None]
        self.errors_ = {}
        for candidate in self.candidates:
            candidate.climatology_ = self.climatology_
            error = (candidate._estimate(part)[0] - data.values[:, :, frames]) / np.where(spread > 0, spread, 1.0)
            self.errors_[candidate.name] = float((error[held[:, :, frames]] ** 2).mean())
        self.best_ = min(self.candidates, key=lambda candidate: self.errors_[candidate.name])

    def summary(self) -> dict[str, Any]:
        """Also the inpainting that was chosen, and its error at held-out cells as a share of the variance."""
        if not self.fitted:
            return {}
        return super().summary() | {"best": self.best_.name, "held_out": self.errors_[self.best_.name]}

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        return self.best_._estimate(data)


def _optional(module: str, package: str, purpose: str) -> Any:
    """Imports what the extra 'classical' installs."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackage(package, "classical", purpose) from None
