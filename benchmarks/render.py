"""Write the measured results into the pages.

    python benchmarks/render.py              tables and figures of the result files into all pages
    python benchmarks/render.py --take OUT   first import what a script has left in the folder OUT
    python benchmarks/render.py --check      only report what is out of date

``--take`` recognises by the names of the files in ``OUT`` which part of which result they are, and replaces it; with
``--as NAME`` trainings of images and searches on graphs become a part with this name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from report.pages import ROOT, draw, filled, pages, stale_pictures
from report.take import take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, help="folder with what a script has written")
    parser.add_argument("--as", dest="name", default="", help="name of the part that is taken in")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    if given.take is not None:
        for told in take(given.take, given.name):
            print(told)
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    if given.check and (stale or stale_pictures()):
        names = ", ".join([*(str(page.relative_to(ROOT)) for page in stale), *stale_pictures()])
        raise SystemExit(f"not as measured: {names}. Run: python benchmarks/render.py")
    for page in stale:
        page.write_text(filled(page.read_text()))
    for name in stale_pictures():
        draw(name)


if __name__ == "__main__":
    main()
