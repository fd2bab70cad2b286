"""A cache may only save work. Each is given the chance to lie: changes in place, modes, dtypes, types, threads."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import neuralfde as nf
from neuralfde.base import caches, grid, structure
from neuralfde.base.caches import Cache, Verdicts
from neuralfde.door import weighing
from neuralfde.history import exponentials, long_blocks, panels
from neuralfde.orders import caputo
from neuralfde.rhs.first import DRAWS
from neuralfde.solve.steppers import graph_cache, newton_block
from neuralfde.solve.steppers.kernel import prepare
from tests.caching import counted
from tests.stubs import F64, Net, relative

F32 = torch.float32
CACHES = {
    "structures of tensors": structure._TENSORS,
    "numbers on the device": caches._ON_DEVICE,
    "bases of panels": panels._BASES,
    "fits of exponentials": exponentials._FITTED,
    "terms that sufficed": exponentials._SUFFICED,
    "lags of fits": exponentials._SAMPLED,
    "factors of fits": exponentials._BASES,
    "exponentials of checked lags": exponentials._FADING,
    "exponentials of long blocks": long_blocks._FADED,
    "weights": caputo._WEIGHTS,
    "small solves as they were read": weighing._READ,
    "unit matrices of Newton's method": newton_block._UNITS,
    "kernels of steps": prepare._PREPARED,  # test_kernel.py tries to make it lie
    "steps that were traced": prepare._TRACED,  # likewise
    "grids of steps": grid._REQUESTS,
}


@pytest.fixture(autouse=True)
def empty():
    caches.clear()


def relax(t, z):
    return torch.cos(t) - z


def state(dtype=F64, numbers=2):
    return torch.linspace(0.5, 1.5, numbers, dtype=dtype)


def fresh(run):
    """What a solve gives with empty caches."""
    caches.clear()
    return run()


# ---- the cache itself ------------------------------------------------------------------------------------------------


def test_every_cache_is_tested_here():
    assert set(caches.listed()) == {*CACHES, "vectorised"}, "a new cache needs a test that tries to make it lie"
    for name, cache in CACHES.items():
        assert cache.name == name


@pytest.mark.parametrize("name", CACHES)
def test_no_more_is_kept_than_allowed(monkeypatch, name):
    cache = CACHES[name]
    monkeypatch.setattr(cache, "entries", OrderedDict())
    for k in range(cache.size + 5):
        cache.get(k, lambda: k)
    assert len(cache.entries) == cache.size
    assert [cache.peek(k) for k in (4, 5, cache.size + 4)] == [None, 5, cache.size + 4]
    cache.get(5, lambda: pytest.fail("it is there"))
    cache.get("new", lambda: 0)  # the one that was used last stays
    assert cache.peek(5) == 5
    assert cache.peek(6) is None


def test_what_cannot_be_made_is_not_kept():
    cache: Cache[int] = Cache("of this test", 4)
    try:
        with pytest.raises(ZeroDivisionError):
            cache.get("key", lambda: 1 // 0)
        assert cache.peek("key") is None
        assert cache.get("key", lambda: 3) == 3
    finally:
        caches._ALL.remove(cache)


def test_all_threads_get_the_same_value():
    cache: Cache[object] = Cache("of this test", 4)
    gate = threading.Barrier(8)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = lambda _: (gate.wait(), cache.get("key", object))[1]
            assert len(set(pool.map(made, range(8)))) == 1
    finally:
        caches._ALL.remove(cache)


def test_clear_empties_all_of_them():
    func = Net()
    nf.fdeint(func, torch.ones(2, 3, dtype=F64), 1.0, 0.6, steps=100, history="exponentials")
    nf.fdeint(relax, torch.ones(100, dtype=F64), 1.0, 0.6, steps=1200, history="full")
    nf.fdeint(relax, state(), 1.0, 0.6, steps=20, method="bdf2")
    caches.to_device(torch.ones(3), torch.empty(0, device="meta"))
    held = caches.listed()
    for kernels in ("kernels of steps", "steps that were traced", "exponentials of long blocks"):  # on a GPU alone
        held.pop(kernels)
    assert all(held.values()), held
    caches.clear()
    assert not any(caches.listed().values())


@pytest.mark.parametrize(
    "run",
    [
        lambda: nf.fdeint(relax, state(), 1.0, 0.6, steps=100),
        lambda: nf.fdeint(relax, state(), 1.0, 0.6, steps=100, method="abm", history="exponentials"),
        lambda: nf.fdeint(relax, state(F32, 100), 1.0, torch.tensor(0.6), steps=1200, history="full"),
        lambda: nf.fdeint(relax, state(), 1.0, torch.tensor([0.6, 0.7]), steps=100, method="bdf2"),
        lambda: nf.fdeint(relax, state(F32, 2000), 1.0, 0.6, steps=300),
        lambda: nf.fdeint(relax, state(F32, 2000), 1.0, 0.6, steps=300, method="abm", storage="checkpoint"),
    ],
)
def test_a_second_solve_gives_the_very_numbers_of_the_first(run):
    first = run()
    assert torch.equal(run(), first)
    assert torch.equal(fresh(run), first)


# ---- each of them ----------------------------------------------------------------------------------------------------


def test_structures_of_tensors_tell_shapes_dtypes_and_nestings_apart(monkeypatch):
    count = counted(monkeypatch, structure._TENSORS)
    tensors = [torch.ones(2, 3), torch.ones(3, 2), torch.ones(6), torch.ones(2, 3, dtype=F64), torch.ones(1, 2, 3)]
    found = [structure.structure_of(x) for x in (*tensors, torch.ones(2, 3, device="meta"))]
    assert count.misses == len(set(found)) == 6
    assert structure.structure_of(torch.zeros(2, 3)) is found[0]
    assert structure.structure_of((torch.ones(2, 3),)) != found[0]
    assert structure.structure_of([torch.ones(2, 3)]) != structure.structure_of((torch.ones(2, 3),))
    # one that was given groups of its own does not give them to the next solve
    grouped = structure.grouped(found[0], {"order": torch.tensor([0.5, 0.6, 0.7])})
    assert grouped.groups == 3
    assert structure.structure_of(torch.ones(2, 3)).groups == 1


def test_numbers_on_the_device_tell_values_shapes_dtypes_and_devices_apart():
    like, other = torch.empty(0, device="meta"), torch.empty(0, device="meta", dtype=F64)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = caches.to_device(x, like)
    assert caches.to_device(x.double(), like) is first
    assert caches.to_device(x, other).dtype == F64
    assert caches.to_device(x.view(2, 2), like).shape == (2, 2)
    x[0] = 5.0  # in place
    assert caches.to_device(x, like) is not first
    assert len(caches._ON_DEVICE.entries) == 4


def test_numbers_on_the_device_from_inference_mode_are_of_use_to_training():
    like = torch.empty(0, device="meta")
    with torch.inference_mode():
        caches.to_device(torch.tensor([1.0, 2.0]), like)
    assert not caches.to_device(torch.tensor([1.0, 2.0]), like).is_inference()


def test_an_order_on_the_host_follows_changes_in_place():
    order = torch.tensor(0.6)
    results = []
    for value in (0.6, 0.9):
        order.fill_(value)
        results.append(nf.fdeint(relax, state(), 1.0, order, steps=20))
        assert torch.equal(results[-1], fresh(lambda: nf.fdeint(relax, state(), 1.0, torch.tensor(value), steps=20)))
    assert not torch.equal(*results)


def test_weights_follow_the_scheme_the_order_and_the_step():
    variants = [
        {"method": m, "order": b, "t": t, "steps": n}
        for m in ("predictor", "predictor-implicit", nf.ABM(), nf.ABM(corrections=2), "l1", "l1-explicit")
        for b, t, n in ((0.6, 1.0, 20), (0.7, 1.0, 20), (0.6, 2.0, 20), (0.6, 1.0, 21), (0.6, 2.0, 40))
    ]

    def run(v):
        return nf.fdeint(relax, state(), v["t"], v["order"], steps=v["steps"], method=v["method"])

    together = [run(v) for v in variants]
    assert all(torch.equal(fresh(lambda: run(v)), y) for v, y in zip(variants, together, strict=True))


def test_weights_that_were_found_are_not_changed_by_a_solve():
    def tensors(kernel):
        return [x for x in (kernel.weights, kernel.local, kernel.start, kernel.base) if x is not None]

    for options in ({"history": nf.Window(5)}, {"history": "fft"}, {"grading": 1.0}, {"method": "bdf2"}):
        nf.fdeint(relax, state(), 1.0, 0.6, steps=40, **{"method": "abm", **options})
    before = [x.clone() for kernel in caputo._WEIGHTS.entries.values() for x in tensors(kernel)]
    z0 = state().requires_grad_()
    for options in ({"history": nf.Window(5)}, {"history": nf.Full(states=True)}, {"method": "bdf2"}):
        nf.fdeint(relax, z0, 1.0, 0.6, steps=40, **{"method": "abm", **options}).sum().backward()
        nf.fdeint(relax, z0, 1.0, nf.Tempered(0.6, 0.5), steps=40, **{"method": "abm", **options}).sum().backward()
    after = [x for kernel in caputo._WEIGHTS.entries.values() for x in tensors(kernel)]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("dtypes", [(F32, F64), (F64, F32)])
@pytest.mark.parametrize("history", ["full", "fft", "exponentials", nf.Window(9)])
def test_every_history_in_another_dtype(dtypes, history):
    def run(dtype):
        return nf.fdeint(relax, state(dtype), 1.0, 0.6, steps=700, history=history)

    found = [run(dtype) for dtype in dtypes]
    for dtype, y in zip(dtypes, found, strict=True):
        assert y.dtype == dtype
        assert torch.equal(fresh(lambda: run(dtype)), y)


@pytest.mark.parametrize("history", ["full", "fft", "exponentials", nf.Window(9)])
@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "bdf2"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_what_was_made_in_inference_mode_does_not_reach_a_training_step(history, method, dtype):
    func, z0, order = Net(2, dtype), state(dtype).requires_grad_(), torch.tensor(0.6, requires_grad=True)
    run = lambda beta: nf.fdeint(func, z0, 1.0, beta, steps=100, method=method, history=history)
    with torch.inference_mode():
        run(0.6)
        run(torch.tensor(0.6))
    for beta in (0.6, torch.tensor(0.6), order):
        found = torch.autograd.grad(run(beta).sum(), [z0, *func.parameters()])
        caches.clear()
        wanted = torch.autograd.grad(run(beta).sum(), [z0, *func.parameters()])
        assert all(map(torch.equal, found, wanted))
        with torch.inference_mode():
            run(0.6)


@pytest.mark.parametrize("method", ["trapezoid", "bdf2"])
def test_unit_matrices_tell_steps_states_and_dtypes_apart(method):
    runs = [(n, k, dtype) for n in (10, 20) for k in (1, 2, 3) for dtype in (F64, F32)]

    def run(steps, numbers, dtype):
        return nf.fdeint(relax, state(dtype, numbers), 1.0, 0.6, steps=steps, method=method)

    with torch.inference_mode():
        run(*runs[0])
    for given in (*runs, *runs[::-1]):
        assert torch.equal(run(*given), fresh(lambda: run(*given)))
    before = {key: [x.clone() for x in pair] for key, pair in newton_block._UNITS.entries.items()}
    run(*runs[0])
    for key, pair in before.items():
        assert all(map(torch.equal, pair, newton_block._UNITS.entries[key]))


def test_panels_made_in_inference_mode_do_not_reach_a_training_step():
    z0, order = state(F64, 100).requires_grad_(), torch.tensor(0.6, dtype=F64, requires_grad=True)
    run = lambda beta: nf.fdeint(relax, z0, 1.0, beta, steps=1200, history="full")
    with torch.inference_mode():
        run(0.6)
    assert panels._BASES.entries
    run(order).sum().backward()
    assert order.grad is not None


def test_fits_of_exponentials_do_not_depend_on_earlier_solves():
    """How many terms a fit takes is a matter of its own weights, not of what was fitted before."""
    rough = nf.Exponentials(tol=1e-10)
    run = lambda order: nf.fdeint(relax, state(), 1.0, order, steps=100, history=rough)
    for order in (0.62, 0.83):
        alone = fresh(lambda: run(order))
        for before in (0.55, 0.6, 0.65, 0.8, 0.85):
            caches.clear()
            run(before)
            assert torch.equal(run(order), alone), (before, order)


def test_fits_of_exponentials_tell_their_settings_apart():
    settings = [nf.Exponentials(tol=t, block=b) for t in (1e-3, 1e-6) for b in (8, 16)]
    settings += [nf.Exponentials(terms=k, tol=1e-2) for k in (12, 14)]
    run = lambda h, order=0.6: nf.fdeint(relax, state(), 1.0, order, steps=300, history=h)
    together = [run(h) for h in settings]
    assert len({float(y[0]) for y in together}) == len(settings)
    for h, y in zip(settings, together, strict=True):
        assert torch.equal(fresh(lambda: run(h)), y)
    learned = torch.tensor(0.6, dtype=F64, requires_grad=True)
    assert relative(run(settings[0], learned), together[0]) < 1e-13


def test_exponentials_are_those_of_these_lags_and_rates():
    """Fits that are checked, and memories in long blocks, of every other size, dtype and rate."""

    def run(block, steps, terms, dtype):
        past, row = nf.Exponentials(block=block, terms=terms, span=40), torch.zeros(1, 1, dtype=dtype)
        weights = torch.arange(1.0, steps + 2, dtype=F64)[None, :, None] ** -0.4
        memory = past.forward(torch.ones(1, 2 * block + terms, 1, dtype=dtype), steps, row)
        basis, off = past._tried(weights, weights[:, exponentials._samples(block, steps)], 0.4, terms)
        return *basis.factors, basis.near, off, memory.fade, memory.modes.losses

    cases = [(16, 99, 12, F64), (8, 99, 12, F64), (16, 98, 12, F32), (16, 99, 14, F32), (16, 99, 12, F32)]
    for case, found in zip(cases, [run(*case) for case in cases], strict=True):
        for mine, alone in zip(found, fresh(lambda: run(*case)), strict=True):
            assert torch.equal(torch.as_tensor(mine), torch.as_tensor(alone))


@pytest.mark.parametrize(
    "other",
    [
        {"order": 0.7},
        {"t": 2.0},
        {"steps": 101},
        {"method": "abm"},
        {"method": nf.ABM(corrections=2)},
        {"history": "fft"},
        {"adjoint": "direct"},
        {"stepper": "single"},
        {"grading": 1.5},
        {"check_finite": False},
    ],
    ids=str,
)
def test_small_solves_tell_what_was_asked_for_apart(other):
    def run(t=1.0, order=0.6, **options):
        return nf.solve(relax, state(), t, order, **{"steps": 100, **options})

    run()
    found = run(**other)
    assert run().stats.steps == 100
    wanted = fresh(lambda: run(**other))
    assert torch.equal(found.ys, wanted.ys)
    assert (found.stats.method, found.stats.history, found.stats.adjoint) == (
        wanted.stats.method, wanted.stats.history, wanted.stats.adjoint,
    )  # fmt: skip


def test_grids_are_not_changed_by_what_is_done_to_their_times():
    """Neither by a func that writes to its time nor by who writes to the times of a solution."""

    def run(func, t=1.0, steps=30, grading=1.0):
        return nf.solve(func, state(numbers=600), t, 0.6, steps=steps, grading=grading, stepper="single")

    others = [{}, {"t": 2.0}, {"steps": 31}, {"grading": 1.5}, {"t": torch.tensor([0.5, 1.5])}]
    wanted = [fresh(lambda: run(relax, **other)) for other in others]
    caches.clear()
    for other in others:
        found = run(lambda t, z: t.mul_(2) - z, **other)
        found.ts.zero_()
        found.grid.zero_()
    for other, once in zip(others, wanted, strict=True):
        found = run(relax, **other)
        assert torch.equal(found.ys, once.ys)
        assert torch.equal(found.ts, once.ts)
        assert torch.equal(found.grid, once.grid)


def test_equal_values_of_another_type_are_read_for_themselves():
    func, z0 = relax, state()
    nf.fdeint(func, z0, 1.0, 1.0, steps=1)
    for wrong in ({"steps": True}, {"steps": 1.0}):
        with pytest.raises(nf.InputTypeError, match="whole number"):
            nf.fdeint(func, z0, 1.0, 1.0, **wrong)
    with pytest.raises(nf.InputTypeError):
        nf.fdeint(func, z0, 1.0, True, steps=1)
    with pytest.raises(nf.InputTypeError):
        nf.fdeint(func, z0, True, 1.0, steps=1)
    nf.fdeint(func, z0, 1, 1, steps=1)
    nf.fdeint(func, z0, 1.0, 0.6, steps=20, method=nf.ABM(corrections=1))
    with pytest.raises((nf.InputTypeError, nf.InputError)):
        nf.fdeint(func, z0, 1.0, 0.6, steps=20, method=nf.ABM(corrections=True))


def test_arguments_of_equal_value_and_other_type_reach_func_as_they_are():
    seen = []

    def func(t, z, a):
        seen.append(type(a))
        return -z * (3.0 if a is True else 2.0 if isinstance(a, int) else 1.0)

    for a in (1, 1.0, True, 1):
        seen.clear()
        found = nf.fdeint(func, state(), 1.0, 0.6, steps=100, args=(a,))
        assert set(seen) == {type(a)}
        wanted = nf.fdeint(func, state(), 1.0, 0.6, steps=100, args=(a,), stepper="single")
        assert relative(found, wanted) < 1e-13


# ---- which functions can be vectorised -------------------------------------------------------------------------------


class Switched(nn.Module):
    """Gives other values when it is vectorised, once it is told to."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=F64))
        self.odd = False

    def forward(self, t, z, odd=False):
        return -self.weight * z * (1 + 0.1 * is_batchedtensor(z) * (self.odd or odd))


class InTraining(nn.Module):
    """The same in one of its modes."""

    def __init__(self, odd_in_training):
        super().__init__()
        self.inside = nn.Identity()
        self.odd_in_training = odd_in_training

    def forward(self, t, z):
        odd = self.inside.training == self.odd_in_training
        return -z.to(F64).to(z.dtype) * (1 + 0.1 * is_batchedtensor(z) * odd)


def agrees(func, z0=None, **options):
    """Whether ``auto`` gives what single steps give, in values and gradients."""
    found = []
    for stepper in ("auto", "single"):
        z = (state() if z0 is None else z0).clone().requires_grad_()
        y = nf.fdeint(func, z, 1.0, 0.6, steps=100, stepper=stepper, **options)
        found.append([y, *torch.autograd.grad(y.square().sum(), z)])
    return all(relative(a, b) < (1e-13 if a.dtype == F64 else 1e-5) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("odd_in_training", [False, True])
def test_a_verdict_holds_for_one_mode(odd_in_training):
    func = InTraining(odd_in_training)
    for training in (not odd_in_training, odd_in_training, not odd_in_training):
        func.train(training)
        assert agrees(func)
    func.train(not odd_in_training)
    assert agrees(func)
    func.inside.train(odd_in_training)  # a part of it alone
    assert agrees(func)


def test_a_verdict_holds_for_one_kind_of_state():
    class Odd(nn.Module):
        def forward(self, t, z):
            odd = z.dtype == F32 or z.shape[-1] == 3
            return -z * (1 + 0.1 * is_batchedtensor(z) * odd)

    func = Odd()
    for z0 in (state(), state(F32), state(numbers=3), state()):
        assert agrees(func, z0)


def test_a_verdict_does_not_outlive_a_change_of_the_module():
    func = Switched()
    assert agrees(func)
    func.odd = True
    assert agrees(func)


def test_a_verdict_does_not_hold_for_other_arguments():
    func = Switched()
    assert agrees(func, args=(False,))
    assert agrees(func, args=(True,))


def test_a_verdict_follows_a_function_and_not_its_equals():
    class Own:
        """Compares equal to all of its kind."""

        def __init__(self, odd):
            self.odd = odd

        def __call__(self, t, z):
            return -z * (1 + 0.1 * is_batchedtensor(z) * self.odd)

        def __eq__(self, other):
            return isinstance(other, Own)

        def __hash__(self):
            return 1

    plain, odd = Own(False), Own(True)
    assert agrees(plain)
    assert agrees(odd)


def test_verdicts_go_with_the_function_and_are_bounded():
    before = caches.listed()["vectorised"]
    func = Switched()
    for n in range(1, 80):
        Verdicts.of(func, (n, 0)).vectorised = True
    assert Verdicts.of(func, (79, 0)).vectorised
    assert len(Verdicts._known[id(func)][1]) <= 65
    assert caches.listed()["vectorised"] == before + 1
    del func
    gc.collect()
    assert caches.listed()["vectorised"] == before


def test_parameters_may_change_in_place():
    func = Switched()
    for factor in (1.0, 0.5, -2.0):
        with torch.no_grad():
            func.weight.mul_(factor)
        assert agrees(func)
        caches.clear()


# ---- caches that hang on objects -------------------------------------------------------------------------------------


def test_what_is_kept_beside_goes_with_its_object():
    """Copies of orders, functions that draw and captured graphs hang on weak references."""
    order, func = torch.tensor(0.6), Switched()
    nf.fdeint(func, state(), 1.0, order, steps=20)
    del func, order
    gc.collect()
    assert not [f for f in DRAWS if isinstance(f, Switched)]
    assert not [f for f in graph_cache._CACHE if isinstance(f, Switched)]


# ---- threads ---------------------------------------------------------------------------------------------------------


def problems():
    """Eight solves that share caches and differ in something each."""
    net = Net(2)
    kinds = [
        {"order": 0.6, "method": "predictor"},
        {"order": 0.7, "method": "abm", "history": "exponentials"},
        {"order": torch.tensor([0.6, 0.8]), "method": "abm"},
        {"order": 0.6, "method": "bdf2", "dtype": F64},
        {"order": 0.65, "method": "predictor", "history": "exponentials"},
        {"order": nf.Tempered(0.6, 0.2), "method": "predictor", "history": nf.Window(20)},
        {"order": 0.6, "method": "gl", "stepper": "single"},
        {"order": 0.9, "method": "l1-explicit", "history": "fft"},
    ]

    def solved(k):
        options = dict(kinds[k])
        dtype, order = options.pop("dtype", F64), options.pop("order")
        z0 = (state(dtype) + 0.1 * k).requires_grad_()
        y = nf.fdeint(net, z0, 1.0, order, steps=90 + k, **options)
        grads = torch.autograd.grad(y.square().sum(), [z0, *net.parameters()])
        return [y.detach(), *grads]

    return solved, range(len(kinds))


def test_eight_threads_at_once_give_what_one_gives():
    solved, numbers = problems()
    alone = [fresh(lambda: solved(k)) for k in numbers]
    caches.clear()
    gate = threading.Barrier(len(numbers))
    for _ in range(3):
        with ThreadPoolExecutor(len(numbers)) as pool:
            found = list(pool.map(lambda k: (gate.wait(), solved(k), solved(k))[1:], numbers))
        for both, wanted in zip(found, alone, strict=True):
            for one in both:  # to rounding: products of an implicit stage depend on where its vectors lie in memory
                assert max(map(relative, one, wanted)) < 1e-14
