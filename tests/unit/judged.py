"""What a sink's validator says of rows, held against what its writer does with each of them alone."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from exactsink.contract import Committable, Fatal
from exactsink.contract.validation import picked
from exactsink.testing import Session


def judged(sink: Session, rows: pa.Table) -> tuple[Mapping[int, str], Committable]:
    """Return the bad rows' reasons by place, and the vote of all the others; the epoch is 1.

    Fails where the writer takes a bad row, or refuses another one; or where a row is judged otherwise beside others.
    """
    ticket = sink.open(1, rows.schema)
    rules = sink.with_committer(lambda committer: committer.row_rules(rows.schema))
    validator = sink.backend.validator(rows.schema, rules)
    batch = rows.combine_chunks().to_batches()[0]
    bad = dict(validator.bad_rows(batch))
    for place in range(batch.num_rows):
        alone = batch.slice(place, 1)
        assert [bad.get(place)] == (list(dict(validator.bad_rows(alone)).values()) or [None])
        refusal: Fatal | None = None
        try:
            sink.write(1, place + 1, ticket, pa.Table.from_batches([picked(alone, [0])]))
        except Fatal as error:
            refusal = error
        assert (refusal is not None) == (place in bad), f"row {place}: {refusal}, and {bad.get(place)}"
    validator.close()
    good = picked(batch, [place for place in range(batch.num_rows) if place not in bad])
    return bad, sink.write(1, 0, ticket, pa.Table.from_batches([good]))
