import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neuralfde
from neuralfde.models.image import ConvFDE, TimeConv2d, taps_inside


def gradients(model, images, labels):
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


def test_the_papers_model_has_its_shapes():
    model = ConvFDE(t=0.2)
    images = torch.randn(2, 1, 28, 28)
    assert model.stem(images).shape == (2, 64, 6, 6)
    assert model(images).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == 208_266


@pytest.mark.parametrize(
    ("shape", "downsamplings", "state"),
    [((1, 8, 8), None, (3, 3)), ((1, 8, 8), 0, (6, 6)), ((3, 32, 32), None, (7, 7)), ((2, 9, 12), 0, (7, 10))],
)
def test_any_size_and_channels(shape, downsamplings, state):
    model = ConvFDE(shape, classes=4, width=8, depth=1, downsamplings=downsamplings, t=0.2)
    images = torch.randn(3, *shape)
    assert model.stem(images).shape == (3, 8, *state)
    assert model(images).shape == (3, 4)


def test_too_many_downsamplings_are_refused():
    with pytest.raises(neuralfde.InputError, match="use fewer"):
        ConvFDE((1, 8, 8), downsamplings=4)


def test_images_that_a_model_was_not_made_for_are_refused():
    model = ConvFDE((1, 8, 8), width=4, t=0.1)
    for shape in ((2, 3, 8, 8), (1, 8, 8)):
        with pytest.raises(neuralfde.InputError, match=r"here \(batch, 1, 8, 8\)"):
            model(torch.zeros(shape))
    with pytest.raises(neuralfde.InputTypeError, match=r"uint8.*images\.float"):
        model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(neuralfde.InputError, match=r"12 × 16 pixels .* for 8 × 8.*ConvFDE\(\(1, 12, 16\)"):
        model(torch.zeros(2, 1, 12, 16))
    assert ConvFDE((1, 8, 8), width=4, t=0.1, time=False)(torch.zeros(2, 1, 12, 16)).shape == (2, 10)


def test_what_makes_no_model_is_refused():
    with pytest.raises(neuralfde.InputError, match=r"shape=\(8, 8\) must be \(channels, rows, columns\)"):
        ConvFDE((8, 8))
    with pytest.raises(neuralfde.InputError, match="width=0 must be"):
        ConvFDE((1, 8, 8), width=0)
    with pytest.raises(neuralfde.InputTypeError, match="head takes the state at this time"):
        ConvFDE((1, 8, 8), t=torch.linspace(0, 1, 3))


def test_images_of_another_dtype_are_refused_unless_autocast_converts_them():
    model, images = ConvFDE((1, 8, 8), width=4, t=0.1), torch.rand(2, 1, 8, 8)
    for dtype in (torch.float64, torch.float16, torch.complex64):
        with pytest.raises(neuralfde.InputTypeError, match=rf"images have dtype {dtype}, the model torch.float32"):
            model(images.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(images.bfloat16()).shape == (2, 10)


@pytest.mark.parametrize("assign", [False, True])
def test_a_model_made_on_the_meta_device_gets_its_values_later(assign):
    """The mask of the taps is in no file: it has to be right without one."""
    model, images = ConvFDE((1, 8, 8), width=4, t=0.1), torch.rand(2, 1, 8, 8)
    with torch.device("meta"):
        empty = ConvFDE((1, 8, 8), width=4, t=0.1)
    empty = empty if assign else empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict(), assign=assign)
    assert torch.equal(empty(images), model(images))
    assert torch.equal(model.to("meta").to_empty(device="cpu").fde.func.taps, taps_inside(3, 3))
    assert empty.double().fde.func.taps.dtype == torch.float64


@pytest.mark.parametrize("width", [1, 5, 6, 9, 64])
def test_any_width_can_be_normalised(width):
    groups = ConvFDE((1, 8, 8), width=width, t=0.1).head[0].num_groups
    assert width % groups == 0
    assert groups == {64: 32, 6: 1}.get(width, 1)


def test_time_is_one_more_channel():
    conv = TimeConv2d(4).double()
    z, t = torch.randn(2, 4, 5, 6, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    wide = nn.Conv2d(5, 4, 3, padding=1).double()
    with torch.no_grad():
        wide.weight.copy_(torch.cat([conv.time.view(4, 1, 3, 3), conv.conv.weight], 1))
        wide.bias.copy_(conv.conv.bias)
    expected = wide(torch.cat([t.expand(2, 1, 5, 6), z], 1))
    torch.testing.assert_close(conv(t, z, taps_inside(5, 6).double()), expected)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("learn_order", [False, True])
def test_exact_gradients_are_those_of_autograd(depth, learn_order):
    torch.manual_seed(0)
    model = ConvFDE((1, 8, 8), width=4, depth=depth, order=0.4, learn_order=learn_order, t=1.0).double()
    images, labels = torch.randn(3, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 3, 9])
    exact = gradients(model, images, labels)
    model.fde.options["adjoint"] = "direct"
    direct = gradients(model, images, labels)
    assert ("fde.raw_order" in exact) == learn_order
    for name, value in exact.items():
        torch.testing.assert_close(value, direct[name], rtol=1e-10, atol=1e-12)


def test_channels_last_changes_the_layout_only():
    torch.manual_seed(0)
    first = ConvFDE((1, 8, 8), width=8, t=0.5).double()
    last = ConvFDE((1, 8, 8), width=8, t=0.5, channels_last=True).double()
    last.load_state_dict(first.state_dict())
    images, labels = torch.randn(3, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 3, 9])
    expected, found = gradients(first, images, labels), gradients(last, images, labels)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu  # and not on a CPU: oneDNN's bfloat16 kernels fault on some virtual machines
def test_mixed_precision_keeps_the_state():
    model = ConvFDE((1, 8, 8), width=8, t=0.3).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(torch.randn(3, 1, 8, 8, device="cuda"))
        F.cross_entropy(logits, torch.tensor([0, 3, 9], device="cuda")).backward()
    assert logits.dtype == torch.float32
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
