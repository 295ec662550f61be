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
    """How a command failed: the event (`what`), the reason, and the next command."""

    kind: str
    what: str
    why: str
    next: str
    exit_code: int


class Settled(_Answer):
    """The result of `recover` in one sink: numbers of participants of the last decision.

    `committed` were committed by this command, `stood` before it. `lost` are proven lost. `swept` counts undecided
    participants that the command aborted. `left` names the next step, or is empty.
    """

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
    """`exactsink adopt --json`. Batch `batch` of the new checkpoint will be epoch `epoch` of the job."""

    job: str | None
    batch: int | None = None
    epoch: int | None = None
    error: Problem | None


class Ran(_Answer):
    """`exactsink run --json`, once it has ended: the `epochs` that it finished, and their `rows` by sink.

    `last_epoch` is null if it finished none. `restarts` counts the restarts of the query. `seconds` is the time of the
    whole run. `stopped_by` says who stopped it.
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
    """One sink in the output of `check`: its promise, and preflight's findings."""

    findings: Sequence[Finding]


class Checked(_Answer):
    """`exactsink check --json`: the guarantees of the job and of each sink, and preflight's findings.

    `findings` concern the job as a whole, in addition to `error`. `not_looked_at` lists the checks that `--no-spark`
    leaves out.
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
    """`exactsink journal verify --json`: how many entries exist, which are absent (from, to), and which are damaged."""

    entries: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    problems: Sequence[_Wrong] = ()
    error: Problem | None


ANSWERS: Mapping[type[BaseModel], str] = {
    Ran: "run",
    Recovered: "recover",
    Settled: "",
    Adopted: "adopt",
    Checked: "check",
    Verified: "journal verify",
    Problem: "",
}
"""The command of each; empty for a part of others."""
