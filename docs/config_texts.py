"""The parts of the page about a job's file that no docstring holds: an example, and rules that concern several \
keys."""

from __future__ import annotations

__all__ = ["HEAD", "NOTES"]

HEAD = """\
# A job's file

A job's file is a TOML file. This one reads JSON files, and writes to a folder and to a table:

```toml file=job.toml
[job]
name = "orders"
checkpoint = "checkpoint"
trigger = "10 seconds"

[source]
format = "json"
schema = "id BIGINT, customer STRING, amount DOUBLE"
path = "incoming"

[sinks.lake]
backend = "files"
path = "lake"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///orders.db"
table = "orders"
keys = ["id"]
create = true
```

```console run
$ mkdir incoming
$ exactsink check --no-spark job.toml
...
the job's guarantee: exactly once
...
```

exactsink refuses an unknown key, and names the nearest known key. Words such as
[epoch](../explanation/glossary.md), participant, decision and mark are in the glossary.

**Values from the environment.** A string may hold `${NAME}` or `${NAME:-default}`. exactsink refuses a variable \
that is not
set, or is empty, unless it has a default. (`${NAME:-}` has an empty default.) Errors never show values from the \
environment. In
a backend's own options, a string may also hold `${executor:NAME}`: each task replaces it by the variable of its own \
executor,
and the driver does not send the value.
"""

NOTES = {
    "`[sinks.NAME]`": """\
**Epochs in rows.** A quarantine can't have `epoch_column`, because it has its own column `epoch`. A Kafka sink with
`value_format = "columns"` can't have it either: use `epoch_header`. How to read all sinks up to one epoch:
[verify and read consistently](../how-to/verify-and-read-consistently.md).

**Quarantines.** A sink that is a quarantine can't have `where`, `columns`, `distribution`, `epoch_column` or
`quarantine`.

**Bad rows.** Most bad rows are found while tasks write, before the decision: then no exact sink shows the epoch. \
The strategy
`staged` (`postgres`, `idempotent_upsert`) checks some constraints of the table only when it applies the decided \
epoch. If a row
breaks one of these, the job stops after the decision, and other sinks may already show the epoch. No row is lost: \
fix the table,
and start the job again ([the promise](../explanation/promise.md#guarantees)). `exactsink check` names these \
constraints. Which
rows a quarantine can take: [by backend](../how-to/quarantine-bad-rows.md#which-rows-are-found).
""",
    '`backend = "idempotent_upsert"`': """\
**Which row wins**, if several rows of an epoch have the same keys, or the table has the keys already:

| you set | among the rows of one epoch | against the row in the table |
| --- | --- | --- |
| nothing | the last row wins | the new row wins |
| `order_by` | the greatest value wins; among equal ones the last row | the new row wins |
| `version` | the greatest version wins; among equal ones the last row | the new row wins, unless the stored version \
is greater |
| `mode = "insert_if_absent"` | the first row wins; with `order_by`, the smallest value | the stored row stays |

NULL is the lowest value. "Last" means: in the highest-numbered partition of Spark, and there the last in order. If \
`delete_when`
is true for the row that wins, this row deletes the row in the table. More: [upsert into
databases](../how-to/upsert-into-databases.md).
""",
}
"""Text after the table of a section, by the section's title."""
