"""Tables as people have them, and files that are none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralfde import InputError
from neuralfde.cli.table_file import read_table

WANT = [[0.5, 1.25], [1.0, -2e3]]


@pytest.mark.parametrize(
    "text",
    [
        "0.5,1.25\n1,-2e3\n",
        "0.5, 1.25\n1, -2e3",
        "0.5\t1.25\r\n1.0\t-2000\r\n",
        "0,5;1,25\n1,0;-2000,0\n",
        "0,5\t1,25\n1\t-2e3\n",
        "0,5 1,25\n1,0 -2000\n",
        "  0.5   1.25  \n\n 1.0 -2000\n",
        "time,load\n0.5,1.25\n1,-2000\n",
        '"time (s)";"load, N"\n0,5;1,25\n1;-2000\n',
        "time,load\ns,N\n0.5,1.25\n1,-2000\n",
        "# made by hand\n0.5,1.25,\n1,-2000,\n",
        "sep=;\nZeit;Kraft\n0,5;1,25\n1;-2000\n",
        '"0.5","1.25"\n"1","-2000"\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_form_is_the_same_table(tmp_path, text, encoding):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode(encoding))
    assert read_table(path).numbers.tolist() == WANT


def test_names_units_and_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes("Zeit;Höhe\ns;µm\n1;2\n3;4\n".encode("cp1252"))
    table = read_table(path)
    assert (table.names, table.units) == (("Zeit", "Höhe"), ("s", "µm"))
    assert table.columns(["Höhe", "1"]).tolist() == [[2, 1], [4, 3]]
    with pytest.raises(InputError, match=r"no column 'Hohe'.*'Höhe'"):
        table.column("Hohe")
    with pytest.raises(InputError, match="from 1 to 2"):
        table.column("3")


@pytest.mark.parametrize(
    ("text", "names", "units"),
    [
        ("time,0.5,1\n0,2,3\n", ("time", "0.5", "1"), ()),
        (",0\n0,2\n", ("", "0"), ()),
        ("time,share\ns,1\n0,2\n", ("time", "share"), ("s", "1")),
    ],
)
def test_names_and_units_may_be_numbers(tmp_path, text, names, units):
    path = tmp_path / "table.csv"
    path.write_text(text)
    table = read_table(path)
    assert (table.names, table.units, len(table.numbers)) == (names, units, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"),
        ("a,b\n", "no numbers"),
        ("1,2\n3,x\n", r"line 2 .*'x' is not a number"),
        ("1,2,4\n3,5\n", "line 2 .*has 2 columns"),
        ("1,2\n3\n", "line 2 .*one column"),
        ("1,2\n3,\n", "line 2 .*missing"),
        ("1.5;2,5\n", "not a number"),
        ("1,2\n3,nan\n", "'nan'"),
        ("1,2\n3,1e999\n", "'1e999'"),
        ("a,b\nc,d\ne,f\n1,2\n", "line 3"),
        ("a,b\n0,\n1,2\n", "line 2 .*missing"),  # a first row, not a line of units
        ("a,b\n,0\n1,2\n", "line 2 .*missing"),
        ("a,b\n0,NA\n1,2\n", "line 2 .*'NA'"),
        ("0,NA\n1,2\n", "line 1 .*'NA'"),
        ("NA,7\n1,2\n", "line 1 .*'NA'"),
        ("a,b\n<0.1,7\n1,2\n", "line 2 .*'<0.1'"),
        ("1,2\nNA,7\n", "line 2 .*'NA' is not a number. Correct or delete it"),
        ("1\t2\x00", "not a text file"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path, text, words):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_table(path)


def test_gaps_are_nan_where_they_are_allowed(tmp_path):
    path = tmp_path / "table.csv"
    for text in ("a;b\n1;2\n;3\n4;NA\n;\n", "a,b\ns,\n1,2\n,3\n4,null\n,\n", "1\t2\nnan\t3\n4\t\n"):
        path.write_text(text)
        found = read_table(path, gaps=True)
        assert found.numbers.nan_to_num(-1).tolist() == [[1, 2], [-1, 3], [4, -1]]
    for text in ("a,b\n1,x\n", "a,b\n,\n"):  # neither a number nor a gap; nothing but gaps
        path.write_text(text)
        with pytest.raises(InputError):
            read_table(path, gaps=True)


def test_a_separator_in_quotes_separates_nothing(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('t,"stress, Pa"\n0,1.5\n')
    assert read_table(path).names == ("t", "stress, Pa")
    for quoted in ("1,007.5", "1,007", "0,5"):  # thousands or decimals: not two columns
        path.write_text(f't,z\n0,"{quoted}"\n')
        with pytest.raises(InputError, match=f"line 2 .*'{quoted}' is not a number"):
            read_table(path)


DEVICE = "No.\tTime\tModulus\tState\n\t[s]\t[Pa]\t\n1\t0,5\t12,5\tok\n2\t1\t11\ta, b; c\n"


@pytest.mark.parametrize("columns", [("Time", "Modulus"), ("2", "3"), ("Time", "3")])
def test_columns_beside_those_that_are_chosen_may_hold_anything(tmp_path, columns):
    path = tmp_path / "table.txt"
    path.write_text(DEVICE, "utf-16")
    table = read_table(path, columns=columns)
    assert table.numbers.tolist() == [[0.5, 12.5], [1, 11]]
    assert (table.names, table.units) == (("Time", "Modulus"), ("[s]", "[Pa]"))
    assert read_table(path, columns=["Modulus", "1", "Time"]).numbers.tolist() == [[12.5, 1, 0.5], [11, 2, 1]]


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (DEVICE, (), "'ok' is not a number.*choose columns"),
        (DEVICE, ("Time", "State"), "line 3 .*'ok' is not a number"),
        (DEVICE, ("time", "Modulus"), "line 1 .*no column 'time'.*'Time'"),
        (DEVICE, ("5", "2"), "no column '5'. Use a number from 1 to 4"),
        ("x,who,y\n1,a,2\n2,b, c,3\n", ("x", "y"), "line 3 .*has 4 columns"),
        ("1,2,a\n2,3,b\n", ("2", "4"), "no column '4'"),
    ],
)
def test_chosen_columns_are_in_every_line(tmp_path, text, columns, words):
    path = tmp_path / "table.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_table(path, columns=columns)


def test_a_row_of_numbers_has_no_names(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("3,2,1\n6,5,4\n")
    assert read_table(path, columns=["1", "2"]).numbers.tolist() == [[3, 2], [6, 5]]


def test_a_folder_and_a_missing_file(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="cannot be read"):
            read_table(path)


@given(
    rows=st.lists(st.lists(st.floats(-1e9, 1e9, width=32), min_size=2, max_size=2), min_size=1, max_size=5),
    separator=st.sampled_from("\t; "),
    decimal=st.sampled_from(".,"),
)
def test_what_is_written_is_read(tmp_path_factory, rows, separator, decimal):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text("\n".join(separator.join(repr(v).replace(".", decimal) for v in row) for row in rows))
    assert torch.equal(read_table(path).numbers, torch.tensor(rows, dtype=torch.float64))
