"""Every option of every experiment refuses what it does not take, before anything starts, in one line."""

import dataclasses
import math
import typing

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from neuralfde import InputError, InputTypeError
from neuralfde.cli import bench, demo, fit_file, options
from neuralfde.cli.experiment import Options, available, load, option, read
from neuralfde_command.app import app

OWN = {"demo": demo, "bench": bench, "fit": fit_file}
EVERY = {name: load(name) for name in available()} | {name: read(name, module) for name, module in OWN.items()}
#: Texts that can be anything: files and folders, and columns of a file that is not read yet.
FREE = {"data", "path", "columns", "file", "time", "values"}


def fields(experiment):
    hints = typing.get_type_hints(experiment.config)
    return [(field, hints[field.name], {hints[field.name], *typing.get_args(hints[field.name])})
            for field in dataclasses.fields(experiment.config)]  # fmt: skip


def bad_values(field, kinds):
    """What an option of this kind must refuse."""
    taken = field.metadata["range"]
    if int in kinds or float in kinds:
        values = [-5, -0.5, math.nan, math.inf, -math.inf, 2**31, "many"]
        for end in (taken.least, taken.most):
            values += [] if end is None else [end - 1, end + 1]
        values += [end for end in (taken.above, taken.below) if end is not None]
        whole = float not in kinds
        inside = {v for v in values if isinstance(v, int | float) and v in taken and (whole or abs(v) < 2**31)}
        if not whole:
            inside.add(2**31)  # a float may be large
        values = [v for v in values if v not in inside or (whole and not isinstance(v, int))]
        return [v for v in values if v != field.default]
    return ["nonsense", "1;;", ",", "€", "-"]


@pytest.mark.parametrize("name", EVERY)
def test_every_option_refuses_what_it_does_not_take(name):
    experiment, runner, refused = EVERY[name], CliRunner(), 0
    words = [name] if name in OWN else ["run", name]
    for at, (field, _, kinds) in enumerate(fields(experiment)):
        if bool in kinds or (str in kinds and field.name in FREE | {"save", "tensorboard"}):
            continue
        for k, value in enumerate(bad_values(field, kinds)):
            with pytest.raises((InputError, InputTypeError), match=options.flag(field)) as caught:
                experiment.config(**{field.name: value})
            assert "\n" not in str(caught.value)
            refused += 1
            if k == at % 4 == 0:  # and on the command line, whose own check of types comes first
                result = runner.invoke(app, [*words, f"{options.flag(field)}={value}"])
                assert result.exit_code == 2, (field.name, value, result.output)
                assert options.flag(field) in result.stderr
    assert refused > 10


@pytest.mark.parametrize("name", EVERY)
def test_every_option_says_what_it_takes(name):
    for field, hint, kinds in fields(EVERY[name]):
        assert field.metadata["help"]
        if str in kinds and field.name not in FREE:
            assert field.metadata["choices"] or field.metadata["reads"], field.name
        if int in kinds or float in kinds:
            assert f"[{field.metadata['range']}]" in options.described(field, hint)
        for word in field.metadata["choices"]:
            assert isinstance(EVERY[name].config(**{field.name: word}), Options) if word != "cuda" else True


def test_a_new_option_inherits_the_check():
    @dataclasses.dataclass(frozen=True)
    class Config(Options):
        count: int = option(3, "how many")
        share: float = option(-1.0, "how much; -1: as suits", below=1)

    assert Config(count=0).count == 0
    assert Config(share=-1.0).share == -1.0
    for wrong in ({"count": -1}, {"count": 2**31}, {"share": 1.0}, {"share": -0.5}, {"share": math.nan}):
        with pytest.raises(InputError, match="Leave the option out"):
            Config(**wrong)
    for wrong in ({"count": 1.0}, {"count": True}, {"count": None}, {"share": "1"}):
        with pytest.raises(InputTypeError, match="takes"):
            Config(**wrong)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(options.torch.cuda, "is_available", lambda: False)
    for experiment in EVERY.values():
        if "device" in experiment.config.__dataclass_fields__:
            with pytest.raises(InputError, match="no GPU on this machine"):
                experiment.config(device="cuda")
    result = CliRunner().invoke(app, ["run", "images", "--device", "cuda"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file" / "weights.pt"):
        result = CliRunner().invoke(app, ["run", "images", "--save", str(place)])
        assert result.exit_code == 2
        assert "Choose another place" in result.stderr


def test_an_empty_list_and_a_folder_that_is_not_there_are_refused_at_once():
    config = load("graphs").config
    with pytest.raises(InputError, match="--orders '' cannot be used: it must be numbers joined by commas"):
        config(orders="")
    with pytest.raises(InputError, match="--data '/nonexistent': there is no such folder"):
        config(data="/nonexistent")
    assert load("images").config(coarse="").coarse == ""  # which means: none
