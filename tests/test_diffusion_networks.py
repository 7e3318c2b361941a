"""Laws of every network, of magnitude-preserving layers, of the spectral layer and of folded patches."""

from functools import partial
from itertools import product

import pytest
import torch

from conftest import NO_COVARIANCE, draw, rms, seeded, stir
from fieldfill.config import NETWORKS, PATCHED, Settings, build_denoiser
from fieldfill.diffusion.networks.fno import SpectralConv
from fieldfill.diffusion.networks.karras import MPBlock, MPConv, MPEmbedding, MPLinear, mp_join, mp_silu, mp_sum
from fieldfill.diffusion.networks.layers import fold, unfold
from fieldfill.diffusion.networks.network import Network
from fieldfill.diffusion.networks.refiner import Refiner
from fieldfill.diffusion.networks.space_time import PRESERVING, SpaceTimeUNet, TemporalAttention, TemporalConvolution
from fieldfill.diffusion.networks.unet import FoldedUNet

ALL = NETWORKS | {
    "patches of 2": partial(FoldedUNet, patch=2),
    "patches of 3": partial(FoldedUNet, patch=3),
    "temporal convolution": partial(SpaceTimeUNet, temporal="convolution"),
}
SHAPES = [(2, 1, 4, 16, 16), (1, 3, 5, 13, 18), (2, 2, 1, 7, 11), (1, 1, 2, 1, 9)]


def build(name, features=3, variables=1, frames=4, periodic=(False, False), levels=3, speaks=True) -> Network:
    """A small network; random numbers on its weights make it speak, since untrained it is silent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ALL[name](features, variables, frames, base=8, levels=levels, periodic=periodic)
    if speaks:
        stir(network)
    return network


@pytest.mark.parametrize("periodic", [(False, True), (True, False)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_any_grid_is_taken_and_every_weight_learns(name, shape, periodic) -> None:
    b, variables, frames, rows, columns = shape
    network = build(name, 3 * variables, variables, frames, periodic)
    output = network(draw(b, 3 * variables, frames, rows, columns), torch.linspace(-5, 9, b))
    assert output.shape == shape
    (output * draw(*shape, seed=2)).sum().backward()
    for label, p in network.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all(), label
        # Attention of a frame to itself alone has nothing to weigh.
        assert p.grad.any() or (frames == 1 and "position" in label), label


@pytest.mark.parametrize("name", ALL)
def test_every_network_follows_the_protocol(name) -> None:
    assert isinstance(build(name), Network)
    assert not isinstance(torch.nn.Linear(3, 1), Network)


@pytest.mark.parametrize("name", ALL)
def test_untrained_network_is_silent(name) -> None:
    network = build(name, speaks=False)
    assert not network(draw(2, 3, 4, 9, 10), torch.zeros(2)).any()


@pytest.mark.parametrize("name", ALL)
def test_noise_level_changes_the_answer(name) -> None:
    network = build(name)
    features = draw(1, 3, 4, 9, 10).expand(5, -1, -1, -1, -1)
    answers = network(features, torch.tensor([-9.0, -3.0, 0.0, 4.0, 9.0]))
    assert torch.pdist(answers.flatten(1)).min() > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_samples_do_not_see_each_other(name) -> None:
    network = build(name).eval()
    features, log_snr = draw(3, 3, 4, 9, 10), torch.tensor([-1.0, 0.0, 5.0])
    alone = torch.cat([network(features[i : i + 1], log_snr[i : i + 1]) for i in range(3)])
    assert torch.allclose(network(features, log_snr), alone, atol=1e-5)


@pytest.mark.parametrize("periodic", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_periodic_axes_have_no_edge(name, periodic) -> None:
    """Rolling the input along a periodic axis by a multiple of the coarsest cell rolls the output, and only there."""
    stride = 4 * getattr(ALL[name], "keywords", {}).get("patch", 1)
    network = build(name, periodic=periodic).eval()
    features, log_snr = draw(1, 3, 4, 2 * stride, 2 * stride), torch.zeros(1)
    for axis, around in zip((-2, -1), periodic):
        rolled = network(features.roll(stride, axis), log_snr).roll(-stride, axis)
        difference = (rolled - network(features, log_snr)).abs().max()
        assert difference < 1e-4 if around else difference > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_every_frame_and_cell_can_inform_every_other_nearby(name) -> None:
    """A change in one cell of the first frame reaches its neighbours and the next frame."""
    network = build(name).eval()
    features = draw(1, 3, 4, 8, 8)
    changed = features.clone()
    changed[0, 0, 0, 4, 4] += 1
    difference = (network(changed, torch.zeros(1)) - network(features, torch.zeros(1))).abs()
    assert difference[0, 0, 0, 3:6, 3:6].min() > 1e-7
    assert difference[0, 0, 1].max() > 1e-7


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("prediction", ["data", "noise", "velocity"])
def test_no_denoiser_looks_outside_the_context(network, prediction) -> None:
    config = Settings(window=3, network=network, prediction=prediction, base=8, levels=2, estimators=NO_COVARIANCE)
    denoiser = build_denoiser(config, (3, 9, 10), 1, (False, False), seed=0)
    stir(denoiser.eval())
    x, context = draw(1, 1, 3, 9, 10), draw(1, 1, 3, 9, 10, seed=1) > 0
    other = torch.where(context, x, torch.full_like(x, 1e3))
    t, maps = torch.tensor([0.1]), torch.zeros(1, 0, 9, 10)
    for a, b in zip(denoiser.predict(t, x, context, maps), denoiser.predict(t, other, context, maps)):
        assert torch.equal(a, b)


def test_patches_are_for_the_network_that_has_them() -> None:
    for network in NETWORKS:
        folded, plain = (
            build_denoiser(Settings(patch=patch, base=8, network=network), (8, 8, 8), 1, (False, False), seed=0)
            for patch in (2, 1)
        )
        shapes = [[p.shape for p in denoiser.network.parameters()] for denoiser in (folded, plain)]
        assert (shapes[0] != shapes[1]) == (network in PATCHED)
    with pytest.raises(ValueError, match="unknown prediction 'score'"):
        Settings(prediction="score")


@pytest.mark.parametrize("patch", [1, 2, 3])
@pytest.mark.parametrize("periodic", [(False, True), (True, False)], ids=str)
def test_unfolding_undoes_folding(patch, periodic) -> None:
    x = draw(2, 3, 7, 10)
    folded = fold(x, patch, periodic)
    assert folded.shape == (2, 3 * patch**2, -(-7 // patch), -(-10 // patch))
    assert torch.equal(unfold(folded, patch, (7, 10)), x)


def test_periodic_patches_go_on_around() -> None:
    x = torch.arange(3.0).view(1, 1, 1, 3)
    assert fold(x.expand(1, 1, 2, 3), 2, (False, True))[0, :, 0, 1].tolist() == [2, 0, 2, 0]
    assert fold(x.expand(1, 1, 2, 3), 2, (False, False))[0, :, 0, 1].tolist() == [2, 0, 2, 0]
    y = x + 1
    assert fold(y.expand(1, 1, 2, 3), 2, (False, True))[0, :, 0, 1].tolist() == [3, 1, 3, 1]
    assert fold(y.expand(1, 1, 2, 3), 2, (False, False))[0, :, 0, 1].tolist() == [3, 0, 3, 0]


# Magnitude preservation


def images(channels, seed=0):
    return draw(4, channels, 16, 16, seed=seed)


LAYERS = {
    "conv": lambda: MPConv(32, 48, 3, (True, True))(images(32)),
    "strided conv": lambda: MPConv(32, 48, 3, (True, True), stride=2)(images(32)),
    "pointwise conv": lambda: MPConv(32, 48, 1, (False, False))(images(32)),
    "linear": lambda: MPLinear(64, 200)(draw(200, 64)),
    "silu": lambda: mp_silu(images(32)),
    "sum": lambda: mp_sum(images(32), images(32, seed=1)),
    "join": lambda: mp_join(images(32), images(8, seed=1)),
    "block": lambda: MPBlock(32, 48, 16, (True, True))(images(32), draw(4, 16)),
    "embedding": lambda: MPEmbedding(256)(torch.linspace(-9, 9, 200)),
    "temporal convolution": lambda: TemporalConvolution(32, 40, PRESERVING)(draw(30, 40, 32)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_magnitude_preserving_layers_keep_unit_variance(name) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        assert rms(LAYERS[name]()) == pytest.approx(1, abs=0.1)


def test_magnitude_is_kept_whatever_the_size_of_the_weights() -> None:
    """A weight and its thousandfold are the same layer; in training the weight itself is brought back."""
    layer = MPConv(8, 8, 3, (True, True)).eval()
    before = layer(images(8))
    with torch.no_grad():
        layer.weight.mul_(1000)
    assert torch.allclose(layer(images(8)), before, atol=1e-3)
    layer.train()(images(8))
    rows = layer.weight.square().mean((1, 2, 3)).sqrt()
    assert torch.allclose(rows, torch.ones(8), atol=1e-3)


def test_both_sides_of_a_join_count_alike() -> None:
    joined = mp_join(images(32), images(8, seed=1))
    assert joined[:, :32].square().sum() == pytest.approx(joined[:, 32:].square().sum().item(), rel=0.1)


# Time


def test_attention_knows_the_order_of_frames() -> None:
    layer = TemporalAttention(16, 6, PRESERVING)
    x = draw(5, 6, 16)
    backwards = layer(x.flip(1)).flip(1)
    assert torch.allclose(layer(x), backwards, atol=1e-5)  # without positions the frames are a set
    with torch.no_grad():
        layer.position.add_(draw(*layer.position.shape))
    assert (layer(x) - layer(x.flip(1)).flip(1)).abs().max() > 0.01


@pytest.mark.parametrize("name", ["space-time-unet", "karras-unet"])
def test_without_positions_the_frames_of_a_window_are_a_set(name) -> None:
    network, features = build(name).eval(), draw(1, 3, 4, 8, 8)
    with torch.no_grad():
        for label, p in network.named_parameters():
            if "position" in label:
                p.zero_()
    order = [2, 0, 3, 1]
    shuffled = network(features[:, :, order], torch.zeros(1))
    assert torch.allclose(shuffled, network(features, torch.zeros(1))[:, :, order], atol=1e-5)


@pytest.mark.parametrize("name", ["space-time-unet", "karras-unet", "fno"])
def test_networks_over_time_take_any_number_of_frames(name) -> None:
    network = build(name, frames=4)
    for frames in (1, 3, 9):
        assert network(draw(1, 3, frames, 8, 8), torch.zeros(1)).shape == (1, 1, frames, 8, 8)


@pytest.mark.parametrize("preserving", [False, True])
def test_recomputing_changes_memory_only(preserving) -> None:
    gradients = []
    for recompute in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = SpaceTimeUNet(3, 1, 4, 8, 2, magnitude_preserving=preserving, recompute=recompute)
        stir(network)
        network(draw(2, 3, 4, 8, 8), torch.zeros(2)).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-4)


# Fourier


@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 7, 9), (5, 16, 6), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("periodic", [(True, True, True), (False, False, False), (False, True, False)], ids=str)
def test_spectral_layer_with_all_modes_and_unit_weights_is_the_identity(shape, periodic) -> None:
    layer = SpectralConv(2, 2, (9, 12, 12), periodic)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0] = torch.eye(2)
    x = draw(3, 2, *shape)
    assert torch.allclose(layer(x), x, atol=1e-5)


@pytest.mark.parametrize("modes", [(3, 4, 5), (6, 9, 10)], ids=["fewer than the grid has", "more"])
def test_spectral_layer_multiplies_each_wavenumber_by_its_own_matrix(modes) -> None:
    layer, x = SpectralConv(3, 4, modes, (False, True, False)), draw(2, 3, 5, 12, 11)
    padded, dims = (7, 12, 14), (-3, -2, -1)
    before = torch.fft.rfftn(x, s=padded, dim=dims)
    after = before.new_zeros(2, 4, *before.shape[2:])
    matrices = torch.complex(*layer.weight)
    frames, rows, columns = modes
    for a, b, c in product(range(-3, 4), range(-6, 6), range(8)):
        if abs(a) < frames and abs(b) < rows and c < columns:
            after[:, :, a, b, c] = before[:, :, a, b, c] @ matrices[a + frames - 1, b + rows - 1, c]
    expected = torch.fft.irfftn(after, s=padded, dim=dims)[:, :, :5, :, :11]
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_spectral_layer_drops_what_lies_above_its_modes() -> None:
    layer = SpectralConv(1, 1, (1, 3, 3), (True, True, True))
    column = torch.arange(16) * 2 * torch.pi / 16
    waves = torch.stack([torch.cos(k * column + 0.3) for k in range(6)])[:, None, None, None, :].expand(
        -1, 1, 1, 16, -1
    )
    response = layer(waves).flatten(1).abs().amax(1)
    assert (response[:3] > 1e-3).all() and (response[3:] < 1e-5).all()


def test_state_dicts_hold_real_numbers_only() -> None:
    for name in ALL:
        assert not any(tensor.is_complex() for tensor in build(name).state_dict().values())


def test_fourier_operator_learns_a_shift_of_a_periodic_field() -> None:
    """A shift by 5 cells is out of reach of small convolutions; a spectral layer has it as a rotation of phases."""
    network = build("fno", features=1, frames=1, periodic=(True, True), levels=1, speaks=False)
    generator = seeded()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    k = torch.hypot(torch.fft.fftfreq(16, 1 / 16)[:, None], torch.arange(9.0))
    smooth = torch.exp(-(k**2) / 8)
    errors = []
    for _ in range(100):
        white = torch.randn(8, 1, 1, 16, 16, generator=generator)
        x = torch.fft.irfft2(torch.fft.rfft2(white) * smooth)
        x = x / x.std()
        loss = (network(x, torch.zeros(8)) - x.roll((3, 5), (-2, -1))).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(loss.item())
    assert errors[0] == pytest.approx(1, rel=0.05)
    assert errors[-1] < 0.1, errors[-1]


def test_one_refiner_serves_windows_of_any_length_and_treats_their_frames_alike() -> None:
    network = build("refiner").eval()
    features, log_snr = draw(1, 3, 9, 8, 8), torch.zeros(1)
    whole = network(features, log_snr)
    later = network(features[:, :, 2:], log_snr)
    assert torch.allclose(later[:, :, 1:], whole[:, :, 3:], atol=1e-6)
    assert not torch.allclose(later[:, :, 0], whole[:, :, 2], atol=1e-4)  # the frame before it is not seen any more


def test_a_refiner_looks_farther_than_a_small_periodic_axis_is_long() -> None:
    network = Refiner(3, 1, 2, base=8, levels=4, periodic=(True, True))
    stir(network)
    features = draw(1, 3, 2, 6, 8)
    rolled = network(features.roll((2, 4), (-2, -1)), torch.zeros(1)).roll((-2, -4), (-2, -1))
    assert torch.allclose(rolled, network(features, torch.zeros(1)), atol=1e-5)
