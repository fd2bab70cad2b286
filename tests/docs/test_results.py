"""Pages and pictures hold what the result files hold; every file answers one question, and none lies about unused."""

import json
import re
from pathlib import Path

import graphs_search
import pytest
from graph_space import Case
from report import graphs_order, pages, peers_gpu, record, take
from report.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
EVERY = pages.pages()
TEXTS = {page: page.read_text() for page in EVERY}


@pytest.mark.parametrize("page", EVERY, ids=lambda p: str(p.relative_to(ROOT)))
def test_measured_figures_are_those_of_the_results(page):
    assert pages.filled(TEXTS[page]) == TEXTS[page], "stale: run python benchmarks/render.py"


def test_every_place_is_on_a_page_and_a_wrong_figure_is_noticed():
    text = "".join(TEXTS.values())
    assert set(re.findall(r"<!-- ([\w-]+):start -->", text)) == set(pages.PLACES)
    wrong = text.replace(pages.PLACES["bias-network"](), "1 % to 2 %")
    assert wrong != text == pages.filled(wrong)
    with pytest.raises(SystemExit, match="no place 'nothing'"):
        pages.filled("<!-- nothing:start -->1<!-- nothing:end -->")


def test_a_figure_within_a_sentence_does_not_begin_its_line():
    begun = re.compile(r"^ *<!-- [\w-]+:start -->(?!$)", re.M)  # Markdown would begin a new block there
    assert not [page for page, text in TEXTS.items() if begun.search(text)]


@pytest.mark.parametrize("page", sorted({q.page.split("#")[0] for q in QUESTIONS.values()}))
def test_tables_of_figures_are_none_but_those_of_the_results(page):
    rest = pages.PLACE.sub("", (ROOT / "docs" / page).read_text())
    typed = [line for line in rest.splitlines() if line.startswith("|") and re.search(r"\d\.\d", line)]
    assert not typed


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_result_file_holds_the_runs_of_its_question(name):
    path = record.RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip("not measured yet")
    found = json.loads(path.read_text())
    assert found["question"] == QUESTIONS[name].asks
    assert path.read_text() == record.text(found["question"], found["runs"])
    parts = [run["part"] for run in found["runs"]]
    assert len(parts) == len(set(parts))
    for run in found["runs"]:
        assert {"part", "date", "hardware", "torch", "rows"} <= run.keys(), run["part"]
        assert run["rows"], run["part"]


def test_every_result_file_is_used(monkeypatch):
    used, read = set(), Path.read_text

    def noted(self, *args, **options):
        used.add(self)
        return read(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", noted)
    for name, place in pages.PLACES.items():
        if name != "questions":  # which names all of them
            place()
    files = set(record.RESULTS.iterdir())
    assert files <= {record.RESULTS / f"{name}.json" for name in QUESTIONS}
    assert files <= used


def test_questions_name_scripts_and_sections_that_exist():
    for name, question in QUESTIONS.items():
        for script in re.findall(r"python (\S+\.py)", question.command):
            assert (ROOT / script).is_file(), script
        page, section = question.page.split("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.M)
        assert section in {h.lower().replace(" ", "-") for h in headings}, name


def test_pictures_are_drawn_from_the_results_and_shown():
    assert pages.stale_pictures() == [], "run python benchmarks/render.py"
    measured = {name for name, (question, _) in pages.FIGURES.items() if record.known(question)}
    drawn = {*measured, "bias.svg", "hero.svg"}  # the last two by scripts beside them
    assert {p.name for p in pages.PICTURES.iterdir() if p.suffix in (".png", ".svg")} == drawn
    assert all(f"figures/{name}" in "".join(TEXTS.values()) for name in drawn)


MACHINE = {"device": "NVIDIA H200", "torch": "2.11.0", "date": "2026-01-01"}
CURVE = [{"epoch": 1, "loss": 0.5, "accuracy": 80.0, "held_out_accuracy": 81.0, "held_out_loss": 0.6}]
SETTINGS = {"dataset": "mnist", "data": "DIR", "t": 20.0, "order": 0.5, "step": 0.1}
TRAINED = {
    "dataset": "mnist",
    "seed": 0,
    "test_error": 0.3,
    "epochs": 1.0,
    "seconds": 9.0,
    "peak_mib": 1.0,
    "curve": CURVE,
}
STAGED = TRAINED | {"adjoint": "exact", "order": 0.5, "settings": SETTINGS}
SEARCHED = {
    "dataset": "cora",
    "variant": "l",
    "track": "plain",
    "seconds": 1.0,
    "settings": {"hidden": 64, "order": 0.9},
}
TRIED = SEARCHED | {
    "case": "cora l explore 1",
    "val": 80.0,
    "seeds": [100, 101],
    "tried": [{"order": 0.8, "val": 80.0}],
}
SPLIT = {"seed": 0, "val": 80.0, "test": 79.0, "epoch": 9, "order": 0.9, "seconds": 1.0}
FINAL = SEARCHED | {"case": "cora l final 2", "val": 80.0, "test": 79.0, "deviation": 0.0, "order": 0.9, "epoch": 9.0,
                    "splits": [SPLIT]}  # fmt: skip
TIMED = {"name": "exact", "t": 1.0, "total_s": 1.0}
#: a file as a script leaves it, and the part of the question that it is
LEFT = {
    "images.json": ({"machine": MACHINE, "way": "plain", "settings": {"mnist": SETTINGS}, "rows": [TRAINED]},
                    ("images-accuracy", "mnist: reported")),
    "image-stages-mnist-0.6.json": ({"machine": MACHINE, "rows": [STAGED]}, ("image-stages", "mnist, β = 0.5")),
    "validate-mnist.json": ({"machine": MACHINE, "curves": {"affine": CURVE}, "rows": []},
                            ("images-accuracy", "mnist: recipes compared on held-out images")),
    "cost-mnist.json": ({"machine": MACHINE, "settings": {}, "rows": [{"T": 1, "train_seconds": 1.0}, {"T": 2}]},
                        ("images-cost", "mnist")),
    "probe.json": ({"machine": MACHINE, "ways": [{"way": "plain"}], "fastest": "plain"}, ("images-cost", "ways")),
    "direct.json": ({"machine": MACHINE, "rows": [{"T": 1}]}, ("images-cost", "direct")),
    "smoke.json": ({"machine": MACHINE, "rows": [{"way": "one"}]}, ("images-cost", "short trainings")),
    "adjoints.json": ({"machine": MACHINE, "settings": SETTINGS, "rows": [TRAINED | {"settings": SETTINGS}]},
                      ("images-gradients", "mnist")),
    "results.json": ({"experiment": "images", "rows": [TRAINED | {"dataset": "digits"}]},
                     ("images-accuracy", "digits: five seeds")),
    "graphs-cost.json": ({**MACHINE, "rows": [{"source": "measured", "graph": "synthetic-arxiv"}, {"source": "paper"}]},
                         ("graphs-cost", "arxiv")),
    "graph-kernels.json": ({**MACHINE, "rows": [{"operation": "diffuse"}, {"profile": "l"}]},
                           ("graphs-kernels", "arxiv")),
    "graph-filter.json": ({"machine": MACHINE, "settings": {}, "rows": [{"training": "as it is"}]},
                          ("graphs-filter", "cora")),
    "search.json": ({**MACHINE, "minutes": 1.0, "workers": 2, "rows": [TRIED, FINAL]}, ("graphs-accuracy", "search")),
    "search-order.json": ({**MACHINE, "minutes": 1.0, "rows": [FINAL | {"case": "airport order final 1"}]},
                          ("graphs-order", "search-order")),
    "modules.json": ({**MACHINE, "parts": {"source": [{"figure": "core"}]}}, ("engine", "source")),
    "peers-gpu.json": ({**MACHINE, "torchfde": "main", "torchdiffeq": "0.2.5", "parts": {"training step": [TIMED]}},
                       ("peers-gpu", "training step")),
    "forecasting.json": ({"machine": MACHINE, "settings": {"seeds": 5}, "rows": [{"set": "fulda", "mse": 1.0}]},
                         ("forecasting", "five sets")),
    "horizons-cpu.json": ({**MACHINE, "device": "cpu", "bare": {}, "rows": [TIMED]}, ("horizons", "perceptron, CPU")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_a_script_leaves_is_taken_in(name, tmp_path, monkeypatch):
    left, (question, part) = LEFT[name]
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    (tmp_path / name).write_text(json.dumps(left))
    (told,) = take.take(tmp_path)
    assert told.startswith(f"{name}: {question}, {part}")
    again = next(take.take(tmp_path))
    assert again == told, "a part that is taken in again replaces itself"
    (run,) = record.runs(question)
    assert {"date", "hardware", "torch", "rows"} <= run.keys()
    assert "DIR" not in json.dumps(run)


def test_seeds_trained_in_several_runs_are_one_table_unless_their_settings_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    for seed, epochs in ((0, 12), (1, 12), (1, 25), (2, 25)):
        settings = SETTINGS | {"epochs": epochs, "seed": seed, "cosine_every": 5 * (seed == 0)}
        left = {"machine": MACHINE, "rows": [STAGED | {"seed": seed, "settings": settings}]}
        (tmp_path / "image-stages-mnist.json").write_text(json.dumps(left))
        list(take.take(tmp_path))
    found = {run["part"]: [r["seed"] for r in run["rows"]] for run in record.runs("image-stages")}
    assert found == {"mnist, β = 0.5": [0, 1], "mnist, β = 0.5, 25 epochs": [1, 2]}


def test_orders_are_compared_split_by_split(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    assert graphs_order.orders() == graphs_order.NOTHING
    rows = []
    for kind, ahead in (("1", 0.0), ("0.5", 1.0), ("learned", 2.0)):
        splits = [SPLIT | {"seed": s, "test": 70.0 + s + ahead, "order": 0.5 + 0.1 * s} for s in range(3)]
        rows.append(
            FINAL | {"case": f"airport order final {kind}", "dataset": "airport", "track": kind, "splits": splits}
        )
    (tmp_path / "search.json").write_text(json.dumps({**MACHINE, "minutes": 1.0, "rows": rows}))
    list(take.take(tmp_path))
    (line,) = (line for line in graphs_order.orders().splitlines() if line.startswith("| airport"))
    assert "+2.0\u00a0±\u00a00.0" in line
    assert "0.50\u00a0…\u00a00.70" in line


def test_packages_are_compared_once_they_were_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    assert peers_gpu.every() == peers_gpu.short() == peers_gpu.spent() == ""
    work = {"work": "MLP", "memory": True, "gradient": "exact", "mib": 1.0, "error": 1e-7}
    row = [work | {"steps": n, "package": "neuralfde", "gradient": g, "seconds": 0.02} for n in (4, 8) for g in "ab"]
    row += [work | {"steps": 4, "package": "torchfde", "seconds": 3.0, "error": 0.5}]
    row += [work | {"steps": 4, "package": "torchfde", "gradient": "slow", "seconds": None, "limit": 20.0}]
    spent = {"work": "MLP", "steps": 8, "stepper": "kernel"}
    spent |= {"forward": 1.0, "backward": 2.0, "history": 0.0, "host": 1.0, "wall": 4.0}
    parts = {"training step": row, "where the time goes": [spent]}
    left = {**MACHINE, "torchfde": "main", "torchdiffeq": "0.2.5", "parts": parts}
    (tmp_path / "peers-gpu.json").write_text(json.dumps(left))
    list(take.take(tmp_path))
    assert "| torchfde, exact | 3\u00a0s · 1\u00a0MiB · 50\u00a0% |" in peers_gpu.short()
    assert 'the defaults take 20 ms and `history="exponentials"` 20 ms' in peers_gpu.short()
    assert "| torchfde, slow | >\u00a020\u00a0s · " in peers_gpu.every()
    assert "`kernel` | 1 | 2 | 0 | 1 | 4 |" in peers_gpu.spent()
    assert len(peers_gpu.figure().axes) == 1


def test_rows_that_a_run_had_no_time_for_stay_and_are_marked(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    left = LEFT["horizons-cpu.json"][0]
    for t in (1.0, 2.0):
        (tmp_path / "horizons-cpu.json").write_text(json.dumps(left | {"rows": [TIMED | {"t": t}]}))
        list(take.take(tmp_path))
    assert [(r["t"], r.get("earlier")) for r in record.rows("horizons", "perceptron, CPU")] == [
        (2.0, None),
        (1.0, True),
    ]


def test_a_search_goes_on_from_the_result_file():
    found = json.loads((record.RESULTS / "graphs-accuracy.json").read_text())
    known = [r for r in graphs_search.tried(found) if (r["dataset"], r["variant"]) == ("cora", "nl")]
    case = Case("cora", "nl", {})
    for row in known:
        case.know(row)
    assert len(case.found) > 10
    assert case.done <= case.found.keys()
    assert all(set(seeds) <= set(range(100, 106)) for seeds in case.found.values())
