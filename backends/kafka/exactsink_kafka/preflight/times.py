"""Whether a transaction lives as long as an epoch takes, and its end is known as long as the job may stand still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exactsink.contract import Finding, JobContext
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight.remedies import Remedies, duration

__all__ = ["Times", "budget_findings", "evidence_findings", "timeout_findings"]

# Two more settings of brokers were looked at, and need no finding. An id of the pool that idles for longer than
# transactional.id.expiration.ms is forgotten: its next use begins anew, under another producer id. After
# producer.id.expiration.ms a partition's leader forgets a producer that has no transaction open: an open one is kept,
# and a stalled task that writes again is refused by the coordinator, which knows the epoch.


@dataclass(frozen=True, slots=True)
class Times:
    """What brokers allow, in seconds: the least of any, as any may become a transaction's coordinator."""

    longest_timeout: float
    id_expiration: float

    @classmethod
    def of(cls, brokers: Mapping[int, Mapping[str, str]]) -> Times:
        """Read them from brokers' settings."""
        return cls(
            longest_timeout=min(int(configs["transaction.max.timeout.ms"]) for configs in brokers.values()) / 1000,
            id_expiration=min(int(configs["transactional.id.expiration.ms"]) for configs in brokers.values()) / 1000,
        )


def budget_findings(options: KafkaOptions, ctx: JobContext) -> Iterator[Finding]:
    """Compare a transaction's time with an epoch's: the broker aborts it in the middle of an epoch that is longer."""
    timeout, margin = options.transaction_timeout_seconds, options.commit_seconds
    if timeout >= ctx.epoch_budget_seconds + margin:
        return
    needed = ctx.epoch_budget_seconds + min(60.0, ctx.epoch_budget_seconds / 3)  # with that timeout's own margin
    message = (
        f"transaction_timeout_seconds is {timeout:g}, an epoch may take {ctx.epoch_budget_seconds:g} s (epoch_budget) "
        f"and its commit {margin:g} s: the broker may abort its transactions before"
    )
    shorter = f'epoch_budget = "{int(timeout - margin) or 1} seconds" in [job]'
    yield Finding("error", message, f"transaction_timeout_seconds = {needed:g} in the sink's options; or {shorter}")


def timeout_findings(options: KafkaOptions, times: Times) -> Iterator[Finding]:
    """Compare a transaction's time with what brokers allow, and with how long they know of its end."""
    timeout = options.transaction_timeout_seconds
    if timeout > times.longest_timeout:
        message = (
            f"transaction_timeout_seconds is {timeout:g}, the brokers allow {times.longest_timeout:g} "
            f"(transaction.max.timeout.ms): they refuse every producer"
        )
        fix = f"{_static('transaction.max.timeout.ms', timeout)}; or transaction_timeout_seconds = "
        yield Finding("error", message, f"{fix}{times.longest_timeout:g} in the sink's options")
    if times.id_expiration < timeout:
        message = (
            f"transaction_timeout_seconds is {timeout:g}, the brokers forget a transactional id after "
            f"{times.id_expiration:g} s (transactional.id.expiration.ms): an epoch's own end may not be provable"
        )
        week = 7 * 86_400
        yield Finding("error", message, _static("transactional.id.expiration.ms", max(week, timeout)))


def evidence_findings(
    ctx: JobContext, times: Times, name: str | None, configs: Mapping[str, str] | None, remedies: Remedies
) -> Iterator[Finding]:
    """Compare how long a transaction's end can be proven with how long the job may stand still.

    The coordinator reports until it forgets the id; later the record itself reports, where the topic still has it.
    Beyond both the answer is Unknown: the job stops with the evidence, and is never wrong. Hence a warning.
    """
    kept = _kept_seconds(configs)
    window, pause = max(times.id_expiration, kept), ctx.longest_pause_seconds
    if window >= pause:
        return
    message = (
        f"the brokers forget after {duration(times.id_expiration)} how a transaction ended "
        f"(transactional.id.expiration.ms), {_reported_kept(name, configs, kept)}, and the job may stand still for "
        f"{duration(pause)} (longest_pause): then it stops, as a commit is neither proven nor disproven"
    )
    shorter = f'longest_pause = "{max(int(window // 60), 1)} minutes" in [job]'
    ways = [shorter, _static("transactional.id.expiration.ms", pause)]
    if name is not None and configs is not None and "compact" not in configs["cleanup.policy"]:
        ways.append(remedies.topic_config(name, f"retention.ms={int(pause * 1000)},retention.bytes=-1"))
    yield Finding("warning", message, "; or ".join(ways))


def _kept_seconds(configs: Mapping[str, str] | None) -> float:
    """Return how long a record is there for sure. Compaction and a limit by size may take it at any time."""
    if configs is None or "compact" in configs["cleanup.policy"]:
        return 0.0
    if "delete" not in configs["cleanup.policy"]:
        return float("inf")
    if int(configs["retention.bytes"]) >= 0:
        return 0.0
    milliseconds = int(configs["retention.ms"])
    return float("inf") if milliseconds < 0 else milliseconds / 1000


def _reported_kept(name: str | None, configs: Mapping[str, str] | None, kept: float) -> str:
    if name is None or configs is None:
        return "how long the topic keeps its rows is not known"
    if kept:
        return f"topic {name} keeps its rows for {duration(kept)} (retention.ms)"
    cause = "cleanup.policy" if "compact" in configs["cleanup.policy"] else "retention.bytes"
    return f"topic {name} may drop its rows at any time ({cause})"


def _static(setting: str, seconds: float) -> str:
    return f"{setting}={int(seconds * 1000)} in every broker's server.properties, then restart them one by one"
