"""What jumps, events, a past, lags, linear parts, meshes and tolerances cannot be; arguments of ``fdeint``."""

from __future__ import annotations


def _each(text: str) -> list[str]:
    """Expressions between bars."""
    return [part.strip() for part in text.split("|")]


#: For each argument what it cannot be, beside a call that has ``steps=4``.
COURSES: dict[str, list[str]] = {
    "jumps": _each("""
        3 | 'x' | () | ([0.5],) | ([0.5], torch.ones(1, 2), 1) | ([], torch.ones(0, 2)) | ([0.5], 1.0) |
        ([0.5], torch.ones(2)) | ([0.5], torch.ones(2, 2)) | ([0.5], torch.ones(1, 3)) | ([1.5], torch.ones(1, 2)) |
        ([-0.5], torch.ones(1, 2)) | ([0.0], torch.ones(1, 2)) | ([0.6, 0.3], torch.ones(2, 2)) |
        ([0.5, 0.5], torch.ones(2, 2)) | ([nan], torch.ones(1, 2)) | ([inf], torch.ones(1, 2)) |
        ([0.5], torch.tensor([[nan, 1.0]])) | ([0.5], torch.ones(1, 2, dtype=torch.float64)) |
        (['x'], torch.ones(1, 2)) |
        ([0.5], {'a': torch.ones(1, 2)}) | ([0.5], lambda z: z[:1]) | ([0.5], lambda z: None) |
        (torch.tensor([0.5], requires_grad=True), lambda z: z)
    """),
    "method='gl', jumps": ["([0.5], torch.ones(1, 2))"],
    "order=Tempered(0.5, 0.1), jumps": ["([0.5], torch.ones(1, 2))"],
    "t=torch.tensor([[0.0, 1.0], [0.0, 0.5]]), jumps": ["([0.5], torch.ones(1, 2))"],
    "event": _each("""
        3 | 'x' | [] | lambda t, z: None | lambda t, z: 1.0 | lambda t, z: z[None] | lambda t, z: z > 0 |
        lambda z: z.sum() | lambda t, z: z.sum() * nan | Event | Event(relax, direction=2) |
        Event(relax, direction='up') |
        Event(3) | Event(lambda t, z: z[0] - 0.9, reset=3) | Event(lambda t, z: z[0] - 0.9, reset=lambda z: z[:1]) |
        lambda t, z: (z + 1j).sum()
    """),
    "t=torch.tensor([[0.0, 1.0], [0.0, 0.5]]), event": ["lambda t, z: z[0] - 0.9"],
    "horizon=2.0, event": ["lambda t, z: z[0] - 0.9"],
    "jumps=([0.5], relax), event": ["lambda t, z: z[0] - 0.9"],
    "past": _each("""
        3 | 'x' | () | (torch.tensor([-1.0, 0.0]),) | (torch.tensor([-1.0, 0.0]), 1.0) |
        (torch.tensor([-1.0, 0.0]), torch.ones(3, 2)) | (torch.tensor([0.0, -1.0]), torch.ones(2, 2)) |
        (torch.tensor([-1.0, -0.5]), torch.ones(2, 2)) | (torch.tensor([-1.0, 0.5]), torch.ones(2, 2)) |
        (torch.tensor([-1.0, 0.0]), nan * torch.ones(2, 2)) | (torch.tensor([nan, 0.0]), torch.ones(2, 2)) |
        (torch.tensor([-1.0, 0.0]), torch.zeros(2, 2)) | (torch.tensor([-1.0, 0.0]), torch.ones(2, 3)) |
        (torch.tensor([-1.0, 0.0]), torch.ones(2, 2, dtype=torch.float64)) | (torch.tensor([0.0]), torch.ones(1, 2)) |
        ('ab', torch.ones(2, 2)) | (torch.tensor([-1.0, 0.0]), {'a': torch.ones(2, 2)})
    """),
    "z0=None, past": ["None"],
    "history=Window(2), past": ["(torch.tensor([-1.0, 0.0]), torch.ones(2, 2))"],
    "order=Tempered(0.5, 0.1), past": ["(torch.tensor([-1.0, 0.0]), torch.ones(2, 2))"],
    "order=1.5, method='abm', velocity=torch.ones(2), past": ["(torch.tensor([-1.0, 0.0]), torch.ones(2, 2))"],
    "lags": _each("""
        0.0 | -0.5 | nan | inf | 'x' | [] | () | {} | [0.5, -0.5] | [None] | 0.1 | True | 1j | torch.tensor(-0.5) |
        torch.tensor(nan) | lambda t, z: t | torch.ones(2, 2) | ['0.5']
    """),
    "horizon=2.0, lags": ["0.5"],
    "adjoint='paper', lags": ["0.5"],
    "storage='host', lags": ["0.5"],
    "stepper='picard', lags": ["0.5"],
    "linear": _each("""
        3 | 'x' | [] | {} | torch.ones(2) | torch.ones(3, 3) | torch.ones(2, 3) | torch.ones(2, 2, dtype=torch.int64) |
        torch.ones(2, 2, dtype=torch.float64) | torch.tensor([[nan, 0.0], [0.0, 0.0]]) | lambda: 3 | lambda x: x |
        lambda: torch.ones(3, 3) | object() | relax | numpy.eye(2) | torch.eye(2, device='meta') |
        torch.ones(2, 2, dtype=torch.complex64) | linear.Bands(torch.ones(3, 3))
    """),
    "adjoint='paper', linear": ["-torch.eye(2)"],
    "order=torch.tensor([0.5, 0.6]), linear": ["-torch.eye(2)"],
    "z0=torch.ones(2, dtype=torch.complex64), linear": ["-torch.eye(2)"],
    "z0={'a': torch.ones(2)}, linear": ["-torch.eye(2)"],
    "method='imex', linear": ["1e4 * torch.eye(2)"],
    "func=None, linear": ["None"],
    "func=torch.ones(3), linear": ["-torch.eye(2)"],
    "steps=None, grid": _each("""
        3 | 'x' | [] | [0.0] | [0.0, 0.5] | [0.1, 1.0] | [0.0, 0.6, 0.3, 1.0] | [0.0, 0.5, 0.5, 1.0] | [0.0, nan, 1.0] |
        [0.0, inf] | ['a', 'b'] | torch.ones(2, 2) | torch.tensor([0, 1]) > 0 | {}
    """),
    "grid": ["[0.0, 0.5, 1.0]"],
    "method='gl', steps=None, grid": ["[0.0, 0.3, 1.0]"],
    "history='fft', steps=None, grid": ["[0.0, 0.3, 1.0]"],
    "steps=None, rtol": ["0.0", "-1.0", "nan", "inf", "'x'", "True", "1j", "1e-30", "torch.tensor(1e-3)"],
    "steps=None, atol": ["-1.0", "nan", "inf", "'x'", "1j"],
    "steps=None, rtol=1e-4, max_steps": ["0", "-3", "'x'", "2.5", "3", "None"],
    "steps=None, method='gl', rtol": ["1e-3"],
    "steps=None, order=1.5, velocity=torch.zeros(2), rtol": ["1e-3"],
    "atol": ["1e-3"],
}
OBJECTS_OF_COURSES = """
Event(None) | Event(relax, direction=nan) | Event(relax, reset='x') | Event() |
FDECell(3, step=0.1, steps=4) | FDECell(relax, 0.5, steps=4) | FDECell(relax, 0.5, step=0.1) |
FDECell(relax, 0.0, step=0.1, steps=4) | FDECell(relax, 1.5, step=0.1, steps=4) |
FDECell(relax, 'x', step=0.1, steps=4) | FDECell(relax, nan, step=0.1, steps=4) |
FDECell(relax, 0.5, step=0.0, steps=4) | FDECell(relax, 0.5, step=-1.0, steps=4) |
FDECell(relax, 0.5, step='x', steps=4) | FDECell(relax, 0.5, step=nan, steps=4) |
FDECell(relax, 0.5, step=0.1, steps=0) | FDECell(relax, 0.5, step=0.1, steps=2.5) |
FDECell(relax, 0.5, step=0.1, steps='x') | FDECell(relax, 0.5, step=0.1, steps=4, method='gl') |
FDECell(relax, 0.5, step=0.1, steps=4, method='abm') | FDECell(relax, 0.5, step=0.1, steps=4, method='nonsense') |
FDECell(relax, 0.5, step=0.1, steps=4, history='full') | FDECell(relax, 0.5, step=0.1, steps=4, history=3) |
FDECell(relax, 0.5, step=0.1, steps=4, start='x') | FDECell(relax, 0.5, step=0.1, steps=4, start=nan) |
FDECell(relax, 0.5, 'yes', step=0.1, steps=4) | FDECell(relax, 0.5, step=0.1, steps=4).begin('x') |
FDECell(relax, 0.5, step=0.1, steps=4).begin(torch.ones(2, dtype=torch.int64)) |
linear.Bands(3) | linear.Bands('x') | linear.Bands(torch.ones(3)) | linear.Bands(torch.ones(3, 2)) |
linear.laplacian('x', 0.1) | linear.laplacian(0, 0.1) | linear.laplacian(4, 0.0) | linear.laplacian(4, -1.0) |
linear.laplacian(4, nan) | linear.laplacian(4, 0.1, 1.0, 'nonsense') | linear.diffusion('x', 0.1) |
linear.diffusion(torch.ones(4), 0.0) | linear.diffusion(torch.ones(4), 'x') | linear.Sparse('x', 'y', 'z', 3) |
linear.Sparse(torch.tensor([0]), torch.tensor([9]), torch.ones(1), 3) |
plan(relax, torch.ones(2), 1.0, 0.5) | plan(relax, torch.ones(2), 1.0, 0.5, rtol=1e-3) |
solve(relax, torch.ones(2), 1.0, 0.5, steps=4, event=lambda t, z: z[0] - 0.9, resume=True) |
solve(relax, torch.ones(2), 1.0, 0.5, steps=4, jumps=([0.5], torch.ones(1, 2)), estimate_error=True) |
solve(relax, torch.ones(2), 1.0, 0.5, steps=4, lags=0.5, resume=True) |
solve(relax, torch.ones(2), 1.0, 0.5, rtol=1e-3, resume=True) |
solve(relax, torch.ones(2), 1.0, 0.5, rtol=1e-3, estimate_error=True)
"""
