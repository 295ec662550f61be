"""A plugin that breaks the contract is named, with its package, and no row is lost or doubled by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.backend import SinkCommitter, SinkWriter
from tests.unit.files_sink import files
from tests.unit.test_coordinator import Bench

from exactsink.contract import Committed, Committer, ContractError, Retryable
from exactsink.protocol.checked import MOST_PAYLOAD_BYTES, CheckedCommitter, broken, origin
from exactsink.protocol.sinks import Sink
from exactsink.spark.preflight import check_pickles

NAMED = r"sink \w+: .*[:;] this is a mistake in tests\.simulation\.backend\.SinkBackend"


def answering(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a call of the plugin do its work, and give something else."""
    return lambda right: lambda *given, **named: answer(right(*given, **named))


def failing(right: Any) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        raise KeyError("lost")

    return call


MISTAKES = {
    "None for outcomes": (SinkCommitter, "commit", answering(lambda found: None), "commit returned None"),
    "a text for outcomes": (SinkCommitter, "commit", answering(lambda outcomes: "ok"), "commit returned 'ok'"),
    "True for an outcome": (SinkCommitter, "commit", answering(lambda o: [True] * len(o)), "commit returned True"),
    "False for an outcome": (SinkCommitter, "commit", answering(lambda o: [False] * len(o)), "commit returned False"),
    "an error for an outcome": (SinkCommitter, "commit", answering(lambda o: [OSError()] * len(o)), "returned OSError"),
    "a class for an outcome": (SinkCommitter, "commit", answering(lambda o: [Committed] * len(o)), "returned <class"),
    "too few outcomes": (SinkCommitter, "commit", answering(lambda o: o[1:]), "returned 1 answers for 2 committables"),
    "a commit that fails": (SinkCommitter, "commit", failing, "commit failed: KeyError: 'lost'"),
    "None for what is in doubt": (SinkCommitter, "in_doubt", answering(lambda them: None), "in_doubt returned None"),
    "texts for what is in doubt": (SinkCommitter, "in_doubt", answering(lambda them: ["a"]), "must return InDoubt"),
    "a ticket that is text": (SinkCommitter, "open_epoch", answering(lambda made: "t"), "open_epoch returned 't'"),
    "an open that fails": (SinkCommitter, "open_epoch", failing, "open_epoch failed: KeyError: 'lost'"),
    "a mark that is a number": (SinkCommitter, "mark", answering(lambda mark: 7), "mark returned 7"),
    "a birth that is None": (SinkCommitter, "put_birth", answering(lambda m: None), "put_birth returned None"),
    "no committable": (SinkWriter, "pre_commit", answering(lambda made: None), "pre_commit returned None"),
    "rows that are text": (SinkWriter, "pre_commit", answering(lambda made: replace(made, rows="1")), "bytes and str"),
    "a payload that is text": (SinkWriter, "pre_commit", answering(lambda m: replace(m, payload="")), "str and int"),
    "a payload too large": (
        SinkWriter,
        "pre_commit",
        answering(lambda made: replace(made, payload=bytes(MOST_PAYLOAD_BYTES + 1))),
        "has 16777217 bytes of payload, and may have 16777216",
    ),
}


@pytest.mark.parametrize(("part", "call", "mistake", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_and_no_row_is_lost_or_doubled(
    part: type, call: str, mistake: Callable[[Any], Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    with monkeypatch.context() as patch:
        patch.setattr(part, call, mistake(getattr(part, call)))
        with pytest.raises(ContractError, match=NAMED) as error:
            bench.driver().run_epoch(bench.batch(0))
    assert says in str(error.value)
    assert error.value.exit_code == 70
    fixed = bench.driver()
    fixed.run_epoch(bench.batch(0))
    fixed.run_epoch(bench.batch(1))
    bench.check_applied(2)


def test_what_a_writer_raises_is_named_and_spark_tries_the_task_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    with monkeypatch.context() as patch:
        patch.setattr(SinkWriter, "write", failing(None))
        with pytest.raises(Retryable, match=r"sink \w+: write failed: KeyError: 'lost'; this is a mistake in tests\."):
            bench.driver().run_epoch(bench.batch(0))
    bench.driver().run_epoch(bench.batch(0))
    bench.check_applied(1)


def test_errors_that_the_contract_knows_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (Retryable("busy"), OSError("the disk is full")):
        bench = Bench()
        with monkeypatch.context() as patch:
            patch.setattr(SinkCommitter, "open_epoch", lambda *given, error=error: (_ for _ in ()).throw(error))
            with pytest.raises(type(error)) as raised:
                bench.driver().run_epoch(bench.batch(0))
        assert raised.value is error


def sink_of(root: Path) -> Sink:
    return Sink("lake", "files", files(root).backend, "")


def test_a_backend_that_cannot_travel_is_named_before_the_first_row(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    check_pickles({"lake": sink})
    vars(sink.backend)["lock"] = threading.Lock()
    with pytest.raises(ContractError, match=r"sink lake: its backend can't be sent to .*: TypeError: .*lock"):
        check_pickles({"lake": sink})


def test_a_package_is_named_with_its_version(tmp_path: Path) -> None:
    backend = sink_of(tmp_path).backend
    here = f"exactsink_files.backend.FilesBackend of package exactsink {version('exactsink')}"
    assert origin(backend) == origin(type(backend)) == here
    assert here in broken("lake", backend, "commit failed").why


def test_every_call_of_a_committer_is_checked() -> None:
    """A call that is added to the contract can't pass by unseen."""
    calls = {name for name, of in vars(Committer).items() if callable(of) and not name.startswith("_")}
    assert len(calls) > 10
    assert calls <= vars(CheckedCommitter).keys()
