"""Which columns an epoch may have after those of the one before, by `on_schema_change`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exactsink.contract import Backend
from exactsink.job.columns import changed_columns
from exactsink.protocol.journal.log import Decision
from exactsink.protocol.journal.records import Columns, DecidedSink
from exactsink.protocol.sinks import Sink
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_kafka.backend import KafkaBackend, KafkaOptions

BEFORE: Columns = (("id", "bigint"), ("price", "decimal(10,4)"), ("day", "date"))
CHANGES: dict[str, tuple[Columns, list[str], str]] = {
    "none": (BEFORE, [], "fail"),
    "another order": (BEFORE[::-1], [], "fail"),
    "added": ((*BEFORE, ("note", "string")), ["note - string"], "add_columns"),
    "dropped": (BEFORE[:2], ["day date -"], "allow"),
    "renamed": ((*BEFORE[:2], ("date", "date")), ["day date -", "date - date"], "allow"),
    "another case": ((("Id", "bigint"), *BEFORE[1:]), ["id bigint -", "Id - bigint"], "allow"),
    "another type": ((("id", "string"), *BEFORE[1:]), ["id bigint string"], "allow"),
    "another scale": ((("price", "decimal(10,2)"), *BEFORE[::2]), ["price decimal(10,4) decimal(10,2)"], "allow"),
}
"""Columns of the next epoch, what differs, and the least option that takes it."""
OPTIONS = ("fail", "add_columns", "allow")


def files(path: Path, option: str) -> Backend:
    return FilesBackend(FilesOptions.model_validate({"path": str(path), "on_schema_change": option}))


def kafka(option: str, form: str = "json") -> Backend:
    given = {"bootstrap_servers": "a:1", "topic": "t", "value_format": form, "on_schema_change": option}
    return KafkaBackend(KafkaOptions.model_validate(given))


def decided(sink: Sink, columns: Columns | None = BEFORE) -> Decision:
    bound = DecidedSink(sink.kind, sink.backend.strategy, sink.backend.target, (), columns)
    return Decision(7, "input", {sink.name: bound}, (3,))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_with_what_differs_unless_the_option_takes_it(change: str, tmp_path: Path) -> None:
    now, differs, least = CHANGES[change]
    for option in OPTIONS:
        for backend in (files(tmp_path, option), kafka(option)):
            sink = Sink("lake", "x", backend, "")
            refusal = changed_columns(sink, decided(sink), now)
            assert (refusal is None) == (OPTIONS.index(option) >= OPTIONS.index(least)), option
            if refusal is not None:
                head, *lines = (" ".join(line.split()) for line in refusal.why.splitlines()[1:])
                assert (head, lines) == ("column epoch 7 now", differs)
                assert f'on_schema_change = "{least}" in [sinks.lake]' in refusal.next


def test_nothing_is_compared_with_another_target_or_parts_of_a_record(tmp_path: Path) -> None:
    sink = Sink("lake", "x", files(tmp_path, "fail"), "")
    now: Columns = (("other", "int"),)
    assert changed_columns(sink, decided(sink), now) is not None
    assert changed_columns(sink, decided(sink, None), now) is None
    assert changed_columns(sink, None, now) is None
    assert changed_columns(replace(sink, name="pond"), decided(sink), now) is None
    assert changed_columns(replace(sink, backend=files(tmp_path / "other", "fail")), decided(sink), now) is None
    parts = Sink("lake", "x", kafka("fail", "columns"), "")
    assert changed_columns(parts, decided(parts), now) is None


def test_csv_takes_no_added_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="by position"):
        FilesOptions.model_validate({"path": str(tmp_path), "format": "csv", "on_schema_change": "add_columns"})
