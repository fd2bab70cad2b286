"""What happens to a run that is killed, and to one whose files are damaged or whose folder cannot be written."""

import dataclasses
import errno
import json
import os
import random
import signal
import sys

import faults
import pytest
import torch

pytest.importorskip("typer")
from neuralfde import InputError
from neuralfde.cli import checkpoint, execution
from neuralfde.cli.experiment import FolderReport, Report, option, read

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and fork")


@dataclasses.dataclass(frozen=True)
class Config:
    count: int = option(2, "how many")


def test_a_checkpoint_is_kept_twice_and_the_older_one_is_used_if_the_newest_is_damaged(tmp_path):
    path, before = tmp_path / "checkpoint.pt", checkpoint.previous_of(tmp_path / "checkpoint.pt")
    assert checkpoint.newest(path) == (None, "")
    for k in range(3):
        checkpoint.save(path, {"k": k, "w": torch.full((3,), float(k))})
    assert checkpoint.newest(path)[0]["k"] == 2
    whole = path.read_bytes()
    draw = random.Random(0)
    for how in faults.DAMAGES:
        path.write_bytes(faults.damaged(whole, how, draw))
        state, note = checkpoint.newest(path)
        assert state["k"] == 1
        assert "the one before it" in note
    path.unlink()  # killed between the two renamings
    assert checkpoint.newest(path)[0]["k"] == 1
    path.write_bytes(b"")
    before.write_bytes(whole.replace(b"checkpoint 1", b"checkpoint 9", 1))
    with pytest.raises(InputError, match=r"another version of neuralfde \(9\).*Delete checkpoint"):
        checkpoint.newest(path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


@pytest.mark.parametrize("form", ["pickle", "archive", "checkpoint"])
def test_a_hostile_checkpoint_runs_no_code(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(faults.bomb(form))
    with pytest.raises(InputError):
        checkpoint.load(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "exploded").exists()


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"k": 0})

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(path, {"k": 1})
    assert checkpoint.load(path) == {"k": 0}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_checkpoint_that_waits_to_be_written_is_a_copy(tmp_path):
    report, weights = FolderReport(tmp_path, "x", Config(), every=1e9), torch.zeros(2)
    report.checkpoint("a", {"w": weights})
    report.checkpoint("a", {"w": weights})
    weights += 1
    report.finish("interrupted")
    assert FolderReport(tmp_path, "x", Config(), resume=True).restored("a")["w"].tolist() == [0.0, 0.0]


def test_what_an_earlier_run_left_is_not_taken_for_this_one(tmp_path):
    old = FolderReport(tmp_path, "x", Config(count=3))
    old.case("a", lambda: {"value": 3})
    old.checkpoint("b", {"value": 3})
    old.finish("done")
    FolderReport(tmp_path, "x", Config())  # another run, which is lost before it has finished anything
    again = FolderReport(tmp_path, "x", Config(), resume=True)
    assert again.known("a") is None
    assert again.restored("b") is None
    assert [note.endswith("is of another run and is not used.") for note in again.notes] == [True, True]


def test_altered_rows_are_refused(tmp_path):
    FolderReport(tmp_path, "x", Config()).case("a", lambda: {"value": 1.25})
    path = tmp_path / "results.json"
    assert FolderReport(tmp_path, "x", Config(), resume=True).known("a") == {"case": "a", "value": 1.25}
    path.write_text(path.read_text().replace("1.25", "1.26"))
    with pytest.raises(InputError, match="not those that were written"):
        FolderReport(tmp_path, "x", Config(), resume=True)


def counting():
    """An experiment that takes no time."""
    module = type(sys)("counting")
    run = lambda config, report: [report.case(f"{n}", lambda n=n: {"n": n}) for n in range(config.count)]
    vars(module).update(Config=Config, run=run)
    return read("counting", module)


@pytest.mark.parametrize("name", ["config.json", "results.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_damaged_json_is_one_line(tmp_path, name, content, capsys):
    execution.execute(counting(), {}, str(tmp_path), False, True, True)
    (tmp_path / name).write_text(content)
    capsys.readouterr()
    with pytest.raises(execution.typer.Exit) as ended:
        execution.execute(counting(), {}, str(tmp_path), True, True, True)
    told = capsys.readouterr().err
    assert ended.value.exit_code == 2
    assert told.count("\n") == 1
    assert name in told


@pytest.fixture(scope="module")
def imported():
    faults.import_everything()


def test_folders_that_cannot_be_written(tmp_path, imported):
    for row in faults.folders(tmp_path):
        assert row["as documented"], row


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 4, "not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 4, "not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 4, "No space left"),
        (ImportError("no module x"), 2, "pip"),
    ],
)
def test_expected_failures_are_one_line(error, code, words, capsys):
    with pytest.raises(execution.typer.Exit) as ended, execution.answers("x"):
        raise error
    assert ended.value.exit_code == code
    assert words in capsys.readouterr().err


def test_an_error_that_nobody_expects_keeps_its_trace():
    with pytest.raises(RuntimeError, match="a bug"), execution.answers("x"):
        raise RuntimeError("a bug")


def test_a_signal_that_python_drops_comes_again(tmp_path):
    """An exception raised in a finaliser is dropped, and with it Ctrl-C."""

    class Trap:
        def __del__(self):
            os.kill(os.getpid(), execution.signal.SIGTERM)
            sum(range(1000))

    def run(config, report):
        Trap()
        for _ in range(200):
            execution.threading.Event().wait(0.02)
        return [report.case("late", dict)]

    module = type(sys)("trap")
    vars(module).update(Config=Config, run=run)
    with pytest.raises(execution.typer.Exit) as ended:
        execution.execute(read("trap", module), {}, str(tmp_path), False, False, True)
    assert ended.value.exit_code == 143
    assert json.loads((tmp_path / "results.json").read_text())["status"] == "interrupted"


@pytest.fixture
def interruptible():
    """A shell gives what it runs in the background a Ctrl-C that is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("caught", [False, True])
def test_what_an_interruption_breaks_is_an_interruption_and_is_not_kept(tmp_path, caught, interruptible):
    def run(config, report):
        report.case("early", lambda: {"n": 1})
        try:
            os.kill(os.getpid(), execution.signal.SIGINT)
            execution.threading.Event().wait(5)
        except KeyboardInterrupt as error:
            if not caught:
                raise RuntimeError("torn in the middle") from error
        report.case("late", lambda: {"n": float("nan")})

    module = type(sys)("torn")
    vars(module).update(Config=Config, run=run)
    with pytest.raises(execution.typer.Exit) as ended:
        execution.execute(read("torn", module), {}, str(tmp_path), False, False, True)
    assert ended.value.exit_code == 130
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 1


def test_kill_and_resume_is_bit_for_bit(tmp_path, imported):
    (row,) = faults.trials(2, 1, tmp_path, ("lotka-volterra",))
    assert row["equal"] == row["trials"] == 2, row


def test_damaged_files_are_refused_or_not_needed(tmp_path, imported):
    rows = faults.damages(5, 1, tmp_path)
    assert sum(row.get("refused", 0) + row.get("went on", 0) for row in rows) == 5, rows


def test_a_report_that_keeps_nothing_has_nothing_to_restore():
    assert Report().restored("x") is Report().known("x") is None
