"""What of a table can be checked only when rows are applied: after the decision, with the staged strategy."""

from __future__ import annotations

import psycopg

from exactsink_postgres.tables.catalog import Table

__all__ = ["late_constraints"]

_TOO_LATE = "comes into play when an epoch is applied, after its decision: a row that it refuses stops the job"
_CONSTRAINTS = """
    SELECT CASE contype WHEN 'f' THEN 'foreign key ' WHEN 'x' THEN 'exclusion constraint '
        WHEN 't' THEN 'constraint trigger ' ELSE 'deferrable constraint ' END || quote_ident(conname)
    FROM pg_constraint
    WHERE conrelid = %(oid)s AND (contype IN ('f', 'x', 't') OR (contype IN ('p', 'u') AND condeferrable))
    ORDER BY 1
"""
_INDEXES = """
    SELECT CASE WHEN index.indexprs IS NOT NULL THEN 'unique index on expressions '
        WHEN index.indpred IS NOT NULL THEN 'partial unique index '
        ELSE 'unique index with NULLS NOT DISTINCT ' END || quote_ident(name.relname)
    FROM pg_index AS index JOIN pg_class AS name ON name.oid = index.indexrelid
    WHERE index.indrelid = %(oid)s AND index.indisunique AND index.indimmediate AND (index.indexprs IS NOT NULL
        OR index.indpred IS NOT NULL OR coalesce((to_jsonb(index) ->> 'indnullsnotdistinct')::bool, false))
    ORDER BY 1
"""
_IDENTITIES = """
    SELECT 'unique index ' || quote_ident(name.relname) || ' where its identity column gets the value from the table'
    FROM pg_index AS index JOIN pg_class AS name ON name.oid = index.indexrelid
    WHERE index.indrelid = %(oid)s AND index.indisunique AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = indrelid
        AND attnum = ANY (index.indkey) AND attidentity <> '')
    ORDER BY 1
"""
_ACTIONS = """
    SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
    WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgconstraint = 0 AND tgenabled <> 'D' AND tgtype & 4 = 4
    UNION ALL
    SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite
    WHERE ev_class = %(oid)s AND ev_type = '3' AND ev_enabled <> 'D'
    ORDER BY 1
"""
_PARTITIONS = """
    SELECT 'whether there is a partition for a row' FROM pg_partitioned_table
    WHERE partrelid = %(oid)s AND partdefid = 0
    UNION ALL
    SELECT 'unique index ' || quote_ident(name.relname) || ' of a partition'
    FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree
        JOIN pg_index AS index ON index.indrelid = tree.relid AND index.indisunique
        JOIN pg_class AS name ON name.oid = index.indexrelid
    WHERE tree.level > 0 AND NOT name.relispartition
    UNION ALL
    SELECT 'what its own partition''s bounds allow' FROM pg_class WHERE oid = %(oid)s AND relispartition
    ORDER BY 1
"""


def late_constraints(connection: psycopg.Connection, table: Table) -> list[str]:
    """Report what an epoch's rows can break though every check before its decision has passed, a sentence for each.

    Such a row stops the job with the epoch decided, until somebody fixes the table or the constraint: strategy
    `two_phase` finds it in the task. Raises psycopg's errors.
    """
    found = []
    for query in (_CONSTRAINTS, _INDEXES, _IDENTITIES, _ACTIONS, _PARTITIONS):
        found += [name for (name,) in connection.execute(query, {"oid": table.oid})]
    return [f"table {table}: {name} {_TOO_LATE}" for name in found]
