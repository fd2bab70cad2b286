"""Solves at once: in threads, interleaved, in other processes, in loaders, compiled, deterministic; equal to serial."""

from __future__ import annotations

from .. import scripts
from ..case import Case, Part
from ..scripts import Script

COUNT = 4
SERIAL = f"""
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

from campaign.workers import Solves, backward, forward, queued, whole

count, given = {COUNT}, (noise, method, stepper)
right = {{"solves": torch.stack([whole(k, *given) for k in range(count)])}}
if noise:  # what a linear loss is to its gradient, see campaign.workers
    right = {{"solves": torch.ones(count, 1, dtype=torch.float64)}}
"""
PROCESSES = """
context = multiprocessing.get_context("{how}")
queue = context.Queue()
workers = [context.Process(target=queued, args=(queue, k, *given)) for k in range(count)]
for worker in workers:
    worker.start()
rows = dict(queue.get(timeout=100) for _ in workers)
for worker in workers:
    worker.join()
found = {{"solves": torch.tensor([rows[k] for k in range(count)], dtype=torch.float64)}}
"""
LOADER = """
solves = Solves(count, *given)
loader = torch.utils.data.DataLoader(solves, batch_size=2, num_workers=2, multiprocessing_context="{how}")
found = {{"solves": torch.cat(list(loader))}}
"""
SITUATIONS = {
    "threads": """
with ThreadPoolExecutor(count) as pool:
    for _ in range(5):
        rows = list(pool.map(lambda k: whole(k, *given), range(count)))
        if not torch.allclose(torch.stack(rows), right["solves"], rtol=1e-9, atol=0):
            break
found = {"solves": torch.stack(rows)}
""",
    "interleaved": """
begun = [forward(k, *given) for k in range(count)]
found = {"solves": torch.stack([backward(*one) for one in begun])}
""",
    "interleaved, last first": """
begun = [forward(k, *given) for k in range(count)]
found = {"solves": torch.stack([backward(*one) for one in begun[::-1]][::-1])}
""",
    "backward in another thread": """
begun = [forward(k, *given) for k in range(count)]
with ThreadPoolExecutor(count) as pool:
    found = {"solves": torch.stack(list(pool.map(lambda one: backward(*one), begun)))}
""",
    "deterministic": """
torch.use_deterministic_algorithms(True)
try:
    found = {"solves": torch.stack([whole(k, *given) for k in range(count)])}
finally:
    torch.use_deterministic_algorithms(False)
""",
    "fork": PROCESSES.format(how="fork"),
    "loader, fork": LOADER.format(how="fork"),
    "compile": """
torch._dynamo.reset()
compiled = torch.compile(lambda k: forward(k, *given), backend="eager")
found = {"solves": torch.stack([backward(*compiled(k)) for k in range(count)])}
""",
    "spawn": PROCESSES.format(how="spawn"),
    "loader, spawn": LOADER.format(how="spawn"),
}
SLOW = ("spawn", "loader, spawn")  # each process imports torch
CASES = [
    (situation, noise, method, stepper)
    for situation in SITUATIONS
    for noise in (False, True)
    for method in ("predictor", "trapezoid")
    for stepper in ("auto", "single")
    if situation not in SLOW or (method, stepper) == ("predictor", "auto")
]
SETTINGS = {name: [case[k] for case in CASES] for k, name in enumerate(("situation", "noise", "method", "stepper"))}
SETTINGS |= {"dtype": ["float64"], "numbers": [0]}


def _script(case: Case) -> Script:
    return Script(SERIAL, SITUATIONS[case["situation"]])


def check(case: Case) -> float:
    return scripts.run(_script(case), case, 12)


PART = Part("concurrency", SETTINGS, check, lambda case: scripts.whole(_script(case), case), each=True, share=0.4)
