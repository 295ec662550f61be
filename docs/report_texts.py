"""Texts around the generated parts of the reference: roads, JSON, Python, exit codes, errors, events and metrics."""

from __future__ import annotations

__all__ = [
    "ERRORS",
    "EVENTS",
    "EVENT_FIELDS",
    "EXIT_CODES",
    "JSON",
    "METRICS",
    "OF_STATUS",
    "OTHER_EVENTS",
    "PHASES",
    "POINTS",
    "PYTHON",
    "ROADS",
]

EXIT_CODES = """\
# Exit codes

Run `echo $?` after a command to see its exit code. systemd and Airflow show the code as the exit status. Every error
prints the failure, the reason, and the next command. [Troubleshoot](../how-to/troubleshoot.md) lists messages by exit
code. The codes below are those of `exactsink run` and of most commands. [`status` and `runs`](#status-and-runs) have
some more cases. The [glossary](../explanation/glossary.md) defines *decided* and *lost*.

"""
OF_STATUS = """
`exactsink verify` also ends with 3 if the rows of a target differ from the decided rows. `verify` and
`exactsink journal verify` also end with 3 if entries of the journal are damaged.

A supervisor may start a job again after 70, 75, 129, 130 and 143, and if a signal killed it. After 1 to 5, a person
has to look first. (Only `status` and `runs` end with 6.)

## `status` and `runs`

`exactsink status` and `exactsink runs` start no driver. They end with the code of the job's
[state](../how-to/read-status.md#exit-codes), so codes 3 and 5 mean something more specific here, and 6 occurs only
here:

| code | state of the job | do this |
| --- | --- | --- |
| 0 | Every sink has all rows of the last decided epoch, or a driver is at work, or the job has not \
run yet. | Nothing. |
| 3 | No driver is at work, and work is *prepared*, *lost* or *undecided*. | Start the job once. |
| 3 | No driver is at work, and a store did not answer (`not asked`). | Bring the store back, or set a \
longer `--within`. |
| 3 | The outcome of a participant is *unknown*. | Start the job once. If the start also ends with 3, [read the \
evidence](../how-to/resolve-in-doubt.md#unknown-the-evidence-is-gone). |
| 3 | A target is older than the journal. | [Restore the newest copy, or \
rebase](../how-to/back-up-and-restore.md#restore). |
| 3 | The job's file lacks a sink, or has changed a sink, that may still hold rows. | Put the sink back as it was, \
then run `exactsink recover JOB.toml`. |
| 5 | Journal, checkpoint and targets do not belong together. | Do not start the job. \
[Restore](../how-to/back-up-and-restore.md) the part that is wrong, or [replace the checkpoint or \
journal](../how-to/replace-a-checkpoint-or-journal.md): the message says which. |
| 6 | A sink holds *foreign* work. A start of this job would end with 5. | Do not start the job. Find out who began \
the work: [when something is foreign](../how-to/resolve-in-doubt.md#when-something-is-foreign). |

The [table of states](../how-to/read-status.md#exit-codes) explains each state.
"""
ERRORS = """\
# Errors

Import these errors from `exactsink.contract`. Each error has the texts `what`, `why` and `next` (the next command), and
can be pickled. The [glossary](../explanation/glossary.md) defines their words. Choose the `except` clause by your next
step:

```python file=caught.py
from exactsink import Job
from exactsink.contract import ExactsinkError, Retryable

try:
    Job.from_toml("missing.toml")
except Retryable:
    print("try again later")
except ExactsinkError as error:  # all others
    print(type(error).__name__, error.exit_code)
    print("what:", error.what)
    print("next:", error.next)
```

```console run
$ python caught.py
ConfigError 2
what: missing.toml can't be read
next: ...
```

Only `exactsink status` and `exactsink runs` end with the code of `ForeignError`. A start of the job raises
`LineageError` instead ([when something is foreign](../how-to/resolve-in-doubt.md#when-something-is-foreign)).

"""
EVENTS = """\
# Events

Logs, metrics, tests and fault injection use the same event names. The logger `exactsink` logs every event of the
driver. Points of the protocol have the level DEBUG. The level of each other event is in [its table](#other-events).

`exactsink run` shows events of level WARNING, with `-v` also those of level INFO, and with `-vv` also those of level
DEBUG ([how to observe a job](../how-to/observe.md)). The glossary defines
[*participant*](../explanation/glossary.md) and other terms. Each event has the field `job`, and most have `epoch`. For
example, with `-vv`:

```text no-run: lines of a log
2026-11-27 20:43:40,696 INFO exactsink claimed job=orders generation=3 driver=...
2026-11-27 20:43:41,201 DEBUG exactsink decide before job=orders epoch=7
2026-11-27 20:43:41,204 DEBUG exactsink decide after job=orders epoch=7 seconds=0.002811
2026-11-27 20:43:41,260 WARNING exactsink commit_retried job=orders epoch=7 sink=table attempt=1 error=...
```

"""
POINTS = """\
## The protocol's points

Each point emits two events: `before` when its work begins, and `after` if its work succeeded. In the log, this word
follows the name: `decide before`, `decide after`. Every `after` except that of `return` has the field `seconds`.

`write` and `pre_commit` happen in tasks, so the log does not have them. In their place, the metrics count a [phase
`write`](metrics.md#phases-and-buckets): the driver's time from the end of `open_epoch` to the start of `vote`.

"""
OTHER_EVENTS = """
## Other events

Notes on some fields are [below the table](#fields).

"""
EVENT_FIELDS = """
### Fields

- **`decided`:** `at` is the time of the decision, which an earlier driver may have made. `sinks` are the sinks of the
  epoch. `entries` counts all entries that the journal has had. `bytes` is the size of the decision.
- **`run_known`:** `missing` are sinks that the job has now, but that had no part in the run. `changed` are sinks for
  which the run had other columns than the rows now. If one of the two is not empty, the event has the level WARNING.
- **`stop_asked` and `query_ending`** report the same stop, first when it is requested, and then when the driver stops
  the query. Both have the level WARNING, so that every log shows who stopped the job.
- **`deadline_near`:** `of` and `seconds` (the time that is left) are in seconds.
"""
METRICS = """\
# Metrics

All exporters have these and no other metrics: [how to observe a job](../how-to/observe.md). The
[glossary](../explanation/glossary.md) defines their words.

"""
PHASES = """
## Phases and buckets

Each phase has the name of one of [the protocol's points](events.md#the-protocols-points):

| values of `phase` | when |
| --- | --- |
| `claim`, `recommit`, `sweep` | at a driver's start |
| `open_epoch`, `write`, `vote`, `decide`, `commit`, `complete` | in each epoch. `write` lasts from the end of \
`open_epoch` to the start of `vote`, and includes the tasks' `pre_commit` |
| `between` | after an epoch, until the next one starts; only in `exactsink_current_phase_seconds` |

The buckets of `exactsink_phase_seconds` end at these numbers of seconds: BOUNDS.

This query of Prometheus returns, for each phase, the duration that 95% of its runs in the last 10 minutes did not
exceed:

```text no-run: a query of Prometheus
histogram_quantile(0.95, sum by (phase, le) (rate(exactsink_phase_seconds_bucket{job="orders"}[10m])))
```
"""
ROADS = """\
# Three backends, whole

`exactsink init FOLDER --plugin ledger --from ROAD` writes these backends. ROAD is `staged`, `idempotent` or
`two-phase`: [choose a road](../how-to/write-a-plugin.md#choose-a-road). [The contract](contract.md) has the promise of
each call. The command also writes `pyproject.toml`, a README, the module that announces the backend to exactsink, the
class that connects it to the [conformance kit](conformance-kit.md), and a test that runs all of the kit.

In place of a real store, each backend uses an SQLite file. The first uses it as a store with transactions, the second
as a store with keys and conditional writes only, the third as a store with prepared work. The tests of this page run
two of the kit's scenarios on each. They need pytest, but no installation of the package.
The [glossary](../explanation/glossary.md) defines the words.
"""
JSON = """\
# JSON of the commands

With `--json`, stdout has one document, and all other output goes to stderr:

| the command prints | if it fails, stdout has |
| --- | --- |
| an object | the object, with a [Problem](#problem) in `error`; other fields may be missing. Without a failure, \
`error` is null |
| a list (`runs`, `indoubt list`, `files list`, `backends`, `conformance`) | the list, if it was made before the \
failure; otherwise an object with only `error` |

So check the exit code first. A process that is cut off (by a second signal, or because a stop took too long) prints
nothing. Later releases add fields, and remove none. Times are in seconds, and moments in Unix seconds.

For example, the job's file does not exist:

```console run exit=2
$ exactsink status absent.toml --json 2> /dev/null
{
 "error": {
  "kind": "ConfigError",
  "what": "absent.toml can't be read",
  "why": "No such file or directory",
  "next": "name the job's file; or write a new job: exactsink init FOLDER",
  "exit_code": 2
 }
}
```

| you want to | command |
| --- | --- |
| understand an error | [Problem](#problem) |
| see the state of a job | [status](#status), [runs](#runs), [indoubt list](#indoubt-list) |
| check a job before it runs | [check](#check) |
| run a job | [run](#run) |
| read its output, or prove it | [barrier](#barrier), [verify](#verify), [files list](#files-list), \
[files read-list](#files-read-list) |
| repair a job | [recover](#recover) (with [Settled](#settled)), [adopt](#adopt) |
| look at its [journal](../explanation/glossary.md) | [journal verify](#journal-verify), \
[journal export](#journal-export) |
| see or test backends | [backends](#backends), [conformance](#conformance) |
"""
PYTHON = """\
# Python

`from exactsink import Job, Query, RunResult`. How to use them: [Use it from Python](../how-to/use-from-python.md).
Calls raise exactsink's [errors](errors.md). Each call's text names them. Words: [glossary](../explanation/glossary.md).
"""
