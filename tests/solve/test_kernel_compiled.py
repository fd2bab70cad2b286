"""What kernels become on an H200: compiled for it, which needs none."""

import sys
from dataclasses import replace

import pytest
import torch

from tests.interpreted import INTERPRETED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INTERPRETED or sys.platform != "linux", reason="compiles what is interpreted elsewhere"),
]
#: In double precision the Triton of torch 2.11 puts 128 bytes of a backward step on the stack.
SPILLS = pytest.mark.xfail(torch.__version__.startswith("2.11."), reason="its Triton, 3.6, needs more registers")


@pytest.mark.parametrize(
    ("name", "batch", "dtype"),
    [
        ("32-64-32", 64, torch.float32),
        pytest.param("32-64-32", 64, torch.float64, marks=SPILLS),
        ("32-64-32", 4096, torch.float32),
        ("4-64-4", 256, torch.float32),
        ("8-64-8", 64, torch.float32),
    ],
)
def test_registers_hold_a_step(name, batch, dtype):
    """A kernel whose registers spill takes several times as long; with a new version of Triton it may be another."""
    from benchmarks import kernel_static

    case = next(case for case in kernel_static.measured.cases(quick=False) if case.name == name)
    found = kernel_static.training_step(replace(case, batch=batch, steps=2000), dtype)
    assert found.keys() == {"forward", "replay", "backward", "near_pairs", "far_pairs"}
    assert {name: row["stack"] for name, row in found.items()} == dict.fromkeys(found, 0)
