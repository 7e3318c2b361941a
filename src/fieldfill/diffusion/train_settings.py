"""Settings of the training: how long, on how much, how fast."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["TrainSettings"]


@dataclass(frozen=True)
class TrainSettings:
    """Everything about the optimisation.

    Attributes
    ----------
    steps, minutes
        of the training; it ends with whichever comes first, and the learning rate is annealed towards that end. The
        minutes of a whole fit are `fieldfill.config.Settings.minutes`.
    clock
        what the minutes are: time on the wall, or of all processors, which other work on the machine does not use up.
    batch
        crops per step, of all processes together.
    accumulate
        parts into which a process splits its crops of a step, one after the other, to save memory; 0 = as few as
        go through the network together (`Crops.at_once`). It changes the result by rounding only.
    rate, warmup, clip, decay
        peak learning rate, share of the run in which it rises, gradient-norm limit, AdamW weight decay.
    ema
        decay of the averaged weights, approached from below in the first steps.
    frames
        of a crop that the network sees in a step, if it treats all frames alike; the others see whole crops.
    time_power
        t = delta + (1 - delta) u**time_power; 1 is uniform.
    validate_every, patience
        steps between validations, and how many without improvement end the run.
    slower
        factor on the learning rate each time that validation has not improved for half of the patience, so that a run
        that will end early has its small rates, too.
    reuse
        steps in which a crop and its first estimate are used; 0 = as many as it costs steps of the network, see
        `fieldfill.estimators.base.Estimator.cost`. More steps on the same crops teach less than new crops do.
    most_reuse
        steps in which a crop is used at most, where the cost of its first estimate decides.
    pool_batches
        batches whose crops are drawn and estimated together at most, if crops are used several times.
    precision
        in which the network computes while it trains; losses, weights and validation are float32 always.
    compile
        whether to let torch.compile speed the network up.
    shrink
        whether validation decides how much of the network's correction is used, see `fieldfill.diffusion.validation`.
    """

    steps: int = 1500
    minutes: float | None = None
    clock: Literal["wall", "processor"] = "wall"
    batch: int = 4
    rate: float = 3e-3
    warmup: float = 0.05
    clip: float = 1.0
    decay: float = 1e-4
    ema: float = 0.995
    frames: int = 8
    time_power: float = 10.0
    validate_every: int = 100
    patience: int = 8
    slower: float = 0.3
    accumulate: int = 0
    reuse: int = 0
    most_reuse: int = 8
    pool_batches: int = 8
    precision: Literal["float32", "bf16"] = "float32"
    compile: bool = False
    shrink: bool = True

    def learning_rate(self, progress: float) -> float:
        """Linear warm-up, then a half cosine to zero; progress in [0, 1]."""
        if progress < self.warmup:
            return self.rate * (progress + 1e-3) / (self.warmup + 1e-3)
        return self.rate * 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))
