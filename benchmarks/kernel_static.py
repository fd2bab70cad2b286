"""What the kernels of a training step become on an H200, which need not be there: Triton compiles for it anywhere.

    python benchmarks/kernel_static.py                  # the cases of kernel.py, about a minute
    python benchmarks/kernel_static.py --only 32-64-32 --double

Prints a line of JSON for every kernel: registers and stack of a thread (a stack means that registers spill), shared
memory of a program, and the instructions of a warp in a step of the largest loop. With --seconds nothing comes from
Triton's cache, and the seconds of compiling are given: in all, of reading the source (ir), of passes on tensors (ttir,
ttgir), of LLVM (llir, ptx), and of NVIDIA's assembler (cubin).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import kernel as measured
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import neuralfde as nf
from neuralfde.base.caches import clear
from neuralfde.solve.steppers import kernel
from neuralfde.solve.steppers.kernel import functions, prepare

H200, MULTIPROCESSORS = GPUTarget("cuda", 90, 32), 132
_TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64"}


class Compiled:
    """Stands for a kernel: compiles it for what it is launched with, and computes nothing."""

    def __init__(self, name: str, function: Any, found: dict[str, dict[str, Any]]) -> None:
        self.name, self.function, self.found = name, function, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch

    def launch(self, *args: Any, **options: Any) -> None:
        """Compile it, once."""
        if self.name in self.found:
            return
        fixed = {name: options.pop(name) for name in self.function.arg_names if name in options}
        loose = {p.name for p in self.function.params if p.do_not_specialize}
        types, values, aligned = {}, dict(fixed), {}
        for k, (name, x) in enumerate(zip(self.function.arg_names, args, strict=False)):
            if isinstance(x, Tensor):
                types[name] = _TYPES[x.dtype]
            elif x == 1 and name not in loose:
                values[name] = 1
            else:
                types[name] = "i32"
            if isinstance(x, Tensor) or (name not in loose and x % 16 == 0):
                aligned[(k,)] = [["tt.divisibility", 16]]
        source = ASTSource(
            self.function, {n: types.get(n, "constexpr") for n in self.function.arg_names}, values, aligned
        )
        parts: dict[str, float] = {}

        def told(times: Any, **about: Any) -> None:
            parts.update({n: s / 1e6 for n, s in (("ir", times.ir_initialization), *times.lowering_stages)})

        start = time.perf_counter()
        with mock.patch.object(triton.knobs.compilation, "listener", told):
            made = triton.compile(source, target=H200, options=options)
        seconds = {"all": time.perf_counter() - start, **parts}
        self.found[self.name] = {
            "warps": options["num_warps"],
            **machine_code(made.asm["cubin"]),
            "shared": made.metadata.shared,
            "seconds": {name: round(s, 2) for name, s in seconds.items()},
        }


def asked(tool: str, option: str, file: str) -> str:
    """What one of the tools that come with Triton says about a file."""
    path = getattr(triton.knobs.nvidia, tool).path
    return subprocess.run([path, option, file], check=True, capture_output=True, text=True).stdout


def machine_code(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack of a thread; instructions in all and in the largest loop."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        used = re.search(r"REG:(\d+) STACK:(\d+)", asked("cuobjdump", "-res-usage", file.name))
        lines = asked("nvdisasm", "-c", file.name).splitlines()
    assert used is not None
    count, longest, labels = 0, 0, dict[str, int]()
    for line in lines:
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]+\*/\s+\S", line):
            count += 1
            back = re.search(r"BRA.*`\((\.L_\w+)\)", line)
            longest = max(longest, count - labels.get(back[1], count)) if back else longest
    return {"registers": int(used[1]), "stack": int(used[2]), "instructions": count, "loop": longest}


@contextlib.contextmanager
def standing_in(found: dict[str, dict[str, Any]], tf32: bool) -> Iterator[None]:
    """Kernels are compiled, not run, on a machine that takes itself for one with an H200."""
    made, patched = prepare._compiled, partial(mock.patch.object, prepare)

    def compiled(source: str) -> dict[str, Any]:
        own = {name: x for name, x in made(source).items() if name in ("forward", "replay", "backward")}
        return {name: Compiled(name, x, found) for name, x in own.items()}

    with contextlib.ExitStack() as stack:
        clear()
        stack.callback(clear)  # kernels that compute nothing
        for name in ("near_pairs", "far_pairs"):
            own = Compiled(name, getattr(functions, name), found)
            stack.enter_context(mock.patch.object(functions, name, own))
        stack.enter_context(patched("_compiled", compiled))
        stack.enter_context(patched("multiprocessors_of", lambda device: MULTIPROCESSORS))
        stack.enter_context(patched("reduced", lambda like: tf32 and like.dtype == torch.float32))
        stack.enter_context(mock.patch.object(kernel, "why_not_here", return_value=None))
        yield


def training_step(case: measured.Case, dtype: torch.dtype = torch.float32) -> dict[str, dict[str, Any]]:
    """What the kernels of a training step of this case are compiled to, by their names."""
    found: dict[str, dict[str, Any]] = {}
    with mock.patch.object(measured, "DEVICE", torch.device("cpu")), standing_in(found, case.tf32):
        func, z0, order, args = case.inputs(dtype)
        with contextlib.suppress(nf.ChangedFunctionError):  # nothing was computed
            states = nf.solve(
                func, z0, 0.01 * case.steps, order, steps=case.steps, args=args, history="exponentials",
                stepper="kernel", method="predictor", check_finite=False,
            ).ys  # fmt: skip
            states.square().mean().backward()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--double", action="store_true", help="in double precision")
    parser.add_argument("--seconds", action="store_true", help="compile everything anew, and say how long it takes")
    given = parser.parse_args()
    for case in measured.cases(quick=False):
        if given.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as empty, triton.knobs.cache.scope():
            if given.seconds:
                triton.knobs.cache.dir = empty
            found = training_step(case, torch.float64 if given.double else torch.float32)
        about = {"case": case.name, "batch": case.batch, "steps": case.steps, "tf32": case.tf32}
        for name, row in found.items():
            if not given.seconds:
                del row["seconds"]
            print(json.dumps({**about, "kernel": name, **row}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
