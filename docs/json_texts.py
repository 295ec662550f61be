"""The `--json` output of commands that only report. It is written here, because the code makes it of many parts."""

from __future__ import annotations

__all__ = ["FIELDS", "REPORTS"]

REPORTS = """\
## status

`exactsink status --json` prints one object:

| field | meaning |
| --- | --- |
| `job` | the job's name |
| `run`, `run_complete` | only with `--run`: the batch run, and whether the journal records it as complete |
| `state`, `exit_code` | the [state](#states-of-status), and the exit code of the command |
| `checkpoint`, `journal`, `staging` | their resolved [paths](paths.md) |
| `query_id`, `generation`, `driver` | taken from the newest claim. Before the first claim, `query_id` and `driver` \
are null, and `generation` is 0 |
| `heartbeat_age_seconds` | the age of the driver's last heartbeat; null before the first one, and once the driver \
has ended |
| `driver_ended` | whether the last driver reported its end |
| `last_decided_epoch` | the newest decided epoch; null before the first one |
| `last_complete_epoch` | the newest epoch that every sink has; null before the first one. While a driver is at \
work, the value may be older than the true one |
| `sinks` | an object: each sink of the config by its name, with the [fields of a sink](#fields-of-a-sink) |
| `former_sinks` | a list, with the same fields: sinks of the last decision, or of a driver that ended uncleanly, \
that the config no longer has in this form |
| `error` | null, or the reason for the exit code ([Problem](#problem)) |

### States of status

A participant is [in doubt](../explanation/glossary.md) if it is not settled, whether it is decided, undecided or \
foreign.
The states below name the kinds. `state` is the first of them that applies:

| `state` | exit code | it applies if |
| --- | --- | --- |
| `another history` | 5 | journal, checkpoint and targets do not belong together |
| `in doubt` | 3 | one of: *decided* participants are `prepared` or `lost`, and no driver is at work; some are \
`unknown`; a target is older than the journal; the job's file lacks a sink, or has changed it \
([causes](../how-to/read-status.md#the-causes-of-in-doubt)) |
| `not asked` | 3 | no driver is at work, and a store did not answer. All stores that answered are proven |
| `foreign work` | 6 | a store holds *foreign* participants |
| `undecided work` | 3 | a store holds *undecided* participants, and no driver is at work |
| `no start yet` | 0 | no driver has claimed the job |
| `at work` | 0 | a driver is committing the last decided epoch |
| `proven` | 0 | every sink is proven to have all of its rows, up to and including the last decided epoch |

### Fields of a sink

| field | meaning |
| --- | --- |
| `sink`, `backend`, `strategy`, `target` | the sink |
| `asked` | whether the sink's store answered |
| `problem` | null; or `what`, `why` and `next`: why the store did not answer, or why its mark differs |
| `committed`, `prepared`, `lost`, `unknown`, `not_asked` | how many participants of the last decided epoch are in \
each state. All except `committed` are in doubt |
| `undecided`, `foreign` | how many other participants the store holds. These are in doubt as well |
| `held_back_by` | the sinks that this sink waits for (`after`), and that are not proven committed |
| `mark`, `expected_mark` | the mark in the target, and the mark that the journal expects; null if it does not exist |
| `oldest_age_seconds` | the age of the oldest participant that the store holds |
| `earliest_deadline` | when the store may drop the first of them, in Unix seconds |
| `decided` | a list of the decided participants: id (`ref`), `rows`, `state`, and the proof of the state \
(`evidence`) |
| `held` | a list of the participants that the store holds: `ref`, `state` (`decided`, `undecided`, `foreign`), \
`generation`, `token`, `epoch`, `age_seconds`, `deadline` |

## runs

`exactsink runs --json` prints a list of [batch runs](../how-to/run-a-batch-job.md), the newest last. Each is an \
object:

| field | meaning |
| --- | --- |
| `run` | the run's name; null if it is not known |
| `job_in_ids` | the job's name and the run's hash. The run's ids in the stores begin with it |
| `state` | `complete`, `committed` (in every sink, but not recorded as complete), `at work`, `undecided`, `never \
decided` (begun, but not claimed), `unreadable`, or another of the [states of status](#states-of-status) |
| `rows` | the decided rows of all sinks; null before the decision |
| `driver` | the driver that last claimed the run |
| `at` | the time of the last entry in the run's journal, in Unix seconds |
| `problem` | null, or the reason and the next command, as a text |

## verify

`exactsink verify --json` prints one object:

| field | meaning |
| --- | --- |
| `job`, `run` | the job, and the batch run or null |
| `last_complete_epoch` | the newest epoch that every sink has, or null |
| `known_epochs` | the first and the last epoch that the journal has, or null |
| `damaged_entries` | the numbers of entries of the journal that can't be read |
| `proven`, `differs`, `unknown` | how many epochs have each verdict, each epoch counted once for each sink |
| `sinks` | an object by sink: `mark`, `mark_differs`, `error` (a text or null), and `epochs`, a list |
| `error` | null, or [Problem](#problem) |

Each of a sink's `epochs` has:

| field | meaning |
| --- | --- |
| `epoch` | the epoch |
| `verdict` | `proven`, `differs` or `unknown` |
| `decided_rows`, `found_rows` | the rows of the decision, and those in the target; `found_rows` is null if they \
can't be counted |
| `decided_digest` | the sum of the decided rows' hashes; a target does not keep one |
| `why` | the rows that were counted, or the reason why none could be |

## indoubt list

`exactsink indoubt list --json` prints a list of all participants in doubt. Each is an object:

| field | meaning |
| --- | --- |
| `run` | the batch run, or null |
| `sink`, `ref`, `reference` | the sink, the store's own name of the participant, and its short reference for \
commands |
| `state` | `prepared`, `lost`, `unknown`, `not asked`, `undecided` or `foreign` |
| `generation`, `token`, `epoch` | the claim under which the participant was begun, and its epoch (null if the store \
does not keep it) |
| `partition`, `rows` | known only for decided participants |
| `evidence` | why the participant is lost, unknown or not asked |
| `age_seconds`, `deadline` | its age, and when its store may drop it (Unix seconds); null if the store does not \
report it |
| `held_back_by` | the sinks that must commit first, and have not |
| `went_back` | true if the target's mark differs from the journal; then no more is known |

## barrier

`exactsink barrier --json` prints one object:

| field | meaning |
| --- | --- |
| `waited_for` | the epoch that the command waited for: that of `--epoch`, or the last decided one; null if none \
is decided |
| `last_complete_epoch` | the newest epoch that every sink has; null before the first one |
| `error` | null, or [Problem](#problem). After the `--timeout`, `exit_code` is 75, and the other fields are missing |

## journal export

`exactsink journal export` has no `--json`. It writes the journal's entries as they are stored, one on each
line, the oldest first. An entry has its place in the chain, its marks, and every vote.

## files list

`exactsink files list --json` prints a list, with an object for each sink of each job:

| field | meaning |
| --- | --- |
| `job`, `sink` | the names |
| `first_epoch`, `last_epoch` | the first and the last epoch with known files; null if no epoch with rows is complete |
| `whole` | whether `first_epoch` is the sink's first epoch. Otherwise the manifests of earlier epochs are gone, and \
the next fields lack their files |
| `files`, `rows`, `bytes` | the totals of these epochs |

## files read-list

`exactsink files read-list --json` prints one object:

| field | meaning |
| --- | --- |
| `epoch` | the epoch up to which the files hold every row exactly once; null if none is complete |
| `rows` | the rows of all these files |
| `files` | a list: each file's `path` (absolute, or a URL), `size` in bytes, `rows`, and `sha256` |
| `error` | null, or [Problem](#problem) |

## backends

`exactsink backends --json` prints a list, with an object for each installed backend:

| field | meaning |
| --- | --- |
| `name` | the name for `backend` in a job's file |
| `source` | the entry point of the plugin |
| `package` | the installed package, with its version |
| `contract` | the version of the contract that the plugin was written for; 0 if the plugin can't be loaded |
| `strategies` | an object: the effect of each strategy, by its name |
| `problem` | why the backend can't be used; empty if it can |

## conformance

`exactsink conformance NAME --json` prints a list, with an object for each scenario on each target:

| field | meaning |
| --- | --- |
| `target`, `scenario` | the names |
| `outcome` | `passed`, `failed` or `skipped` |
| `why` | the problem, or the capability that the backend lacks; empty if the scenario passed |
| `faults` | the names of the faults that were injected |
| `seconds` | the time of the scenario |
| `evidence` | the folder with the files of a failed scenario, else null |

If a scenario failed, the exit code is 1.
"""

FIELDS = """\
### A sink of check

| field | meaning |
| --- | --- |
| `sink`, `backend`, `strategy`, `target` | the sink |
| `guarantee` | `exactly once` or `effectively once` |
| `visible` | when readers see rows, as a text |
| `needs` | the conditions of the guarantee, as a text, for example a shared staging folder |
| `in_doubt` | how decided rows get into the target after a crash, as a text |
| `alternatives` | a list of texts: the backend's other strategies, each with its effect |
| `findings` | a list of [findings](#a-finding) about this sink |

### A finding

| field | meaning |
| --- | --- |
| `severity` | `error` (stops the job before the first row) or `warning` |
| `message` | the problem |
| `fix` | the statement, command or setting that fixes it |
"""
"""The parts of `check`."""
