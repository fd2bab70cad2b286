"""Laws of ``func``: what it keeps, writes, draws and captures must not make a number wrong in silence."""

from __future__ import annotations

from ..scripts import Script

START = """
options = dict(method=method, history=history, stepper=stepper, steps=steps)
times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
z0 = make(2, 3).requires_grad_()
w = make(3, low=0.2, high=1.0).requires_grad_()


def outcome(ys):
    grads = torch.autograd.grad(ys.square().sum(), [z0, w], materialize_grads=True)
    return {"states": ys, "gradient of z0": grads[0], "gradient of w": grads[1]}

"""
#: Functions that keep something from call to call; each is made anew for every solve.
KEEPING = """
class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, t, z):
        self.calls += 1
        return -w * z + 0.1 * self.calls


class Delay:
    def __init__(self):
        self.past = []

    def __call__(self, t, z):
        self.past.append(z.detach().clone())
        return -w * z + 0.3 * self.past[max(0, len(self.past) - 3)]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(3, dtype=z0.dtype))

    def forward(self, t, z):
        self.memory = torch.tanh(self.memory + z.detach().mean(0))
        return -w * z + self.memory


class Buffer(Cell):
    def forward(self, t, z):
        self.memory += 0.1
        return -w * z + self.memory


class Closure:
    def __new__(cls):
        kept = {"n": 0}

        def func(t, z):
            kept["n"] += 1
            return -w * z + 0.1 * kept["n"]

        return func


class Noise:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, t, z):
        return -w * z + torch.randn(3, dtype=z.dtype, generator=self.generator)


class Late(Counter):
    def __call__(self, t, z):
        self.calls += float(t) > 0.4
        return -w * z + 0.1 * self.calls


Kept = (Counter, Delay, Cell, Buffer, Closure, Noise, Late)[numbers % 7]
"""

LAWS = {
    # direct keeps the graph of every step: what it gives is what autograd makes of these very calls
    "state": Script(
        START
        + KEEPING
        + """
right = outcome(fdeint(Kept(), z0, times, 0.6, params=[w], **{**options, "stepper": "single"}, adjoint="direct"))
""",
        """
found = outcome(fdeint(Kept(), z0, times, 0.6, params=[w], **options))
""",
        may_refuse=True,
    ),
    "in place": Script(
        START
        + """
def plain(t, z):
    return torch.sin(z) * w - z


def on_a_copy(t, z):
    out = z.clone()
    return out.sin_().mul_(w).sub_(z)


def on_the_state(t, z):
    return z.sub_(torch.sin(z) * w).neg_()


func = (on_a_copy, on_the_state)[numbers % 2]
before = z0.detach().clone()
with torch.no_grad():
    right = {"states": fdeint(plain, z0.detach(), times, 0.6, **options), "z0": before}
right |= {k: v for k, v in outcome(fdeint(plain, z0, times, 0.6, params=[w], **options)).items() if "grad" in k}
""",
        """
with torch.no_grad():
    given = z0.detach().clone()
    found = {"states": fdeint(func, given, times, 0.6, **options), "z0": given}
found |= {k: v for k, v in outcome(fdeint(func, z0, times, 0.6, params=[w], **options)).items() if "grad" in k}
""",
        may_refuse=True,
    ),
    "captured later": Script(
        START
        + """
def func(t, z):
    return -z if t < 0.5 else -w * z


right = outcome(fdeint(func, z0, times, 0.6, params=[w], **options))
""",
        """
found = outcome(fdeint(func, z0, times, 0.6, **options))
""",
        may_refuse=True,
    ),
    "changed in between": Script(
        START
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(3, dtype=z0.dtype))
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(3, dtype=z0.dtype), requires_grad=False)
        self.gain = 1.0

    def forward(self, t, z):
        return self.gain * torch.sin(w * z) + self.drop(self.shift * self.frozen * z)


def changed(net, ys):
    with torch.no_grad():
        if change == "eval":
            net.eval()
        elif change == "buffer":
            net.shift.mul_(3)
        elif change == "frozen":
            net.frozen.mul_(3)
        elif change == "attribute":
            net.gain = 3.0
        elif change == "buffer replaced":
            net.shift = 3 * net.shift
    return outcome(ys)


change = ("eval", "buffer", "frozen", "attribute", "buffer replaced")[numbers % 5]
torch.manual_seed(5)
right = outcome(fdeint(Net(), z0, times, 0.6, params=[w], adjoint="direct", **{**options, "stepper": "single"}))
""",
        """
torch.manual_seed(5)
net = Net()
found = changed(net, fdeint(net, z0, times, 0.6, params=[w], **options))
""",
        may_refuse=True,
    ),
    "dropout": Script(
        START
        + """
drop = nn.Dropout(0.3)
func = lambda t, z: drop(torch.sin(w * z)) - 0.3 * z
torch.manual_seed(5)
right = outcome(fdeint(func, z0, times, 0.6, params=[w], adjoint="direct", **{**options, "stepper": "single"}))
""",
        """
torch.manual_seed(5)
found = outcome(fdeint(func, z0, times, 0.6, params=[w], **options))
""",
        may_refuse=True,
    ),
    "returned otherwise": Script(
        START
        + """
def func(t, z):
    return {"a": -w * z["a"], "b": z["a"].mean(0)}


def swapped(t, z):
    return {"b": z["a"].mean(0), "a": -w * z["a"]} if t > 0.4 else {"a": -w * z["a"], "b": z["a"].mean(0)}


def reshaped(t, z):
    out = func(t, z)
    return {"a": out["a"].reshape(3, 2), "b": out["b"]} if t > 0.4 else out


def narrow(t, z):
    out = func(t, z)
    return {"a": out["a"][:1], "b": out["b"]} if t > 0.4 else out


state = {"a": z0, "b": make(3)}
right = outcome(fdeint(func, state, times, 0.6, params=[w], **options)["a"])
""",
        """
other = (swapped, reshaped, narrow)[numbers % 3]
found = outcome(fdeint(other, state, times, 0.6, params=[w], **options)["a"])
if other is not swapped and steps > 1:  # one step of an explicit method sees the start alone
    found = {name: None for name in found}
""",
        may_refuse=True,
    ),
}
