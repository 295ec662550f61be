"""Rows as files, in any store that can hold files: options, lines in SQL, partition folders, formats and sizes.

The modules, in the order that a row passes them: `options` (the files' format), `lines` (the JVM's expressions, and
rows that can't be written), `folders` (a row's partition folder), `parts` (a row's file, which ends at its size). A
backend adds the store, and the moment when files get their names.

`table_writer`, `table_committer`, `tables` and `waiting` are for tables that list their own files: Delta and Iceberg.
"""

from exactsink.toolkit.tabular.backend import TabularBackend
from exactsink.toolkit.tabular.options import TabularOptions
from exactsink.toolkit.tabular.parts import Parts, refuse_bad_rows

__all__ = ["Parts", "TabularBackend", "TabularOptions", "refuse_bad_rows"]
