"""The shapes of the commands' `--json` output. The reference is made from them, and tests compare answers with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from exactsink.contract import Finding
from exactsink.job.guarantees import Guarantee

__all__ = ["ANSWERS", "Adopted", "Checked", "CheckedSink", "Problem", "Ran", "Recovered", "Settled", "Verified"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Answer):
    """How a command failed. Every document that is an object has it as `error`, or null there."""

    kind: str
    """The class of the error: one of [exactsink's](errors.md), or one of click's for a mistake on the command line."""
    what: str
    """The event."""
    why: str
    """The reason; may be empty."""
    next: str
    """The command to run next; may be empty."""
    exit_code: int
    """The [exit code](exit-codes.md) of the command."""


class Settled(_Answer):
    """The result of `recover` in one sink. It counts participants of the last decision, and `swept` others."""

    sink: str
    """The sink's name."""
    committed: int
    """Committed by this command."""
    stood: int
    """Committed before."""
    lost: int
    """Proven [lost](../explanation/glossary.md): only the job can write their rows again."""
    swept: int
    """Undecided participants that the command aborted."""
    left: str
    """Why the command did not settle all of them; empty if it did."""


class Recovered(_Answer):
    """`exactsink recover --json` prints one object:"""

    job: str | None
    """The job's name."""
    run: str | None
    """The batch run; null for the job's stream."""
    dry_run: bool
    """Whether the command only printed, and changed nothing."""
    epoch: int | None = None
    """The last decided epoch; null if none is decided."""
    sinks: Sequence[Settled] = ()
    """[Settled](#settled), for each sink that the command was to settle."""
    error: Problem | None
    """Null, or [Problem](#problem)."""


class Adopted(_Answer):
    """`exactsink adopt --json` prints one object:"""

    job: str | None
    """The job's name."""
    batch: int | None = None
    """The batch that the new checkpoint plans next."""
    epoch: int | None = None
    """The epoch that this batch will be."""
    error: Problem | None
    """Null, or [Problem](#problem)."""


class Ran(_Answer):
    """`exactsink run --json` prints one object, when the run has ended:"""

    job: str | None = None
    """The job's name."""
    epochs: int = 0
    """The number of epochs that the run finished."""
    last_epoch: int | None = None
    """The last of them; null if there is none."""
    rows: dict[str, int] = {}
    """The rows of these epochs, by sink."""
    seconds: float = 0.0
    """The time of the whole run."""
    restarts: int = 0
    """How often the query was started again after an error."""
    stopped_by: str | None = None
    """The signal or the caller of `exactsink stop` that ended the run; null if nobody stopped it."""
    error: Problem | None
    """Null, or [Problem](#problem)."""


@dataclass(frozen=True, slots=True)
class CheckedSink(Guarantee):
    """One sink in the output of `check`: its promise, and preflight's findings."""

    findings: Sequence[Finding]


class Checked(_Answer):
    """`exactsink check --json` prints one object:"""

    job: str | None = None
    """The job's name."""
    guarantee: str | None = None
    """The job's guarantee, which is that of its weakest sink."""
    sinks: dict[str, CheckedSink] = {}
    """Each sink by its name, with the [fields of a sink](#a-sink-of-check)."""
    findings: Sequence[Finding] = ()
    """[Findings](#a-finding) about the job as a whole, in addition to `error`."""
    journal: Sequence[Finding] = ()
    """[Findings](#a-finding) about the place of the journal; all are warnings."""
    not_looked_at: Sequence[str] = ()
    """The checks that `--no-spark` leaves out, or that need a sink that did not answer."""
    error: Problem | None
    """Null, or the gravest [Problem](#problem) that would stop the job."""


class _Wrong(_Answer):
    seq: int
    problem: str
    needed_by: str


class Verified(_Answer):
    """`exactsink journal verify --json` prints one object:"""

    entries: int = 0
    """The number of entries that exist."""
    gaps: Sequence[tuple[int, int]] = ()
    """The first and the last number of each gap; the journal deletes old entries, so gaps are normal."""
    problems: Sequence[_Wrong] = ()
    """Damaged or absent entries: the number (`seq`), the `problem`, and who needs the entry (`needed_by`): \
`every start`, `sweeps of old work`, or only `history`."""
    error: Problem | None
    """Null, or [Problem](#problem)."""


ANSWERS: Mapping[str, type[BaseModel]] = {
    "run": Ran,
    "recover": Recovered,
    "Settled": Settled,
    "adopt": Adopted,
    "check": Checked,
    "journal verify": Verified,
    "Problem": Problem,
}
"""The heading of each: its command, or the name of a part of others."""
