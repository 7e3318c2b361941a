r"""The denoiser x_theta(t, context · x_t, context): an estimate of the complete clean field from a noisy part of it.

.. math:: L = \| M_{qry} \odot (x_\theta(t, M_{ctx} \odot x_t, M_{ctx}) - x_{obs}) \|^2

The network sees the context and never the query or the observation mask. Theorem 1 of the paper: the optimum is
E[x_0 | context] at every cell whose query probability given the context is positive, and arbitrary elsewhere.

*What the network predicts.* The field x_0 itself ("data"), the noise eps of x_t = alpha_t x_0 + sigma_t eps ("noise"),
or v = alpha_t eps - sigma_t x_0 ("velocity"). The last two exist only where x_t is seen: outside the context eps is
independent of all that is known, so there the network predicts x_0 whatever the choice. Each choice converts to x_0:

.. math:: x_0 = (x_t - \sigma_t \epsilon) / \alpha_t = \alpha_t x_t - \sigma_t v

*The first estimate* that the network corrects is that of a chain of estimators (`fieldfill.estimators.chain`), which
also offers features to the network.

*Units.* Where the first estimate is good, the network sees what it missed at the context cells, and answers, in units
of what it misses at that noise level (`fieldfill.diffusion.scales`); losses are in these units, too.

*How sure it is.* A second set of outputs may give the log-variance of x_0 given the context; it learns from the
Gaussian likelihood of the residual.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldfill.diffusion.networks.network import Network
from fieldfill.diffusion.scales import Scales
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.estimators.base import Answer, Given, Lesson
from fieldfill.estimators.chain import Chain, draw_examples

__all__ = ["LARGEST_VARIANCE", "PREDICTIONS", "Cut", "Denoiser", "Prediction", "levels", "noised", "whole"]

Cut = Callable[[Tensor], Tensor]


def whole(x: Tensor) -> Tensor:
    """Cuts nothing off."""
    return x


# Variance of an untrained head, in the units of the network.
FIRST_VARIANCE = 0.5
# Largest variance of a trained head: the field itself has the variance 1.
LARGEST_VARIANCE = 10.0


@dataclass(frozen=True)
class Prediction:
    """What a network predicts at context cells, and the way back to x_0.

    Attributes
    ----------
    target
        (x_0, noise, alpha_t, sigma_t) → the target of the network.
    estimate
        (output, x_t, alpha_t, sigma_t) → x_0.
    """

    target: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    estimate: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


# No floor under alpha_t: it is 0.0066 at t = 1, so the division is exact, but there noise prediction multiplies the
# network's error by 150. Samplers lose nothing (alpha_t multiplies it back); a fill happens at t = delta, alpha_t = 1.
# What a network may predict, by name. Another choice needs a line here with both directions of its conversion.
PREDICTIONS: dict[str, Prediction] = {
    "data": Prediction(
        target=lambda x_0, noise, alpha_t, sigma_t: x_0,
        estimate=lambda output, x_t, alpha_t, sigma_t: output,
    ),
    "noise": Prediction(
        target=lambda x_0, noise, alpha_t, sigma_t: noise,
        estimate=lambda output, x_t, alpha_t, sigma_t: (x_t - sigma_t * output) / alpha_t,
    ),
    "velocity": Prediction(
        target=lambda x_0, noise, alpha_t, sigma_t: alpha_t * noise - sigma_t * x_0,
        estimate=lambda output, x_t, alpha_t, sigma_t: alpha_t * x_t - sigma_t * output,
    ),
}


class Denoiser(nn.Module):
    """A first estimate corrected by a network.

    Parameters
    ----------
    network
        a module with (3 + F) C + K input features and C outputs, or 2 C with ``spread``; F is the number of features
        that the chain offers for each variable, K the number of maps.
    schedule
        gives alpha_t, sigma_t.
    chain
        the first estimate, also a feature of the network. The network corrects it where it predicts x_0: everywhere
        with "data", outside the context otherwise.
    prediction
        a name in `PREDICTIONS`.
    spread
        whether the network has C more outputs for the log-variance.
    scales
        units of the inputs and outputs of the network; None leaves those of the data. For "data" only.
    """

    gain: Tensor

    def __init__(
        self,
        network: Network,
        schedule: VPSchedule,
        chain: Chain,
        prediction: str = "data",
        spread: bool = False,
        scales: Scales | None = None,
    ) -> None:
        super().__init__()
        assert scales is None or prediction == "data"
        self.network, self.schedule, self.chain, self.scales = network, schedule, chain, scales
        self.prediction, self.spread = prediction, spread
        # Share of the network's correction that is used: all of it in training, then what validation decides.
        self.register_buffer("gain", torch.ones(()))

    def forward(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> Tensor:
        """Estimate of x_0 (B, C, T, H, W) from t (B,), x_t and context (B, C, T, H, W), and maps (B, K, H, W)."""
        return self.predict(t, x_t, context, maps)[0]

    def predict(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        """Estimate of x_0 and its variance given the context, both (B, C, T, H, W); None without ``spread``."""
        output, log_variance = self.outputs(t, x_t, context, maps)
        variance = None if log_variance is None else log_variance.exp()
        return self.convert(t, x_t, context, output), variance

    def outputs(
        self,
        t: Tensor,
        x_t: Tensor,
        context: Tensor,
        maps: Tensor,
        cut: Cut = whole,
        first: Answer | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """What the network predicts and its log-variance of x_0, both (B, C, T, H, W).

        ``cut`` takes some frames out of a crop: the first estimate is made of all of them, but the network sees and
        predicts only these. ``first`` is the first estimate where it has been made already.
        """
        guess, answer, log_variance = self._answer(t, x_t, context, maps, cut, first)
        return self._join(guess, answer, cut(context)), log_variance

    def compare(
        self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor, first: Answer | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first estimate, that of the denoiser, and the variance, all (B, C, T, H, W)."""
        guess, answer, log_variance = self._answer(t, x_t, context, maps, first=first)
        variance = None if log_variance is None else log_variance.exp()
        return guess, self.convert(t, x_t, context, self._join(guess, answer, context)), variance

    def _join(self, guess: Tensor, answer: Tensor, context: Tensor) -> Tensor:
        if self.prediction == "data":
            return guess + self.gain * answer
        return torch.where(context, 0, guess) + answer

    def _answer(
        self,
        t: Tensor,
        x_t: Tensor,
        context: Tensor,
        maps: Tensor,
        cut: Cut = whole,
        first: Answer | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first estimate, what the network adds to it, and its log-variance."""
        x = torch.where(context, x_t, 0)
        found = (self.first(t, x, context, maps) if first is None else first).mapped(cut)
        x, context, guess, fields = cut(x), cut(context), found.estimate, found.fields
        log_snr, unit = self.schedule.log_snr(t), self.unit(t)
        if self.scales is not None:
            misfit, _ = self.scales(log_snr)
            x = torch.where(context, x - levels(self.schedule, t)[0] * guess, 0) / misfit
            fields = tuple(field / unit for field in fields)
        b, variables, frames, _, _ = x.shape
        static = maps[:, :, None].expand(b, -1, frames, -1, -1)
        features = torch.cat([x, context.to(x.dtype), guess, *fields, *found.shares, static], dim=1)
        answer = self.network(features, log_snr)
        log_variance = _log_variance(answer[:, variables:]) + 2 * unit.log() if self.spread else None
        return guess, unit * answer[:, :variables], log_variance

    def unit(self, t: Tensor) -> Tensor:
        """Scale of the network output, (B, C, 1, 1, 1) or (B, 1, 1, 1, 1)."""
        if self.scales is None:
            return torch.ones_like(t).view(-1, 1, 1, 1, 1)
        return self.scales(self.schedule.log_snr(t))[1]

    def first(self, t: Tensor, x: Tensor, context: Tensor, maps: Tensor) -> Answer:
        """The first estimate, from x_t at the context cells and 0 elsewhere, and the features that come with it."""
        alpha_t, sigma_t = levels(self.schedule, t)
        return self.chain(Given(x / alpha_t, context, (sigma_t / alpha_t) ** 2, maps))

    @torch.no_grad()
    def learn_first(self, lesson: Lesson) -> dict[str, dict[str, float]]:
        """Fits the chain, then the units in which the network sees what it leaves; returns what was found."""
        found = self.chain.learn(lesson)
        if self.scales is not None:
            self._learn_scales(self.scales, lesson)
        return found

    def _learn_scales(self, scales: Scales, lesson: Lesson, crops: int = 8) -> None:
        batch, noise, context, query = draw_examples(lesson, range(crops))
        for level, log_snr in enumerate(scales.log_snr):
            t = self.schedule.time(log_snr).expand(lesson.crops.at_once)
            sums = torch.zeros(4, batch.x.shape[1], dtype=torch.float64)
            tensors = (batch.x, noise, context, query, batch.maps)
            for parts in zip(*(tensor.split(len(t)) for tensor in tensors)):
                sums += self._misses(t[: len(parts[0])], *parts)
            scales.learn(level, sums[0] / sums[1], sums[2] / sums[3])

    def _misses(self, t: Tensor, x: Tensor, noise: Tensor, context: Tensor, query: Tensor, maps: Tensor) -> Tensor:
        """Sum and number of squared misfits at context cells, then of squared residuals at query cells (4, C)."""
        x_t = torch.where(context, noised(self.schedule, t, x, noise), 0)
        guess = self.first(t, x_t, context, maps).estimate
        misses = (x_t - levels(self.schedule, t)[0] * guess).square(), (x - guess).square()
        terms = [(torch.where(cells, miss, 0), cells) for miss, cells in zip(misses, (context, query))]
        return torch.stack([term.double().sum((0, 2, 3, 4)) for pair in terms for term in pair])

    def convert(self, t: Tensor, x_t: Tensor, context: Tensor, output: Tensor) -> Tensor:
        """The x_0 (B, C, T, H, W) that an output of the network means."""
        seen = PREDICTIONS[self.prediction].estimate(output, x_t, *levels(self.schedule, t))
        return torch.where(context, seen, output)

    def target(self, t: Tensor, x: Tensor, noise: Tensor, context: Tensor) -> Tensor:
        """The output (B, C, T, H, W) that means x; the inverse of `convert`."""
        seen = PREDICTIONS[self.prediction].target(x, noise, *levels(self.schedule, t))
        return torch.where(context, seen, x)


def levels(schedule: VPSchedule, t: Tensor) -> tuple[Tensor, Tensor]:
    """alpha_t and sigma_t, (B, 1, 1, 1, 1)."""
    return schedule.alpha(t).view(-1, 1, 1, 1, 1), schedule.sigma(t).view(-1, 1, 1, 1, 1)


def noised(schedule: VPSchedule, t: Tensor, x: Tensor, noise: Tensor) -> Tensor:
    """x_t = alpha_t x + sigma_t noise with t (B,)."""
    shape = (-1, *(1,) * (x.ndim - 1))
    return schedule.alpha(t).view(shape) * x + schedule.sigma(t).view(shape) * noise


def _log_variance(raw: Tensor, least: float = 1e-5) -> Tensor:
    """Squeezes raw outputs smoothly into the range of log-variances; 0 gives `FIRST_VARIANCE`, with slope near 1.

    Without a smallest variance ``least`` the likelihood would have no lower bound.
    """
    low, high = math.log(least), math.log(LARGEST_VARIANCE)
    share = (math.log(FIRST_VARIANCE) - low) / (high - low)
    slope = 1 / (share * (1 - share) * (high - low))
    return low + (high - low) * torch.sigmoid(slope * raw + math.log(share / (1 - share)))
