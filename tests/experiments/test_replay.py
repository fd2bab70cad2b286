"""Replayed functions, with graphs that only pretend."""

import contextlib
import logging

import pytest
import torch

from neuralfde_experiments import replay
from neuralfde_experiments.replay import Replay


class FakeGraph:
    """Remembers the call that was made while it was captured."""

    current = None

    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


@pytest.fixture
def pretend(monkeypatch):
    @contextlib.contextmanager
    def graph(made, stream=None, capture_error_mode="global"):
        yield

    monkeypatch.setattr(replay.torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(replay.torch.cuda, "graph", graph)
    monkeypatch.setattr(replay.torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(replay.torch.cuda, "set_stream", lambda stream: None)


def test_first_calls_run_then_one_is_captured_and_replayed(pretend):
    seen = []
    call = Replay(lambda x, y: seen.append((x, float(x), int(y))), warm_up=2)
    for k in range(5):
        call(torch.tensor(float(k)), torch.tensor(k))
    assert [s[1:] for s in seen] == [(0.0, 0), (1.0, 1), (2.0, 2)]  # two calls, and the capture
    assert call.graph.replays == 3
    assert len({id(s[0]) for s in seen}) == 1  # always the same tensor
    assert float(call.inputs[0]) == 4.0


def test_what_cannot_be_captured_goes_on_as_it_is(pretend, monkeypatch, caplog):
    monkeypatch.setattr(replay, "_reset", lambda stream: None)
    seen = []

    def call(x):
        if len(seen) == 1 and not tried:
            tried.append(1)
            raise RuntimeError("a look at a value")
        seen.append(float(x))

    tried = []
    with caplog.at_level(logging.WARNING, logger="neuralfde"):
        replayed = Replay(call, warm_up=1)
        for k in range(4):
            replayed(torch.tensor(float(k)))
    assert seen == [0.0, 1.0, 2.0, 3.0]
    assert replayed.graph is None
    assert replayed.failed
    assert [r.message for r in caplog.records] == [
        "training steps run one kernel at a time, since they could not be captured: a look at a value"
    ]
