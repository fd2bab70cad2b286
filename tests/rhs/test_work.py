"""How much a call of func computes, and what `auto` makes of it."""

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.base.policy import PICARD_WORK, PICARD_WORK_BACKWARD, SAMPLES_WORK
from neuralfde.rhs.fingerprint import Work
from neuralfde.solve.steppers import Single

F32 = torch.float32


def work(call, *given):
    with Work() as found, torch.no_grad():
        call(*given)
    return found.bytes


def test_results_count_and_views_do_not():
    x = torch.randn(4, 6)
    assert work(lambda: x + 1) == 4 * 24
    assert work(lambda: (x.t()[:2].unsqueeze(0), x.view(24), x.unbind(0))) == 0
    assert work(lambda: torch.stack([x, x])) == 4 * 48
    assert work(lambda: x.double()) == 8 * 24


def test_sparse_results_count_as_if_they_were_dense():
    x = torch.eye(4)
    assert work(lambda: x.to_sparse() * 2) >= 4 * 16


@pytest.mark.parametrize(
    ("call", "results", "summed"),
    [
        (lambda a, b: a @ b, 4 * 5, 32),
        (lambda a, b: torch.addmm(torch.zeros(5), a, b), 4 * 5, 32),
        (lambda a, b: a.expand(3, 4, 32).contiguous().bmm(b.expand(3, 32, 5).contiguous()), 3 * 4 * 5, 32),
        (lambda a, b: a @ b[:, 0], 4, 32),
    ],
)
def test_sixteen_products_count_as_one_result(call, results, summed):
    a, b = torch.randn(4, 32), torch.randn(32, 5)
    copies = {3 * 4 * 5: 3 * 32 * (4 + 5)}.get(results, 0) + (5 if "addmm" in call.__code__.co_names else 0)
    assert work(call, a, b) == 4 * (results * (1 + summed // 16) + copies)


def test_a_convolution_counts_its_products():
    layer = nn.Conv2d(4, 8, 3, padding=1, bias=False)
    assert work(layer, torch.randn(1, 4, 6, 6)) == 4 * 8 * 36 * (1 + 4 * 9 // 16)


def test_sparse_products_count_their_results_alone():
    a = torch.eye(64).to_sparse()
    assert work(lambda: torch.mm(a, torch.ones(64, 2))) < 16 * 4 * 128


class Net(nn.Module):
    def __init__(self, hidden, layers=1):
        super().__init__()
        torch.manual_seed(0)
        inner = [part for _ in range(layers) for part in (nn.Linear(hidden, hidden), nn.Tanh())]
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), *inner, nn.Linear(hidden, 2))

    def forward(self, t, z):
        return self.net(z) - 0.3 * z


def trained(func, stepper, dtype=F32, steps=100):
    z0 = torch.linspace(-1, 1, 64, dtype=dtype).view(32, 2).requires_grad_()
    found = nf.solve(func.to(dtype), z0, 1.0, 0.7, steps=steps, stepper=stepper)
    loss = found.ys.square().sum()
    return found.stats, [loss, *torch.autograd.grad(loss, [z0, *func.parameters()])]


@pytest.mark.parametrize(("hidden", "layers", "stepper"), [(8, 0, "picard"), (64, 1, "recorded")])
def test_auto_decides_by_the_work_of_a_call(hidden, layers, stepper):
    func = Net(hidden, layers)
    assert (work(func, None, torch.ones(32, 2)) <= PICARD_WORK[0]) == (stepper == "picard")
    for _ in range(2):  # the second time from what the first has found
        stats, found = trained(func, "auto")
        assert stats.stepper == stepper
    for a, b in zip(found, trained(func, "single")[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_work_is_measured_once_for_each_kind_of_state(monkeypatch):
    counts = []

    class Counted(Work):
        def __exit__(self, *error):
            counts.append(self.bytes)
            return super().__exit__(*error)

    monkeypatch.setattr("neuralfde.rhs.first.Work", Counted)
    func = Net(8)
    for z0 in (torch.ones(4, 2), torch.ones(4, 2), torch.ones(8, 2), torch.ones(4, 2)):
        nf.fdeint(func, z0, 1.0, 0.7, steps=100)
    assert counts == [work(func, None, torch.ones(k, 2)) for k in (4, 8)]
    nf.fdeint(func, torch.ones(2, 2), 1.0, 0.7, steps=100, stepper="single")  # nothing is chosen
    nf.fdeint(func, torch.ones(2048, 2), 1.0, 0.7, steps=100)  # too large to be taken at once
    assert len(counts) == 2


FUNCTIONS = {
    "numbers": lambda: lambda t, z: -z * float(t),  # cannot be recorded
    "few operations": lambda: lambda t, z: -z,
    "many operations": lambda: lambda t, z: sum(z**k for k in range(20)),
}


@pytest.mark.parametrize(("work", "ways"), [(1, (True, True)), (64 << 10, (True, False)), (1 << 20, (False, False))])
@pytest.mark.parametrize("func", FUNCTIONS)
def test_the_backward_pass_is_taken_at_once_where_that_pays(work, ways, func, monkeypatch):
    """Steps one by one forward, since the state is too large for all at once; backward by what is known of ``func``."""
    chosen, at_once = [], Single(*ways)

    def noting(opened):
        def open_(self, *given, **more):
            chosen.append(self)
            return opened(self, *given, **more)

        return open_

    monkeypatch.setattr(Work, "bytes", property(lambda self: work, lambda self, value: None))
    for stepper in (Single, nf.Recorded):
        monkeypatch.setattr(stepper, "open", noting(stepper.open))
    z0 = torch.linspace(0, 0.1, 128).view(64, 2).requires_grad_()
    nf.fdeint(FUNCTIONS[func](), z0, 0.1, 0.7, steps=100).sum().backward()
    recorded = func == "few operations" or (func == "many operations" and not at_once.jacobians)
    assert chosen == [nf.Recorded(), nf.Recorded() if recorded else at_once]


def test_thresholds_are_in_order():
    assert PICARD_WORK[0] < PICARD_WORK_BACKWARD[0] < PICARD_WORK_BACKWARD[1] < SAMPLES_WORK < PICARD_WORK[1]
