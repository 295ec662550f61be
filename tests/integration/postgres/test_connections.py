"""How a sink reaches its server: TLS, passwords, passfiles, services and libpq's environment, as psycopg has them."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from exactsink.cli.conformance import conformance
from exactsink.contract import ConfigError, ExactsinkError, Fatal, Retryable
from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.options import PostgresOptions
from tests.integration.postgres.secured_site import SECRET, Site, elsewhere, open_site
from tests.servers.postgres import own_postgres


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("keys")) as site:
        yield site


@pytest.fixture(autouse=True)
def nothing_of_libpq_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # ~/.pgpass, ~/.pg_service.conf, ~/.postgresql


def at(options: PostgresOptions) -> tuple[str, str, bool]:
    """Connect here; give database, user, and whether by TLS."""
    with options.server.connect("driver") as session:
        row = session.execute(
            "SELECT current_database(), current_user, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return row


def task_at(options: PostgresOptions, environment: dict[str, str]) -> tuple[str, str, bool]:
    """Connect as a task does: with what travelled, in an environment of its own."""
    travelled = pickle.loads(pickle.dumps(options))
    with elsewhere(environment):
        return at(travelled)


def refused(options: PostgresOptions) -> ExactsinkError:
    """Fail to connect; no text of it may hold the password."""
    with pytest.raises(ExactsinkError) as caught:
        options.server.connect("driver")
    error = caught.value
    texts = [str(error), repr(error), error.why, error.next, pickle.dumps(error).decode("latin-1")]
    texts += traceback.format_exception(error)
    assert not [text for text in texts if SECRET in text]
    return error


# TLS


def test_a_task_settles_for_no_less_tls_than_the_driver_whose_environment_asked_for_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    options = site.options(f"host=127.0.0.1 port={site.port} dbname=shop user=sales password={SECRET}")
    monkeypatch.delenv("PGSSLMODE")
    error = refused(options)
    assert isinstance(error, Fatal)
    assert "root certificate" in error.what
    assert task_at(options, {"PGSSLROOTCERT": str(site.ca)}) == ("shop", "sales", True)


# Passwords


def test_a_password_may_come_from_conninfo_a_passfile_or_the_environment(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f"host=127.0.0.1 port={site.port} dbname=shop user=sales"
    passfile = tmp_path / "passfile"
    passfile.write_text(f"127.0.0.1:{site.port}:shop:sales:{SECRET}\n")
    passfile.chmod(0o600)
    wanted = ("shop", "sales", True)
    assert at(site.options(f"{there} password={SECRET}")) == wanted
    assert at(site.options(f"postgresql://sales:{SECRET}@127.0.0.1:{site.port}/shop")) == wanted
    assert at(site.options(f"{there} passfile={passfile}")) == wanted
    without = site.options(there)
    assert "no password supplied" in refused(without).what
    for name, value in (("PGPASSFILE", str(passfile)), ("PGPASSWORD", SECRET)):
        monkeypatch.setenv(name, value)
        assert at(site.options(there)) == wanted
        assert SECRET not in site.options(there).conninfo.get_secret_value()  # it does not travel
        monkeypatch.delenv(name)
        assert task_at(without, {name: value}) == wanted


@pytest.mark.parametrize(
    ("changed", "kind", "said", "fix"),
    [
        ({"password": SECRET + "x"}, Fatal, "password authentication failed", "right user and password"),
        ({"user": "nobody-here"}, Fatal, "password authentication failed", "right user and password"),
        ({"dbname": "no-such"}, Fatal, 'database "no-such" does not exist', "make the database"),
        ({"port": "1"}, Retryable, "Connection refused", "check that the server is up"),
        ({"service": "unheard-of"}, Fatal, "not found", "service file"),
        ({"sslmode": "sometimes"}, Fatal, "invalid sslmode value", "fix conninfo"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_what_can_not_connect_says_whether_trying_again_helps_and_never_the_password(
    site: Site, changed: dict[str, str], kind: type[ExactsinkError], said: str, fix: str
) -> None:
    given = {"host": "127.0.0.1", "port": site.port, "dbname": "shop", "user": "sales", "password": SECRET, **changed}
    error = refused(site.options(" ".join(f"{key}={value}" for key, value in given.items())))
    assert type(error) is kind, str(error)
    assert said in error.what
    assert fix in error.next


def test_a_role_that_is_missing_or_may_not_log_in_is_let_in_by_the_statement_that_is_printed(site: Site) -> None:
    options = site.options(site.server.conninfo("shop", "'the clerk'"))
    for said, state in (("does not exist", ""), ("is not permitted to log in", 'ALTER ROLE "the clerk" NOLOGIN')):
        if state:
            site.server.execute(state)
        error = refused(options)
        assert f'role "the clerk" {said}' in error.what
        site.server.execute(error.next.split("; or ")[0])
        assert at(options)[1] == "the clerk"


def test_a_full_server_or_one_that_is_down_is_tried_again(site: Site) -> None:
    options = site.options(f"host=127.0.0.1 port={site.port} dbname=shop user=sales password={SECRET}")
    site.server.execute("ALTER ROLE sales CONNECTION LIMIT 0")
    full = refused(options)
    site.server.execute("ALTER ROLE sales CONNECTION LIMIT -1; ALTER DATABASE shop CONNECTION LIMIT 0")
    crowded = refused(options)
    site.server.execute("ALTER DATABASE shop CONNECTION LIMIT -1")
    site.server.stop()
    down = refused(options)
    site.server.start()
    assert [type(error) for error in (full, crowded, down)] == [Retryable, Retryable, Retryable]
    assert 'too many connections for role "sales"' in full.what
    assert 'too many connections for database "shop"' in crowded.what
    assert at(options) == ("shop", "sales", True)


def test_no_text_of_options_backend_or_server_holds_the_password(site: Site) -> None:
    for conninfo in (
        f"host=127.0.0.1 port={site.port} dbname=shop user=sales password={SECRET}",
        f"postgresql://sales:{SECRET}@127.0.0.1:{site.port}/shop",
    ):
        options = site.options(conninfo)
        backend = PostgresBackend(options)
        assert backend.target == f"postgres://127.0.0.1:{site.port}/shop#flights"
        texts = [repr(options), str(options), repr(options.server), str(options.server), repr(backend), backend.target]
        texts.append(pickle.dumps(repr(options.server)).decode("latin-1"))
        assert not [text for text in texts if SECRET in text]
        assert pickle.loads(pickle.dumps(options.server)) == options.server


@pytest.mark.parametrize(
    "conninfo", [f"pasword={SECRET}", f"password = {SECRET} {SECRET}", f"postgresql://x:{SECRET}@[::1/"]
)
def test_what_is_no_connection_string_is_refused_without_repeating_it(site: Site, conninfo: str) -> None:
    with pytest.raises(ValidationError) as caught:
        site.options(conninfo)
    texts = [str(caught.value), repr(caught.value), *traceback.format_exception(caught.value)]
    assert not [text for text in texts if SECRET in text]
    assert "not a libpq connection string" in texts[0]


# Service files and libpq's environment


def test_the_drivers_environment_leads_a_task_without_it_to_the_same_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = {"PGHOST": "127.0.0.1", "PGPORT": site.port, "PGDATABASE": "shop", "PGUSER": "sales"}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    options, named = site.options(""), site.options("dbname=postgres")
    for name in around:
        monkeypatch.delenv(name)
    assert task_at(options, {"PGPASSWORD": SECRET}) == ("shop", "sales", True)
    elsewhere = {"PGHOST": "/nowhere", "PGPORT": "1", "PGDATABASE": "postgres", "PGUSER": "postgres"}
    assert task_at(options, {**elsewhere, "PGPASSWORD": SECRET}) == ("shop", "sales", True)
    assert task_at(named, {"PGPASSWORD": SECRET}) == ("postgres", "sales", True)
    assert PostgresBackend(options).target == f"postgres://127.0.0.1:{site.port}/shop#flights"


@pytest.mark.parametrize("by", ["conninfo", "environment"])
def test_a_service_leads_driver_and_task_to_the_same_database(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    services = tmp_path / "services.conf"
    services.write_text(f"# ours\n[other]\nhost=/nowhere\n[shop]\nhost=127.0.0.1\nport={site.port}\nuser=sales\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGDATABASE", "shop")  # the service says nothing of it
    monkeypatch.setenv("PGUSER", "postgres")  # it does say this
    if by == "environment":
        monkeypatch.setenv("PGSERVICE", "shop")
    options = site.options("service=shop" if by == "conninfo" else "")
    monkeypatch.delenv("PGSERVICE", raising=False)
    given = {"PGSERVICEFILE": str(services), "PGPASSWORD": SECRET}
    assert task_at(options, given) == ("shop", "sales", True)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert at(options) == ("shop", "sales", True)
    assert PostgresBackend(options).target == "postgres://service:shop/shop#flights"


def test_a_task_of_another_user_logs_in_as_the_driver_does(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    options = site.options(f"host=127.0.0.1 port={site.port} dbname=shop")
    own = options.conninfo.get_secret_value()
    assert "user=" in own
    assert pickle.loads(pickle.dumps(options)).conninfo.get_secret_value() == own
    monkeypatch.setenv("PGUSER", "sales")
    assert "user=sales" in site.options(f"host=127.0.0.1 port={site.port} dbname=shop").conninfo.get_secret_value()


def test_the_kit_without_a_server_of_use_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGHOST", str(tmp_path))
    with pytest.raises(ConfigError, match="no PostgreSQL server for the kit") as none:
        conformance("postgres", [], as_json=False)
    assert "max_prepared_transactions = 16" in none.value.next
    with own_postgres({"max_prepared_transactions": "15"}) as server:
        monkeypatch.setenv("PGHOST", str(server.folder))
        monkeypatch.setenv("PGUSER", "postgres")
        with pytest.raises(ConfigError, match="max_prepared_transactions is below 16"):
            conformance("postgres", [], as_json=False)
