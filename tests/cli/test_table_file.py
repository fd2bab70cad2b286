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
        ("1\t2\x00", "not a text file"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path, text, words):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_table(path)


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
