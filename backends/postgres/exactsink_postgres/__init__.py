"""The `postgres` backend of exactsink: a map, in the order that a row and then a vote goes.

plugin           announces the backend without importing it
options          what a sink's section of the job's file says, and how SQL names tables
backend          what the strategies promise, and how rows are shaped before they become Arrow
server           where libpq leads to, sessions that commit durably and explain their errors
preflight        what of the server would fail every epoch, or could lose decided rows, before the first row
preflight_table  the same of the table: what keeps rows out, what is checked too late
tables           the sink's table in the catalog, what does not fit it, made or widened for an epoch
type_mapping     which Arrow types go into which columns, and the cast where one does not
encoder          a batch as bytes of a binary COPY, nothing cut or rounded
text_rows        the same as text, where the server alone can read a column's type
load             a task's transaction with its one COPY: the writer of both strategies, but for the vote
locks            who holds a lock that does not come
two_phase        strategy two_phase: PREPARE TRANSACTION is the vote, COMMIT PREPARED the commit
own_tables       exactsink's tables beside the sink's: marks, votes, and rows that wait
staged           strategy staged: COMMIT into a staging table is the vote, INSERT ... SELECT the commit
committer        the driver's side of both: the kept session, the mark, COMMIT PREPARED in a pipeline, the sweep
errors           what each SQLSTATE means, what fixes it, and where a timeout that ended work of ours is set
public           what upserts into Postgres share with these strategies, and may import
conformance      targets for the conformance kit, and votes that releases have recorded
"""

from exactsink.contract import sink_calls

__all__ = ["Postgres"]

__getattr__ = sink_calls("postgres", Postgres="exactsink_postgres.options:PostgresOptions")
