"""PostgreSQL's URL as SQLAlchemy writes it, for libpq: with what the driver's environment says of the place."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from exactsink_postgres.public import pinned

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["libpq_url"]


def libpq_url(given: URL) -> str:
    """Return the URL as libpq reads it, and SQLAlchemy too; tasks go where the driver does. Raises ValueError."""
    query = {name: value if isinstance(value, str) else ",".join(value) for name, value in given.query.items()}
    if isinstance(hosts := given.query.get("host"), tuple):  # SQLAlchemy has several as host:port each
        parts = [host.partition(":") for host in hosts]
        query["host"], query["port"] = (",".join(part[place] for part in parts) for place in (0, 2))
    named = {"host": given.host, "port": given.port, "user": given.username, "password": given.password}
    named["dbname"] = given.database
    query |= {name: str(value) for name, value in named.items() if value}
    try:
        read = conninfo_to_dict(pinned(make_conninfo("", **query)))
    except ProgrammingError:
        raise ValueError("libpq can't read its query: write postgresql://user@host/database?sslmode=require") from None
    place = {name: str(value) for name, value in read.items()}
    known = {name: place.pop(name, "") for name in ("user", "password", "dbname")}
    login = quote(known["user"], safe="") + (f":{quote(known['password'], safe='')}" if known["password"] else "")
    server, port = place.get("host", ""), place.get("port", "")
    if server and not {"/", ","} & {*server, *port}:
        server = place.pop("host") + (f":{place.pop('port')}" if port else "")
    else:
        server = ""
    at = f"{login}@{server}" if login else server
    more = urlencode(place, quote_via=quote, safe="/,")
    return f"postgresql://{at}/{quote(known['dbname'], safe='')}{'?' if more else ''}{more}"
