"""The `postgres` backend of exactsink: a list of its modules, in the order in which a row and then a vote passes them.

plugin           announces the backend without importing it
options          the options of a sink, and the names of tables in SQL
backend          the promises of the strategies, and the shape of rows before they become Arrow
server           the server that libpq finds, sessions that commit durably and explain their errors
preflight        checks the server, before the first row, for problems that fail epochs or lose decided rows
preflight_table  checks the table: rows that it refuses, and constraints that it checks too late
tables           the sink's table in the catalog: problems with it, and making or widening it for an epoch
type_mapping     which Arrow types fit which columns, and the casts for those that don't
encoder          a batch as bytes of a binary COPY, without cutting or rounding
text_rows        a batch as text, if only the server can read a column's type
load             a task's transaction with its one COPY: the writer of both strategies, without the vote
locks            the holders of a lock that a session waits for
two_phase        strategy two_phase: PREPARE TRANSACTION is the vote, COMMIT PREPARED the commit
own_tables       exactsink's own tables beside the sink's: marks, votes, and rows that wait
staged           strategy staged: COMMIT into a staging table is the vote, INSERT ... SELECT the commit
committer        the driver's side of both: the kept session, the mark, COMMIT PREPARED in a pipeline, the sweep
errors           the meaning and fix of each SQLSTATE, and where a timeout is set
public           the pieces that upserts into Postgres may import from this backend
conformance      targets for the conformance kit, and votes that releases have recorded
"""

from exactsink.contract import sink_calls

__all__ = ["Postgres"]

__getattr__ = sink_calls("postgres", Postgres="exactsink_postgres.options:PostgresOptions")
