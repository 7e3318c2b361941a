"""Renders docs/images/masks.png: two frames of every mask model, and a context of its matching partition."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap

from fieldfill.masks import (
    BlockMask,
    CloudMask,
    EmpiricalMask,
    FrameDropout,
    Intersection,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    Union,
    VariableDropout,
)
from fieldfill.partition import matching

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "masks.png"
SHAPE = (40, 2, 4, 48, 48)
COLOURS = ListedColormap(["#d9d4c7", "#2c6e9b", "#e08a2e"])


def models(generator: torch.Generator) -> dict[str, MaskModel]:
    bank = CloudMask(0.5, scale=8).sample(SHAPE, generator)
    return {
        "PixelMask(0.3)": PixelMask(0.3),
        "PixelMask(0.3, static=False)": PixelMask(0.3, static=False),
        "BlockMask(3, 3, 5)": BlockMask(3, 3, 5),
        "SensorMask(120, 0.2)": SensorMask(120, 0.2),
        "TrackMask()": TrackMask(width=1.5),
        "SwathMask()": SwathMask(),
        "CloudMask(0.4)": CloudMask(0.4),
        "FrameDropout(0.6)": FrameDropout(0.6),
        "VariableDropout(0.6)": VariableDropout(0.6),
        "SwathMask & CloudMask": Intersection((SwathMask(20, 30), CloudMask(0.6))),
        "TrackMask | SensorMask": Union((TrackMask(), SensorMask(60))),
        "EmpiricalMask(bank, shift)": EmpiricalMask(bank, shift=True),
    }


def main() -> None:
    generator = torch.Generator().manual_seed(3)
    figure, axes = plt.subplots(6, 6, figsize=(9, 9.6), layout="constrained")
    cells = axes.reshape(12, 3)
    for row, (name, model) in zip(cells, models(generator).items()):
        mask = model.sample(SHAPE, generator)
        context, query = matching(model, mask).split(mask, generator)
        # A window with a query in the first frame, and if possible with a change to the next.
        moves = (mask[:, 0, 0] != mask[:, 0, 1]).flatten(1).any(-1)
        shown = int((2 * query[:, 0, 0].flatten(1).any(-1).int() + moves.int()).argmax())
        code = context.int() + 2 * (query & ~context).int()
        pictures = [mask[shown, 0, 0].int(), mask[shown, 0, 1].int(), code[shown, 0, 0]]
        for axis, picture, title in zip(row, pictures, (name, "next frame", "context, query")):
            axis.imshow(picture, cmap=COLOURS, vmin=0, vmax=2, interpolation="nearest")
            axis.set_title(title, fontsize=7)
            axis.set_xticks([])
            axis.set_yticks([])
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGE, dpi=90)
    print(f"{IMAGE.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
