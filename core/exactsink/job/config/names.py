"""The names that keys have in Spark, in drivers and in other sinks, so that messages can give the name in exactsink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exactsink.toolkit.nearest import nearest

__all__ = ["name_here"]

_URL = ("conninfo", "url")
_HERE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("url", "host", "hostname", "port", "user", "username", "password", "database", "dbname"), _URL),
    **dict.fromkeys(("dsn", "connection", "connection_string"), _URL),
    **dict.fromkeys(("kafka", "kafka.bootstrap.servers", "bootstrap.servers", "brokers"), ("bootstrap_servers",)),
    **dict.fromkeys(("access_key", "secret_key", "credentials"), ("profile",)),
    **dict.fromkeys(("primary_key", "primary_keys", "key_columns", "merge_keys"), ("keys",)),
    **dict.fromkeys(("processing_time", "processingtime", "interval", "availablenow", "once"), ("trigger",)),
    **dict.fromkeys(("location", "folder", "directory"), ("path",)),
    **dict.fromkeys(("mergeschema", "merge_schema", "schema_mode", "schemaevolution"), ("on_schema_change",)),
    "dbtable": ("table",),
    "table": ("path",),
    "bucket": ("path",),
    "retries": ("restarts",),
    "catalog_type": ("catalog_options",),
    "savemode": ("mode",),
    "mode": ("output_mode",),
    "partitionby": ("partition_by",),
    "queryname": ("name",),
    "type": ("format", "catalog_options", "backend"),
    "query": ("sql",),
    "select": ("columns",),
    "filter": ("where",),
    "condition": ("where",),
    "jars": ("packages",),
}
_OF_UPSERTS = "; this backend appends, and idempotent_upsert has mode and keys"


def name_here(key: str, known: Iterable[str], *, backend: bool = False) -> str:
    """Return the end of a message about an unknown key: its name here, or the nearest known key; empty without either.

    `known` are the keys of its table. `backend` says that the table is a backend's.
    """
    known = set(known)
    here = [name for name in _HERE.get(key.lower(), ()) if name in known]
    if here:
        return f"; here it is {here[0]}"
    if key.lower() in ("schema", "namespace") and "table" in known:
        return '; it is part of the table\'s name: table = "SCHEMA.TABLE"'
    if backend and key.lower() in ("mode", "keys", *(old for old, new in _HERE.items() if new == ("keys",))):
        return _OF_UPSERTS
    return nearest(key, known)
