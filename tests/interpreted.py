"""Tests of Triton kernels: on a GPU, or on the CPU in a process of their own where Triton interprets them."""

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def by_kernels(test):
    """Mark a test that needs kernels."""
    needs = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")
    return pytest.mark.gpu(needs(test))


def run_interpreted(file):
    """The marked tests of a file, interpreted; fails where none of them ran."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
