"""Rows as files, in any store that can hold files: options, lines in SQL, partition folders, formats and sizes.

In the order a row goes: `options` (what the files look like), `lines` (what the JVM makes of a row, and which rows
can't be written), `folders` (a row's partition folder), `parts` (its file, which ends at its size, in its format).
A backend adds where the bytes go, and when the files get their names.
"""

from exactsink.toolkit.tabular.backend import TabularBackend
from exactsink.toolkit.tabular.options import TabularOptions
from exactsink.toolkit.tabular.parts import Parts

__all__ = ["Parts", "TabularBackend", "TabularOptions"]
