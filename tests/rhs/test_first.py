"""A func that changes something when it is called is noticed, by name, and its steps are taken one by one."""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from collections import Counter, defaultdict, deque
from random import choice

import numpy as np
import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.rhs.first import changed, held_by, marked
from tests.stubs import F64, relative

COUNT = 0
SEEN: list[float] = []
TABLE: dict[str, int] = {"calls": 0}
TOTAL = torch.zeros((), dtype=F64)
T, Z = torch.tensor(0.3, dtype=F64), torch.tensor([1.2, 2.7], dtype=F64)


def slowed(z, calls):
    """What every impure func here gives: it depends on how often it was called."""
    return -z / (1 + 1e-3 * calls)


# ---- impure ----------------------------------------------------------------------------------------------------------


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, t, z):
        self.calls += 1
        return slowed(z, self.calls)


class Inside(nn.Module):
    """The counter belongs to a submodule."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Identity(), nn.ModuleDict({"own": Attribute()}))

    def forward(self, t, z):
        return self.parts[1]["own"](t, z)


class NewAttribute(nn.Module):
    def forward(self, t, z):
        self.last = getattr(self, "last", 0) + 1
        return slowed(z, self.last)


class States(nn.Module):
    """Keeps every state."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, t, z):
        self.kept.append(z.detach())
        return slowed(z, len(self.kept))


class Bounded(nn.Module):
    """Keeps the last states; once it is full its length no longer changes."""

    def __init__(self, full):
        super().__init__()
        self.kept = deque([torch.zeros(2, dtype=F64)] * (3 if full else 0), maxlen=3)

    def forward(self, t, z):
        self.kept.append(z.detach())
        past = sum(x.sum() for x in self.kept)
        return -z + 1e-3 * past


class Buffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=F64))

    def forward(self, t, z):
        self.calls.add_(1)
        return slowed(z, self.calls)


class Assigned(Buffer):
    """A buffer that is replaced by another one."""

    def forward(self, t, z):
        self.calls = self.calls + 1
        return slowed(z, self.calls)


class Running(nn.Module):
    """Batch normalisation while it is trained."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2, dtype=F64)

    def forward(self, t, z):
        self.norm(torch.stack([z, -2 * z]).detach())
        return -z * (1 + 1e-2 * self.norm.running_var)


class Recurrent(nn.Module):
    """A cell whose hidden state goes from call to call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(2, 2, dtype=F64)
        self.hidden = torch.zeros(1, 2, dtype=F64)

    def forward(self, t, z):
        self.hidden = self.cell(z[None], self.hidden)
        return self.hidden[0] - z


class HeldByTensor(nn.Module):
    """A plain tensor, no buffer, written in place."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros((), dtype=F64)

    def forward(self, t, z):
        self.total += 1
        return slowed(z, self.total)


class Nested(nn.Module):
    """A list inside a dictionary."""

    def __init__(self):
        super().__init__()
        self.log = {"states": []}

    def forward(self, t, z):
        self.log["states"].append(1)
        return slowed(z, len(self.log["states"]))


class Numpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = np.zeros(1)

    def forward(self, t, z):
        self.calls[0] += 1
        return slowed(z, float(self.calls[0]))


class Holder:
    """An object that is no module."""

    def __init__(self):
        self.calls = 0

    def slope(self, t, z):
        self.calls += 1
        return slowed(z, self.calls)

    __call__ = slope


NETWORK, HOLDER = Attribute(), Holder()


class Helper(nn.Module):
    """An object of one's own beside the parameters."""

    def __init__(self):
        super().__init__()
        self.helper = Holder()

    def forward(self, t, z):
        return self.helper.slope(t, z)


def closure():
    calls = 0

    def func(t, z):
        nonlocal calls
        calls += 1
        return slowed(z, calls)

    return func


def closure_of_a_list():
    kept = []

    def func(t, z):
        kept.append(1)
        return slowed(z, len(kept))

    return func


def closure_of_a_module():
    inner = Attribute()
    return lambda t, z: inner(t, z)


def closure_of_an_object():
    inner = Holder()
    return lambda t, z: inner.slope(t, z)


def closure_of_a_closure():
    inner = closure()
    return lambda t, z: inner(t, z)


def closure_of_a_counter():
    kept = Counter()

    def func(t, z):
        kept["calls"] += 1
        return slowed(z, kept["calls"])

    return func


def closure_of_a_defaultdict():
    kept = defaultdict(list)

    def func(t, z):
        kept["calls"].append(1)
        return slowed(z, len(kept["calls"]))

    return func


def closure_of_a_bytearray():
    kept = bytearray()

    def func(t, z):
        kept.append(1)
        return slowed(z, len(kept))

    return func


def closure_of_an_iterator():
    numbers = itertools.count(1)
    return lambda t, z: slowed(z, next(numbers))


def closure_of_a_generator():
    numbers = torch.Generator().manual_seed(1)
    return lambda t, z: slowed(z, torch.rand((), generator=numbers, dtype=F64))


def closure_of_random_numbers():
    numbers = random.Random(1)
    return lambda t, z: slowed(z, numbers.random() < 0.1)  # mostly the same


def closure_of_random_numbers_of_numpy():
    numbers = np.random.default_rng(1)
    return lambda t, z: slowed(z, int(numbers.random() < 0.1))


def of_random():
    random.seed(1)
    return lambda t, z: slowed(z, random.random() < 0.1)


def of_numpy():
    np.random.seed(1)  # noqa: NPY002
    return lambda t, z: slowed(z, int(np.random.rand() < 0.1))  # noqa: NPY002


def of_the_system():
    numbers = random.SystemRandom()
    return lambda t, z: slowed(z, 0 * numbers.random())


def of_global_functions():
    random.seed(1)
    return lambda t, z: slowed(z, choice([0, 1, 2]))


def of_a_global_number():
    def func(t, z):
        global COUNT
        COUNT += 1
        return slowed(z, COUNT)

    return func


def of_a_global_list():
    def func(t, z):
        SEEN.append(1.0)
        return slowed(z, len(SEEN))

    return func


def of_a_global_dict():
    def func(t, z):
        TABLE["calls"] += 1
        return slowed(z, TABLE["calls"])

    return func


def of_a_global_tensor():
    def func(t, z):
        TOTAL.add_(1)
        return slowed(z, TOTAL)

    return func


def of_a_global_module():
    return lambda t, z: NETWORK(t, z)


def of_a_global_object():
    return lambda t, z: HOLDER.slope(t, z)


def of_a_global_function():
    return lambda t, z: of_a_global_counter(z)


def of_a_global_counter(z):
    TABLE["calls"] += 1
    return slowed(z, TABLE["calls"])


def of_a_comprehension():
    def func(t, z):
        return slowed(z, sum([SEEN.append(1.0) or len(SEEN) for _ in range(1)]))

    return func


def default_argument():
    def func(t, z, kept=[]):  # noqa: B006
        kept.append(1)
        return slowed(z, len(kept))

    return func


def own_attribute():
    def func(t, z):
        func.calls += 1
        return slowed(z, func.calls)

    func.calls = 0
    return func


def bound():
    return Holder().slope


def partial_of_an_object():
    return functools.partial(lambda holder, t, z: holder.slope(t, z), Holder())


def partial_of_a_closure():
    return functools.partial(closure())


def wrapped():
    inner = closure()

    @functools.wraps(inner)
    def func(*given):
        return inner(*given)

    return func


def module_in_a_closure():
    kept = [0]

    class Counting(nn.Module):
        def forward(self, t, z):
            kept[0] += 1
            return -z + 0.1 * kept[0]

    return Counting()


class ModuleOfAGlobal(nn.Module):
    def forward(self, t, z):
        global COUNT
        COUNT += 1
        return -z + 0.1 * COUNT


class ObjectOfAGlobal:
    def __call__(self, t, z):
        TABLE["calls"] += 1
        return -z + 0.1 * TABLE["calls"]


IMPURE = {
    "a counter": (Attribute, "calls"),
    "a counter of a submodule": (Inside, "calls"),
    "an attribute that was not there": (NewAttribute, "last"),
    "a list of states": (lambda: States([]), "kept"),
    "a deque of states": (lambda: States(deque()), "kept"),
    "a deque that fills": (lambda: Bounded(False), "kept"),
    "a deque that is full": (lambda: Bounded(True), "kept"),
    "a buffer written in place": (Buffer, "calls"),
    "a buffer that is replaced": (Assigned, "calls"),
    "running statistics": (Running, "running|batches"),
    "a recurrent cell": (Recurrent, "hidden"),
    "a tensor written in place": (HeldByTensor, "total"),
    "a list inside a dictionary": (Nested, "log"),
    "an array": (Numpy, "calls"),
    "an object beside the parameters": (Helper, "helper"),
    "a callable object": (Holder, "calls"),
    "a bound method": (bound, "calls"),
    "a closure": (closure, "calls"),
    "a list in a closure": (closure_of_a_list, "kept"),
    "a module in a closure": (closure_of_a_module, "inner"),
    "an object in a closure": (closure_of_an_object, "inner"),
    "a closure in a closure": (closure_of_a_closure, "calls|inner"),
    "a Counter in a closure": (closure_of_a_counter, "kept"),
    "a defaultdict in a closure": (closure_of_a_defaultdict, "kept"),
    "bytes in a closure": (closure_of_a_bytearray, "kept"),
    "an iterator in a closure": (closure_of_an_iterator, "numbers"),
    "a torch.Generator in a closure": (closure_of_a_generator, "numbers"),
    "a random.Random in a closure": (closure_of_random_numbers, "numbers"),
    "a Generator of NumPy in a closure": (closure_of_random_numbers_of_numpy, "numbers"),
    "random": (of_random, "random"),
    "numpy.random": (of_numpy, "np"),
    "a random.SystemRandom": (of_the_system, "numbers"),
    "a function of random": (of_global_functions, "choice"),
    "a global number": (of_a_global_number, "COUNT"),
    "a global list": (of_a_global_list, "SEEN"),
    "a global dictionary": (of_a_global_dict, "TABLE"),
    "a global tensor": (of_a_global_tensor, "TOTAL"),
    "a global module": (of_a_global_module, "NETWORK"),
    "a global object": (of_a_global_object, "HOLDER"),
    "a function that a global function calls": (of_a_global_function, "of_a_global_counter|calls|TABLE"),
    "a global list in a comprehension": (of_a_comprehension, "SEEN"),
    "a default argument": (default_argument, "kept|default"),
    "an attribute of a function": (own_attribute, "calls|func"),
    "a partial of an object": (partial_of_an_object, "calls|args|holder"),
    "a partial of a closure": (partial_of_a_closure, "calls"),
    "a wrapped closure": (wrapped, "calls|inner"),
    "a closure of a module's class": (module_in_a_closure, "kept"),
    "a global in a module": (ModuleOfAGlobal, "COUNT"),
    "a global in an object's call": (ObjectOfAGlobal, "TABLE"),
}


@pytest.fixture(autouse=True)
def reset():
    globals_as_they_were()


def globals_as_they_were():
    global COUNT
    COUNT = 0
    SEEN.clear()
    TABLE["calls"] = 0
    TOTAL.zero_()
    NETWORK.calls = HOLDER.calls = 0


def noticed(func):
    before = marked(held_by(func))
    func(T, Z)
    return changed(before, marked(held_by(func)))


@pytest.mark.parametrize("kind", IMPURE)
def test_what_a_call_changes_is_noticed_by_name(kind):
    make, name = IMPURE[kind]
    found = noticed(make())
    assert found is not None
    assert re.search(name, found), found


@pytest.mark.parametrize("method", ["predictor", "abm"])
@pytest.mark.parametrize("kind", IMPURE)
def test_auto_gives_what_single_steps_give(kind, method):
    make, _ = IMPURE[kind]
    found = []
    for stepper in ("auto", "single"):
        globals_as_they_were()
        found.append(nf.solve(make(), Z, 1.0, 0.7, steps=100, method=method, stepper=stepper))
    assert found[0].stats.stepper == "single"
    assert torch.equal(found[0].ys, found[1].ys)
    with pytest.raises(nf.InputError, match="stepper='picard' cannot take these steps: func changes "):
        nf.fdeint(make(), Z, 1.0, 0.7, steps=100, method=method, stepper="picard")


@pytest.mark.parametrize("stepper", ["auto", "single"])
def test_a_gradient_that_needs_the_state_of_func_is_refused_and_direct_gives_it(stepper):
    def solved(adjoint):
        func, z0 = Recurrent(), Z.clone().requires_grad_()
        func.cell.requires_grad_(False)
        func.forward = lambda t, z: [func.cell(z[None], func.hidden)[0] - z, setattr(func, "hidden", func.hidden + 1)][
            0
        ]
        y = nf.fdeint(
            func, z0, 1.0, 0.7, steps=100, adjoint=adjoint, stepper="auto" if adjoint == "direct" else stepper
        )
        return torch.autograd.grad(y.sum(), z0)[0]

    assert torch.isfinite(solved("direct")).all()
    with pytest.raises(nf.ChangedFunctionError, match="adjoint='direct'"):
        solved("exact")


def test_what_is_changed_now_and_then_is_noticed_in_the_first_call_only():
    """A limit that is known: what a first call does not change is not noticed, and the steps are vectorised."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.late = 0

        def forward(self, t, z):
            if not torch._C._functorch.is_batchedtensor(t) and float(t) > 0.5:
                self.late += 1
            return -z

    assert noticed(Late()) is None


# ---- pure ------------------------------------------------------------------------------------------------------------


class Pure(nn.Module):
    def __init__(self, *more):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 4, dtype=F64), nn.Tanh(), *more, nn.Linear(4, 2, dtype=F64))
        self.settings, self.names, self.rate = {"a": [1, 2]}, ["x", "y"], 0.5

    def forward(self, t, z):
        return self.net(z.reshape(1, 2)).reshape(2) * self.rate - t * z


class Local(nn.Module):
    """Counts, but for itself alone."""

    def __init__(self):
        super().__init__()
        self.weights = [torch.ones(2, dtype=F64)] * 20

    def forward(self, t, z):
        total = 0
        for w in self.weights:
            total = total + w
        return -z * total / 20


class Rates:
    def __init__(self):
        self.rate, self.table = 0.5, {"k": torch.ones(2, dtype=F64)}

    def slope(self, t, z):
        return -self.rate * z * self.table["k"]

    __call__ = slope


RATE = 0.7
RATES = [0.5, 0.7]


def of_globals(t, z):
    return -RATE * z * RATES[0] + torch.cos(t)


def of_a_closure():
    rate, matrix, net = 0.3, torch.eye(2, dtype=F64), Pure().requires_grad_(False)
    return lambda t, z: rate * (matrix @ z) + net(t, z)


def compiled():
    torch._dynamo.reset()
    return torch.compile(Pure(), backend="eager")


def of_time(t, z, rate=0.5):
    return -rate * z + torch.sin(t)


PURE = {
    "a lambda": lambda: lambda t, z: -z,
    "a function of globals": lambda: of_globals,
    "a closure": of_a_closure,
    "a module": Pure,
    "dropout in eval": lambda: Pure(nn.Dropout(0.5)).eval(),
    "batch normalisation in eval": lambda: Pure(nn.BatchNorm1d(4, dtype=F64)).eval(),
    "layer normalisation": lambda: Pure(nn.LayerNorm(4, dtype=F64)),
    "local variables": Local,
    "a partial": lambda: functools.partial(of_time, rate=0.7),
    "a partial of a module": lambda: functools.partial(Pure().requires_grad_(False)),
    "a bound method": lambda: Rates().slope,
    "a callable object": Rates,
    "a compiled module": compiled,
    "a builtin": lambda: functools.partial(lambda f, t, z: f(z), torch.neg),
}


@pytest.mark.parametrize("kind", PURE)
def test_what_changes_nothing_is_not_suspected(kind):
    func = PURE[kind]()
    assert noticed(func) is None
    assert noticed(func) is None


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it, and ignores the warning itself
@pytest.mark.parametrize("kind", PURE)
def test_what_changes_nothing_is_iterated(kind):
    func = PURE[kind]()
    found = nf.solve(func, Z, 1.0, 0.7, steps=100)
    assert found.stats.stepper == "picard", found.stats.why
    assert relative(found.ys, nf.fdeint(func, Z, 1.0, 0.7, steps=100, stepper="single")[None]) < 1e-12
    nf.fdeint(func, Z, 1.0, 0.7, steps=100, stepper="picard")


def test_looking_costs_no_copy_of_what_is_held():
    """Large containers are looked at by their ends, tensors by their versions."""

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = list(range(100_000))
            self.register_buffer("big", torch.zeros(1000, 1000))

        def forward(self, t, z):
            return -z

    marks = marked(held_by(Large()))
    assert sum(len(repr(x)) for x in marks.values()) < 10_000


# ---- hooks -----------------------------------------------------------------------------------------------------------


class HalfGradient(nn.Module):
    """The gradient of what ``act`` gets is halved, by hooks of the module."""

    def __init__(self, hook):
        super().__init__()
        self.act = nn.Tanh()
        hook(self.act)

    def forward(self, t, z):
        return -self.act(z)


def after(module):
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] / 2,))


def ahead(module):
    module.register_full_backward_pre_hook(lambda m, go: (go[0] / 2,))


def on_the_tensor(t, z):
    found = torch.tanh(z)
    if found.requires_grad:
        found.register_hook(lambda g: g / 2)
    return -found


def through_a_helper(t, z):
    return on_the_tensor(t, z)


MODULE = HalfGradient(after)
HOOKED = [HalfGradient(after), HalfGradient(ahead), lambda t, z: MODULE(t, z), on_the_tensor, through_a_helper]


@pytest.mark.parametrize("func", HOOKED, ids=["after", "ahead", "in a closure", "on a tensor", "in a helper"])
def test_hooks_on_gradients_act_in_every_step(func):
    z = torch.ones(3, dtype=F64, requires_grad=True)
    found = nf.solve(func, z, 1.0, 0.7, steps=40)
    assert found.stats.stepper == "single"
    (gradient,) = torch.autograd.grad(found.ys.sum(), z)

    edges, slopes, state = torch.arange(41, dtype=F64) / 40, [], z
    for n in range(1, 41):
        slopes.append(func(None, state))
        reach = (edges[n] - edges[:n]) ** 0.7 / math.gamma(1.7)
        weights = reach - torch.cat([reach[1:], torch.zeros(1, dtype=F64)])
        state = z + sum(w * v for w, v in zip(weights, slopes, strict=True))
    assert relative(gradient, torch.autograd.grad(state.sum(), z)[0]) < 1e-12


def test_an_attribute_is_not_a_global_variable_of_the_same_name():
    def func(t, z):
        return z.TOTAL + sum(TABLE[key] for key in [*TABLE])

    assert dict(held_by(func)).keys() & {"TOTAL", "TABLE", "sum"} == {"TABLE"}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the compiler, which torch.cond calls
@pytest.mark.parametrize("shape", [(2,), (64, 32)])
def test_an_operation_that_is_given_functions(shape):
    """PyTorch does not show ``torch.cond`` to those who watch operations."""

    def func(t, z):
        return torch.cond(z.sum() > 0, lambda z: -z, lambda z: -2 * z, (z,))

    z0 = torch.rand(shape, dtype=F64)
    found, expected = (nf.fdeint(func, z0, 1.0, 0.6, steps=50, stepper=s) for s in ("auto", "single"))
    assert relative(found, expected) < 1e-12
