"""Long horizons: time, memory and gradient error of one training step over T, for every adjoint and storage.

    python benchmarks/horizons.py                 # on the GPU if there is one, otherwise on the CPU
    python benchmarks/horizons.py --device cpu    # each row in a separate process, peak memory from the system
    python benchmarks/horizons.py --quick         # small sizes, a minute

Writes <out>/horizons-<device>.json after every row; ``python benchmarks/render.py --take <out>`` makes a table and a
plot of it. Cases that a run has no time for keep the rows of an earlier run.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from report.record import here
from torch import Tensor, nn
from workloads import Perceptron, image_model, image_problem

import neuralfde as nf
from neuralfde.cli.measuring import clock, peak_mib, resident_mib
from neuralfde.models.image import ConvFDE
from neuralfde.solve.steppers import graph_cache

ROWS = 294_912  # numbers in a state of the image model


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    t: float
    adjoint: str = "exact"
    history: str = "full"
    storage: str = "device"
    order: float = 0.5
    step: float = 0.1
    compiled: bool = False
    double: bool = False
    stepper: str = "auto"
    repeats: int = 3
    peer: str = ""
    reference: str = ""  # the case whose gradient this one's is compared with

    @property
    def steps(self) -> int:
        """Number of steps."""
        return round(self.t / self.step)

    def options(self) -> dict[str, Any]:
        """What goes to FDEBlock."""
        return {
            "order": self.order, "t": self.t, "step": self.step, "adjoint": self.adjoint, "storage": self.storage,
            "history": nf.Exponentials(tol=1e-11) if self.double and self.history == "exponentials" else self.history,
            "stepper": self.stepper,
        }  # fmt: skip


def gpu_cases(quick: bool) -> list[Case]:
    """In the order of their importance: what does not fit in the time is left out from the end."""
    t = 10.0 if quick else 200.0
    long = 50.0 if quick else 2000.0
    full = Case("exact, full + device", t)
    ref = full.name + f" T={t:g}"
    exponential = {"history": "exponentials", "reference": ref}
    cases = [
        full,
        Case("exact, exponentials + host", t, storage="host", **exponential),
        Case("exact, exponentials + checkpoint", t, storage="checkpoint", **exponential),
        Case("exact, exponentials + device", t, **exponential),
        Case("exact, full + device", 1.0, repeats=20),
        Case("direct", 1.0, adjoint="direct", repeats=20, reference="exact, full + device T=1"),
        Case("Fashion-MNIST block, exponentials + host", t if quick else 128.0, history="exponentials",
             storage="host", order=0.3, repeats=2),
        Case("exact, exponentials + host, compiled func", t, history="exponentials", storage="host", compiled=True),
        Case("exact, exponentials + device, compiled func", t, history="exponentials", compiled=True),
        Case("exact, exponentials + host", long, history="exponentials", storage="host", repeats=1),
        Case("exact, full + device, float64", t / 4, double=True, repeats=1),
        Case("exact, exponentials to 1e-11 + host, float64", t / 4, history="exponentials", storage="host", double=True,
             repeats=1, reference=f"exact, full + device, float64 T={t / 4:g}"),
        Case("exact, full + device, compiled func", t, compiled=True, reference=ref),
        Case("direct", t, adjoint="direct", reference=ref, repeats=1),
        Case("paper", t, adjoint="paper", reference=ref, repeats=1),
        Case("exact, full + device, eager", t, stepper="single", reference=ref, repeats=1),
        Case("exact, auto", t, history="auto", storage="auto", reference=ref),
    ]  # fmt: skip
    for short in () if quick else (10.0, 50.0):
        base = f"exact, full + device T={short:g}"
        cases += [
            Case("exact, full + device", short),
            Case("exact, exponentials + host", short, history="exponentials", storage="host", reference=base),
            Case("exact, exponentials + checkpoint", short, history="exponentials", storage="checkpoint",
                 reference=base),
            Case("direct", short, adjoint="direct", reference=base, repeats=1),
            Case("paper", short, adjoint="paper", reference=base, repeats=1),
        ]  # fmt: skip
    cases += [Case(f"peer {p}", 1.0, peer=p, repeats=1) for p in ("torchfde", "FDEint")]
    return cases


def cpu_cases(quick: bool) -> list[Case]:
    """The same questions for a perceptron; the horizon is long, the state small."""
    cases = []
    for steps in (200, 1000) if quick else (2000, 20000):
        common: dict[str, Any] = {"t": steps * 0.01, "step": 0.01, "repeats": 1}
        ref = f"exact, full + device T={steps * 0.01:g}"
        many = {**common, "reference": ref}
        cases += [
            Case("exact, full + device", **common),
            Case("exact, exponentials + device", history="exponentials", **many),
            Case("exact, exponentials + file", history="exponentials", storage="file", **many),
            Case("exact, exponentials + checkpoint", history="exponentials", storage="checkpoint", **many),
            Case("paper", adjoint="paper", **many),
        ]
        if steps <= 2000:
            cases.append(Case("direct", adjoint="direct", **many))
    return cases


@dataclass
class Row:
    """What was measured."""

    case: Case
    forward_s: float | None = None
    backward_s: float | None = None
    total_s: float | None = None
    first_s: float | None = None
    peak_mib: float | None = None
    first_peak_mib: float | None = None
    gradient_error: float | None = None
    note: str = ""
    gradient: list[Tensor] = field(default_factory=list, repr=False)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        found = {k: v for k, v in asdict(self).items() if k not in ("gradient", "case")}
        return {**asdict(self.case), "steps": self.case.steps, **found}


class Report:
    """Rows as they come; the file is written after each."""

    def __init__(self, out: Path, device: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"horizons-{device.replace(' ', '-').lower()}.json"
        self.rows: list[dict[str, Any]] = []
        self.bare: dict[str, dict[str, float]] = {}
        words = [w for w in sys.argv[1:] if w not in ("--out", str(out))]
        command = " ".join(["python benchmarks/horizons.py", *words])
        self.about = here() | {"device": device, "command": command} | ({"hardware": device} if device != "cpu" else {})

    def add(self, row: dict[str, Any]) -> None:
        """Take a row in and write the file."""
        self.rows.append(row)
        shown = {k: v for k, v in row.items() if k.endswith(("_s", "_mib", "error", "note")) and v}
        print(f"{row['name']} T={row['t']:g}: {shown}", flush=True)
        self.flush()

    def flush(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps({**self.about, "bare": self.bare, "rows": self.rows}, indent=1))


def train_step(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass."""
    model.zero_grad(set_to_none=True)
    start = clock(inputs.device)
    out = model(inputs)
    loss = (out**2).mean() if labels is None else nn.functional.cross_entropy(out, labels)
    middle = clock(inputs.device)
    loss.backward()
    return middle - start, clock(inputs.device) - middle


def measure(case: Case, model: nn.Module, inputs: Tensor, labels: Tensor | None) -> Row:
    """A first step with everything that is done once, then the timed ones."""
    row, times = Row(case), list[tuple[float, float]]()

    def steps(count: int) -> None:
        times[:] = [train_step(model, inputs, labels) for _ in range(count)]

    row.first_peak_mib = peak_mib(lambda: steps(1), inputs.device)
    row.first_s = sum(times[0])
    if case.steps < 64:  # few steps are captured when they come a third time
        steps(3)
    row.peak_mib = peak_mib(lambda: steps(case.repeats), inputs.device)
    row.forward_s, row.backward_s = min(times, key=sum)
    row.total_s = row.forward_s + row.backward_s
    if case.reference or case.name.startswith("exact, full + device"):
        in_full_precision(model, inputs, labels)
    row.gradient = [p.grad.detach().cpu().double() for p in model.parameters() if p.grad is not None]
    return row


def in_full_precision(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> None:
    """One more step without TF32, for its gradient: convolutions in TF32 differ by more than what is compared here."""
    settings = torch.backends.cudnn.conv
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        train_step(model, inputs, labels)
    finally:
        settings.fp32_precision = before


def run_gpu_case(case: Case, device: torch.device) -> Row:
    torch.manual_seed(0)
    model = image_model(**case.options()).to(device)
    func = model.fde.func
    if case.compiled:
        func.compile()
    inputs, labels = image_problem(device)
    if case.double:
        model, inputs = model.double(), inputs.double()
    if case.peer:
        return measure_peer(case, func, device)
    try:
        row = measure(case, model, inputs, labels)
        row.note = stepper_of(model, inputs)
        if "Fashion" in case.name and row.total_s is not None:
            row.note += f"; 468 batches: {468 * row.total_s:.0f} s"
        return row
    finally:
        graph_cache.drop(func)


def stepper_of(model: ConvFDE, inputs: Tensor) -> str:
    """Which stepper takes the steps of a forward pass like those that were timed, as the solver says itself."""
    block = model.fde
    solved = nf.solve(block.func, model.stem(inputs), block.t, block.order, **block.options)
    return solved.stats.stepper


def measure_peer(case: Case, func: nn.Module, device: torch.device) -> Row:
    """A peer's own call on the block alone, where it is installed."""
    row = Row(case)
    if case.peer == "torchfde":
        from torchfde import fdeint_adjoint
    else:
        from FDEint import fdeint_adjoint  # type: ignore[no-redef]
    z0 = torch.randn(128, 64, 6, 6, device=device)
    start = clock(device)
    out = fdeint_adjoint(func, z0, torch.tensor(case.order), t=case.t, step_size=case.step, method="predictor")
    out = out if isinstance(out, Tensor) else out[-1]
    (out**2).mean().backward()
    row.total_s = clock(device) - start
    return row


def bare_kernels(device: torch.device, compiled: bool) -> dict[str, float]:
    """Milliseconds a step of f, and of f with its VJP, replayed as graphs: what no solver can be faster than."""
    torch.manual_seed(0)
    call = image_model().fde.func.to(device)
    if compiled:
        call.compile()
    z = torch.randn(128, 64, 6, 6, device=device)
    bar, t = torch.randn_like(z), torch.zeros((), device=device)
    params = list(call.parameters())

    def f() -> Tensor:
        with torch.no_grad():
            return call(t, z)

    def vjp() -> Any:
        x = z.detach().requires_grad_()
        return torch.autograd.grad(call(t, x), [x, *params], bar)

    found = {}
    for name, work in (("f", f), ("f + VJP", vjp)):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        start = clock(device)
        for _ in range(300):
            graph.replay()
        found[name] = (clock(device) - start) / 300 * 1e3
        del graph
    return found


def run_cpu_case(case: Case, folder: str, quick: bool) -> Row:
    """In this process; peak memory is the growth of the process's high-water mark, after a short solve."""
    torch.manual_seed(0)
    storage: Any = nf.Host(path=folder) if case.storage == "file" else case.storage
    inputs = torch.randn(64, 64)
    short = {**case.options(), "storage": storage, "t": 512 * case.step}  # long enough for all that is done once
    field_ = Perceptron()
    train_step(nf.FDEBlock(field_, **short), inputs, None)
    before = resident_mib()
    model = nf.FDEBlock(field_, **{**case.options(), "storage": storage})
    row = Row(case)
    row.forward_s, row.backward_s = train_step(model, inputs, None)
    row.total_s = row.forward_s + row.backward_s
    row.peak_mib = resident_mib() - before
    rows_mib = case.steps * inputs.numel() * 4 / 2**20
    row.note = f"{row.peak_mib / rows_mib:.3f} of N·d ({rows_mib:.0f} MiB)"
    row.gradient = [p.grad.detach().double() for p in model.parameters() if p.grad is not None]
    return row


def compare(row: Row, known: dict[str, list[Tensor]]) -> None:
    reference = known.get(row.case.reference)
    if reference and row.gradient:
        top = sum(float((a - b).square().sum()) for a, b in zip(row.gradient, reference, strict=True))
        row.gradient_error = (top / sum(float(b.square().sum()) for b in reference)) ** 0.5


def on_gpu(report: Report, given: argparse.Namespace) -> None:
    device = torch.device("cuda")
    start = time.perf_counter()
    known: dict[str, list[Tensor]] = {}
    for name in ("eager",) if given.quick else ("eager", "compiled"):
        try:
            report.bare[name] = bare_kernels(device, compiled=name == "compiled")
            print("bare kernels", name, report.bare[name], flush=True)
        except Exception:
            traceback.print_exc()
    for case in gpu_cases(given.quick):
        if given.only and given.only not in case.name:
            continue
        if time.perf_counter() - start > given.budget:
            report.add(Row(case, note="left out: over the time budget").data())
            continue
        try:
            row = run_gpu_case(case, device)
            known.setdefault(f"{case.name} T={case.t:g}", row.gradient)
            compare(row, known)
        except Exception as error:
            if not case.peer:
                traceback.print_exc()
            row = Row(case, note=f"{type(error).__name__}: {str(error)[:160]}")
        report.add(row.data())
        gc.collect()
        torch.cuda.empty_cache()


def on_cpu(report: Report, given: argparse.Namespace) -> None:
    known: dict[str, list[Tensor]] = {}
    for case in cpu_cases(given.quick):
        if given.only and given.only not in case.name:
            continue
        keep = report.path.with_suffix(".tmp")
        command = [sys.executable, __file__, "--one", json.dumps(asdict(case)), "--out", str(keep)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        row = Row(case, note=done.stderr.strip().splitlines()[-1][:160] if done.returncode and done.stderr else "")
        if done.returncode == 0:
            data = torch.load(keep)
            for name, value in data.items():
                setattr(row, name, value)
            known.setdefault(f"{case.name} T={case.t:g}", row.gradient)
            compare(row, known)
            keep.unlink()
        report.add(row.data())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--budget", type=float, default=360.0, help="seconds after which GPU cases are left out")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        row = run_cpu_case(Case(**json.loads(given.one)), str(given.out.parent), given.quick)
        kept = ("forward_s", "backward_s", "total_s", "peak_mib", "note", "gradient")
        torch.save({k: getattr(row, k) for k in kept}, given.out)
        return
    cuda = torch.cuda.is_available() if given.device == "auto" else given.device == "cuda"
    report = Report(given.out, torch.cuda.get_device_name() if cuda else "cpu")
    (on_gpu if cuda else on_cpu)(report, given)
    report.flush()
    print(f"wrote {report.path}")


if __name__ == "__main__":
    main()
