"""The shape of what commands print with `--json`: the reference is made of it, and tests hold answers against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from exactsink.contract import Finding
from exactsink.job.guarantees import Guarantee

__all__ = ["ANSWERS", "Adopted", "Checked", "CheckedSink", "Problem", "Ran", "Recovered", "Settled", "Verified"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Answer):
    """How a command failed: what, why, and the command to give next."""

    kind: str
    what: str
    why: str
    next: str
    exit_code: int


class Settled(_Answer):
    """What came of one sink, in participants of the last decision; `left` is empty when nothing is left to do."""

    sink: str
    committed: int
    stood: int
    lost: int
    swept: int
    left: str


class Recovered(_Answer):
    """`exactsink recover --json`. `epoch` is the last decided one; with `dry_run` nothing was changed."""

    job: str | None
    run: str | None
    dry_run: bool
    epoch: int | None = None
    sinks: Sequence[Settled] = ()
    error: Problem | None


class Adopted(_Answer):
    """`exactsink adopt --json`. `batch` of the checkpoint will be `epoch`."""

    job: str | None
    batch: int | None = None
    epoch: int | None = None
    error: Problem | None


class Ran(_Answer):
    """`exactsink run --json`, once it has ended: the `epochs` that it finished, and their `rows` by sink.

    `last_epoch` is null when it finished none; `restarts` counts how often the query was started again, `seconds` are
    those of the whole run; `stopped_by` says who asked it to end.
    """

    job: str | None = None
    epochs: int = 0
    last_epoch: int | None = None
    rows: dict[str, int] = {}
    seconds: float = 0.0
    restarts: int = 0
    stopped_by: str | None = None
    error: Problem | None


@dataclass(frozen=True, slots=True)
class CheckedSink(Guarantee):
    """What `check` says of one sink: its promise, and what was found of it."""

    findings: Sequence[Finding]


class Checked(_Answer):
    """`exactsink check --json`: the job's guarantee, that of each sink, and what preflight found of it.

    `findings` are the job's own, beside the `error`; `not_looked_at` is what `--no-spark` leaves open.
    """

    job: str | None = None
    guarantee: str | None = None
    sinks: dict[str, CheckedSink] = {}
    findings: Sequence[Finding] = ()
    journal: Sequence[Finding] = ()
    not_looked_at: Sequence[str] = ()
    error: Problem | None


class _Wrong(_Answer):
    seq: int
    problem: str
    needed_by: str


class Verified(_Answer):
    """`exactsink journal verify --json`: how many entries stand, which are absent (from, to), and what is wrong."""

    entries: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    problems: Sequence[_Wrong] = ()
    error: Problem | None


ANSWERS: Sequence[type[BaseModel]] = (Ran, Recovered, Adopted, Checked, Verified, Settled, Problem)
