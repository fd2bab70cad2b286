"""One streamed step of an exported cell: MLP 8-32-8 with an input, in onnxruntime on one core, for a million steps.

    python benchmarks/cell.py

Processor time of a step, the median over thousands of steps, at the beginning and at the end of the stream: by a plain
``run``, which copies the state to and from Python, and with the state bound to fixed memory. Also the same cell in
PyTorch, and the distance of the stream from a whole solve with all weights. Writes results/cell.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import onnxruntime as ort
import torch
from report.record import here, put
from report.solver import cell as page
from torch import Tensor, nn

import neuralfde as nf

BATCH = 1000  # steps between two looks at the clock


class Slope(nn.Module):
    """A network of state and input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, t: Tensor, z: Tensor, u: Tensor) -> Tensor:
        """The slope."""
        return self.net(z + u)


def session_of(cell: nf.FDECell, state: tuple[Tensor, ...], u: Tensor, folder: str) -> ort.InferenceSession:
    path = Path(folder) / "cell.onnx"
    torch.onnx.export(cell, (state, u), dynamo=True, verbose=False).save(path)
    one = ort.SessionOptions()
    one.intra_op_num_threads = one.inter_op_num_threads = 1
    return ort.InferenceSession(path, one, providers=["CPUExecutionProvider"])


def by_run(session: ort.InferenceSession, state: tuple[Tensor, ...], inputs: list) -> Callable[[int], Tensor]:
    *names, last = [x.name for x in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, state, strict=True)}

    def walk(steps: int) -> Tensor:
        for n in range(steps):
            feed[last] = inputs[n % len(inputs)]
            z, *found = session.run(None, feed)
            feed.update(zip(names, found, strict=True))
        return torch.from_numpy(z)

    return walk


def bound(session: ort.InferenceSession, state: tuple[Tensor, ...], inputs: list) -> Callable[[int], Tensor]:
    """Two states that are read and written in turn."""
    *names, last = [x.name for x in session.get_inputs()]
    z, *written = [x.name for x in session.get_outputs()]
    u, out = (ort.OrtValue.ortvalue_from_numpy(inputs[0].copy()) for _ in range(2))
    here, there = ([ort.OrtValue.ortvalue_from_numpy(x.numpy().copy()) for x in state] for _ in range(2))

    def binding(read: list, write: list) -> ort.IOBinding:
        found = session.io_binding()
        for name, value in zip([*names, last], [*read, u], strict=True):
            found.bind_ortvalue_input(name, value)
        for name, value in zip([z, *written], [out, *write], strict=True):
            found.bind_ortvalue_output(name, value)
        return found

    turns = binding(here, there), binding(there, here)

    def walk(steps: int) -> Tensor:
        for n in range(steps):  # an even number, so that the next walk goes on from here
            u.update_inplace(inputs[n % len(inputs)])
            session.run_with_iobinding(turns[n % 2])
        return torch.from_numpy(out.numpy())

    return walk


def eager(cell: nf.FDECell, state: tuple[Tensor, ...], inputs: list) -> Callable[[int], Tensor]:
    rows, held = [torch.from_numpy(u) for u in inputs], [state]

    def walk(steps: int) -> Tensor:
        with torch.no_grad():
            for n in range(steps):
                z, held[0] = cell(held[0], rows[n % len(rows)])
        return z

    return walk


def microseconds(walk: Callable[[int], Tensor], steps: int) -> dict[str, float]:
    """Of one step, in the first and in the last tenth of a stream."""
    each = []
    for _ in range(steps // BATCH):
        start = time.process_time()
        walk(BATCH)
        each.append(1e6 * (time.process_time() - start) / BATCH)
    tenth = max(1, len(each) // 10)
    return {"first tenth": median(each[:tenth]), "last tenth": median(each[-tenth:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    func, z0, inputs = Slope(), torch.randn(8), list(torch.randn(BATCH, 8).numpy())
    cell = nf.FDECell(func, 0.6, step=0.01, steps=given.steps).eval()
    state = cell.begin(z0)
    whole = nf.fdeint(  # all weights
        lambda t, z: func(t, z, torch.from_numpy(inputs[min(BATCH - 1, round(float(t) / 0.01))])),
        z0, 0.01 * BATCH, 0.6, steps=BATCH, params=list(func.parameters()), stepper="single",
    )  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(cell, state, torch.from_numpy(inputs[0]), folder)
        ways = {"onnxruntime, run": by_run(session, state, inputs), "onnxruntime, bound": bound(session, state, inputs)}
        for name, walk in {**ways, "PyTorch": eager(cell, state, inputs)}.items():
            off = float((walk(BATCH) - whole.detach()).abs().max())
            steps = (given.steps if name != "PyTorch" else given.steps // 20) - BATCH
            rows.append(
                {"way": name, "steps": steps, "rows": state[2].shape[-1], **microseconds(walk, steps), "off": off}
            )
    put("cell", "step", rows, **here(), onnxruntime=ort.__version__, command="python benchmarks/cell.py")
    print(page())


if __name__ == "__main__":
    main()
