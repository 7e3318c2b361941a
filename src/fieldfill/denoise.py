r"""The denoiser x_theta(t, context · x_t, context): an estimate of the complete clean field from a noisy part of it.

.. math:: L = \| M_{qry} \odot (x_\theta(t, M_{ctx} \odot x_t, M_{ctx}) - x_{obs}) \|^2

The network sees the context and never the query or the observation mask. Theorem 1 of the paper: the optimum is
E[x_0 | context] at every cell whose query probability given the context is positive, and arbitrary elsewhere.

*What the network predicts.* The field x_0 itself ("data"), the noise eps of x_t = alpha_t x_0 + sigma_t eps ("noise"),
or v = alpha_t eps - sigma_t x_0 ("velocity"). The last two exist only where x_t is seen: outside the context eps is
independent of all that is known, so there the network predicts x_0 whatever the choice. Each choice converts to x_0:

.. math:: x_0 = (x_t - \sigma_t \epsilon) / \alpha_t = \alpha_t x_t - \sigma_t v

*The first estimate* that the network corrects is that of a skip, which knows the covariance of the data; to it come
what the motion of this window carries into its gaps (`fieldfill.nn.transport`) and what maps and the neighbourhood of a
cell say (`fieldfill.nn.local`).

*Units.* Where the first estimate is good, the network sees what it missed at the context cells, and answers, in units
of what it misses at that noise level (`fieldfill.nn.scales`); losses are in these units, too.

*How sure it is.* A second set of outputs may give the log-variance of x_0 given the context; it learns from the
Gaussian likelihood of the residual.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldfill.nn.local import LocalRegression
from fieldfill.nn.scales import Scales
from fieldfill.nn.transport import Transport
from fieldfill.schedule import VPSchedule

__all__ = ["PREDICTIONS", "Denoiser", "Prediction", "levels", "matching_losses", "noised"]

Skip = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Cut = Callable[[Tensor], Tensor]


def _whole(x: Tensor) -> Tensor:
    """Cuts nothing off."""
    return x


# Variances in the units of the network: what an untrained head says, and the range it can say.
FIRST_VARIANCE, LEAST_VARIANCE, LARGEST_VARIANCE = 0.5, 1e-5, 10.0

# The likelihood shares the network's trunk with the mean. Its gradient does not shrink with the residual, that of the
# squared error does; times the predicted deviation, the two keep their ratio however good the mean becomes, and the
# optimum stays where it was because that deviation depends on the context alone. A small weight is enough: outputs
# that only the likelihood reaches learn at full speed, because Adam rescales each gradient.
SPREAD_WEIGHT = 0.25

# Variance by which a skip misses what it is given: it smooths a little. Less noise than that, and what was seen is
# better than the skip.
MISFIT = 0.01


@dataclass(frozen=True)
class Prediction:
    """What a network predicts at context cells, and the way back to x_0.

    Attributes
    ----------
    target
        (x_0, noise, alpha_t, sigma_t) → what the network should say.
    estimate
        (output, x_t, alpha_t, sigma_t) → x_0.
    """

    target: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    estimate: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


# No floor under alpha_t: it is 0.0066 at t = 1, so the division is exact, but there noise prediction multiplies the
# network's error by 150. Samplers lose nothing (alpha_t multiplies it back); a fill happens at t = delta, alpha_t = 1.
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

    Arguments
    ---------
    network
        (features (B, 3C + K, T, H, W), log_snr (B,)) → (B, C, T, H, W), or (B, 2C, T, H, W) with ``spread``; with
        ``transport`` there are 5C + K features.
    schedule
        gives alpha_t, sigma_t.
    skip
        (x, context, alpha_t, sigma_t) → first estimate (B, C, T, H, W); also a feature of the network. The network
        corrects it where it predicts x_0: everywhere with "data", outside the context otherwise.
    static
        (K, H, W) maps that do not change in time, such as the domain; features of the network.
    prediction
        a name in `PREDICTIONS`.
    spread
        whether the network has C more outputs for the log-variance.
    transport
        adds to the skip what the motion of the window carries; its correction and the trust in it are features.
    local
        adds to that what the neighbourhood says.
    scales
        units of what the network sees and says; None leaves those of the data. For "data" only.
    """

    static: Tensor
    gain: Tensor

    def __init__(
        self,
        network: nn.Module,
        schedule: VPSchedule,
        skip: Skip,
        static: Tensor,
        prediction: str = "data",
        spread: bool = False,
        transport: Transport | None = None,
        local: LocalRegression | None = None,
        scales: Scales | None = None,
    ) -> None:
        super().__init__()
        assert scales is None or prediction == "data"
        self.network, self.schedule, self.skip = network, schedule, skip
        self.transport, self.local, self.scales = transport, local, scales
        self.prediction, self.spread = prediction, spread
        self.register_buffer("static", static)
        # How much of the network's correction is used: all of it in training, what validation says afterwards.
        self.register_buffer("gain", torch.ones(()))

    def forward(self, t: Tensor, x_t: Tensor, context: Tensor) -> Tensor:
        """Estimate of x_0 (B, C, T, H, W) from t (B,), x_t and context (B, C, T, H, W)."""
        return self.predict(t, x_t, context)[0]

    def predict(self, t: Tensor, x_t: Tensor, context: Tensor) -> tuple[Tensor, Tensor | None]:
        """Estimate of x_0 and its variance given the context, both (B, C, T, H, W); None without ``spread``."""
        output, log_variance = self.outputs(t, x_t, context)
        variance = None if log_variance is None else log_variance.exp()
        return self.convert(t, x_t, context, output), variance

    def outputs(self, t: Tensor, x_t: Tensor, context: Tensor, cut: Cut = _whole) -> tuple[Tensor, Tensor | None]:
        """What the network predicts and its log-variance of x_0, both (B, C, T, H, W).

        ``cut`` takes some frames out of a window: the first estimate is made of all of them, but the network sees and
        predicts only these.
        """
        guess, answer, log_variance = self._answer(t, x_t, context, cut)
        return self._join(guess, answer, cut(context)), log_variance

    def compare(self, t: Tensor, x_t: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first estimate, that of the denoiser, and the variance, all (B, C, T, H, W)."""
        guess, answer, log_variance = self._answer(t, x_t, context)
        variance = None if log_variance is None else log_variance.exp()
        return guess, self.convert(t, x_t, context, self._join(guess, answer, context)), variance

    def _join(self, guess: Tensor, answer: Tensor, context: Tensor) -> Tensor:
        if self.prediction == "data":
            return guess + self.gain * answer
        return torch.where(context, 0, guess) + answer

    def _answer(
        self, t: Tensor, x_t: Tensor, context: Tensor, cut: Cut = _whole
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first estimate, what the network adds to it, and its log-variance."""
        x = torch.where(context, x_t, 0)
        guess, moved = self.first(t, x, context)
        x, context, guess, *moved = map(cut, (x, context, guess, *moved))
        log_snr, unit = self.schedule.log_snr(t), self.unit(t)
        if self.scales is not None:
            misfit, _ = self.scales(log_snr)
            x = torch.where(context, x - levels(self.schedule, t)[0] * guess, 0) / misfit
            moved = [moved[0] / unit, moved[1]] if moved else moved
        b, variables, frames, _, _ = x.shape
        static = self.static[None, :, None].expand(b, -1, frames, -1, -1)
        features = torch.cat([x, context.to(x.dtype), guess, *moved, static], dim=1)
        answer = self.network(features, log_snr)
        log_variance = _log_variance(answer[:, variables:]) + 2 * unit.log() if self.spread else None
        return guess, unit * answer[:, :variables], log_variance

    def unit(self, t: Tensor) -> Tensor:
        """Of what the network says, (B, C, 1, 1, 1) or (B, 1, 1, 1, 1)."""
        if self.scales is None:
            return torch.ones_like(t).view(-1, 1, 1, 1, 1)
        return self.scales(self.schedule.log_snr(t))[1]

    def first(self, t: Tensor, x: Tensor, context: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The first estimate, from x_t at the context cells and 0 elsewhere, and what the motion says.

        The latter are its share of the estimate and the trust in it.
        """
        guess, seen = self.skip_and_seen(t, x, context)
        moved: Sequence[Tensor] = ()
        if self.transport is not None:
            moved = self.transport(guess, seen, context)
            guess = guess + moved[0]
        if self.local is not None:
            guess = guess + self.local(guess, seen, context, self.static)
        return guess, moved

    def skip_and_seen(self, t: Tensor, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The skip, and the best that is known of x_0 at the context cells, from x_t there and 0 elsewhere."""
        alpha_t, sigma_t = levels(self.schedule, t)
        guess = self.skip(x, context, alpha_t, sigma_t)
        return guess, torch.lerp(guess, x / alpha_t, MISFIT / (MISFIT + (sigma_t / alpha_t) ** 2))

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


def matching_losses(
    denoiser: Denoiser,
    t: Tensor,
    x: Tensor,
    noise: Tensor,
    context: Tensor,
    query: Tensor,
    cut: Cut = _whole,
) -> tuple[Tensor, Tensor]:
    """Loss (B,) of each sample over its own query cells, and whether it has any (B,) bool; see `Denoiser.outputs`.

    The squared error is taken in the space and the units of the denoiser's prediction. A sample without a query cell
    has loss 0.
    """
    x_t = noised(denoiser.schedule, t, x, noise)
    output, log_variance = denoiser.outputs(t, x_t, context, cut)
    x, x_t, noise, context, query = map(cut, (x, x_t, noise, context, query))
    unit = denoiser.unit(t)
    error = ((output - denoiser.target(t, x, noise, context)) / unit).square()
    if log_variance is not None:
        log_variance = log_variance - 2 * unit.log()
        residual = ((x - denoiser.convert(t, x_t, context, output.detach())) / unit).square()
        # Beyond the range the head has no answer, and noise prediction can be off by a hundred near t = 1.
        residual = residual.clamp(max=LARGEST_VARIANCE)
        weight = SPREAD_WEIGHT * torch.exp(0.5 * log_variance.detach())
        error = error + weight * (log_variance + residual * torch.exp(-log_variance))
    cells = query.flatten(1).sum(1)
    return torch.where(query, error, 0).flatten(1).sum(1) / cells.clamp(min=1), cells > 0


def _log_variance(raw: Tensor) -> Tensor:
    """Squeezes raw outputs smoothly into the range of log-variances; 0 gives `FIRST_VARIANCE`, with slope near 1."""
    low, high = math.log(LEAST_VARIANCE), math.log(LARGEST_VARIANCE)
    share = (math.log(FIRST_VARIANCE) - low) / (high - low)
    slope = 1 / (share * (1 - share) * (high - low))
    return low + (high - low) * torch.sigmoid(slope * raw + math.log(share / (1 - share)))
