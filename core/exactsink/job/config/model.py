"""The contents of a job's config, besides the backends' own options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from exactsink.contract import ConfigError, FileMode
from exactsink.job.config.section import Section, Settings
from exactsink.toolkit.local_paths import absolute_path, real_path
from exactsink.toolkit.storage import AnyPath, is_object_url, object_scheme, path_of, refused_store

__all__ = [
    "JOURNAL_IN_A_DATABASE",
    "JobConfig",
    "JobSection",
    "NAME_WANTED",
    "NEW_NAME",
    "ObserveSection",
    "SinkSection",
    "SourceSection",
    "SparkSection",
    "TransformSection",
]

JOURNAL_IN_A_DATABASE = '[job] journal = "postgresql+psycopg://..."'

_DISTRIBUTION = re.compile(r"none|hash\([^(),]*[^(),\s][^(),]*(,[^(),]*[^(),\s][^(),]*)*\)")
_SQLITE = re.compile(r"(sqlite(?:\+pysqlite)?:///)([^:?][^?]*)(.*)", re.DOTALL)
_OBJECT_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<store>[^/]*)/+(?P<path>.*)", re.DOTALL)
_UNUSUAL = re.compile(r"[?#*\[\]\\\x00-\x1f]")
_DURATION = r"^\d+ (second|minute|hour|day)s?$"
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_FUNCTION = r"^[\w.]+:[\w.]+$"
_TRIGGER = re.compile(r"available_now|\d+ (millisecond|second|minute|hour)s?")


NEW_NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
"""`NAME_PATTERN`, for reading ids, also allows a dash first. A new name may not, because `-` in a table means none."""
NAME_WANTED = "a name has lower-case letters, digits and dashes, no dash first, 40 at most"
"""NEW_NAME in words."""

_Name = Annotated[str, Field(pattern=NEW_NAME)]

_Names = Annotated[
    tuple[str, ...], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
]


class JobSection(Section):
    """`[job]`: the job's name, its checkpoint and journal, and how it runs."""

    name: _Name = Field(examples=["orders"])
    """The job's name, part of every id: at most 40 characters (for batch runs, 29): lower-case letters, digits and
    dashes. It does not begin with a dash."""
    checkpoint: str = Field(examples=["/data/checkpoints/orders"])
    """Spark's checkpoint: a local folder (even if `fs.defaultFS` names another file system), or the URL of an object
    store, for example `s3a://bucket/path`. The journal is beside it, in `<checkpoint>.exactsink/journal`."""
    staging: str | None = None
    """Where staged rows wait: a folder that the driver and all executors see, or the URL of an object store or of HDFS,
    for example `s3://bucket/path` or `webhdfs://namenode:9870/path`. Default: `<checkpoint>.exactsink/staging`."""
    transform: Annotated[str, Field(pattern=_FUNCTION)] | None = Field(default=None, examples=["shop.orders:clean"])
    """`module:function`, which takes the source's frame and returns the frame for all sinks. For SQL: `[transform]`."""
    route: Annotated[str, Field(pattern=_FUNCTION)] | None = Field(default=None, examples=["shop.orders:by_kind"])
    """`module:function`, which takes the frame for all sinks and returns one frame for each sink, by name."""
    modules: Annotated[tuple[str, ...], Field(validate_default=True)] = (".",)
    """Folders in which exactsink looks for the modules of `transform` and `route`, in addition to installed modules. A
    relative path begins at the job file's folder."""
    trigger: str = Field(default="available_now", examples=["10 seconds"])
    """`available_now` (read everything that the source has, then end), or the interval of a stream that runs until you
    stop it, for example `10 seconds`."""
    output_mode: Literal["append", "update", "complete"] = "append"
    """Spark's output mode. With `update`, Spark emits a key again when it changes; with `complete`, it emits all keys
    in every batch. So use sinks with `keys`. exactsink warns of a sink that would append the key a second time."""
    file_mode: FileMode = "private"
    """Who may enter the folders of the journal, the state, staged rows and uncommitted files. `private`: only the job's
    user. `group`: also the folder's group; use it if driver and executors run as different users. `umask`: whoever the
    process's umask allows."""
    restarts: Annotated[int, Field(ge=0)] = 10
    """How often in a row `exactsink run` and `Job.write` try again after an error that a retry can cure."""
    journal: Annotated[SecretStr, Field(min_length=1)] | None = None
    """A SQLAlchemy URL for the journal, `postgresql+psycopg://...`. Default: `<checkpoint>.exactsink/journal`."""
    require: Literal["exactly_once"] | None = None
    """Refuse the job if one of its sinks has a weaker guarantee."""
    allow_early_rows: bool = False
    """Allow a job to have sinks that show rows before the decision (`direct`) together with sinks that do not."""
    fan_out: Literal["persist", "recompute"] = "persist"
    """How the frames of a `route` share a batch. `persist`: Spark computes the batch once and keeps it in memory and on
    disk. `recompute`: Spark computes it again for each sink."""
    deterministic: bool = False
    """Confirm that the plan returns the same rows each time it runs on a batch. `fan_out = "recompute"` needs it."""
    longest_pause: Annotated[str, Field(pattern=_DURATION)] = "7 days"
    """The longest time for which you expect the job not to run. `check` and the start report a store that deletes
    waiting uploads or files, marks or evidence sooner: as an error or a warning, with the fix. (Not compared: the
    timeout of a Kafka transaction. After it, the job writes the rows again.)"""
    epoch_budget: Annotated[str, Field(pattern=_DURATION)] = "10 minutes"
    """The longest time of an epoch, from its first row to its commit. exactsink refuses a Kafka sink with a shorter
    transaction timeout, and warns if a timeout of Postgres is shorter. It does not end an epoch that takes longer."""
    stop_within: Annotated[str, Field(pattern=_DURATION)] = "1 minute"
    """How long a driver may take to finish its epoch after SIGTERM, SIGHUP or `exactsink stop`. If it takes longer, it
    ends as by a crash (exit code 75)."""

    @field_validator("checkpoint", "staging")
    @classmethod
    def _one_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if is_object_url(value):
            return _object_url(value)
        real = real_path(value, info.context)
        if info.field_name == "checkpoint" and (Path(value).name in ("", "..") or real == "/"):
            raise ValueError("give the checkpoint a folder of its own: the journal is kept beside it")
        return real

    @field_validator("modules")
    @classmethod
    def _folders(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return tuple(absolute_path(place, info.context) for place in value)

    @field_validator("journal")
    @classmethod
    def _one_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Let the relative path of a SQLite journal begin at the job file's folder."""
        found = _SQLITE.fullmatch(value.get_secret_value()) if value is not None else None
        return value if found is None else SecretStr(f"{found[1]}{real_path(found[2], info.context)}{found[3]}")

    @model_validator(mode="after")
    def _recompute_is_safe(self) -> JobSection:
        if self.fan_out == "recompute" and not self.deterministic:
            raise ValueError(
                'fan_out = "recompute" runs the plan once per sink: set deterministic = true if it gives the same rows '
                "each time, or leave fan_out at persist"
            )
        return self

    @model_validator(mode="after")
    def _stores_can_be_opened(self) -> JobSection:
        if self.journal is None and is_object_url(self.checkpoint):
            scheme = object_scheme(self.checkpoint)
            if why := refused_store(scheme):
                raise ValueError(f"the journal can't be kept on {scheme}: {why}: set {JOURNAL_IN_A_DATABASE}")
        try:
            for place in filter(None, (self.checkpoint, self.staging)):
                path_of(place)
        except ConfigError as error:
            raise ValueError(f"{error.what} ({error.why}): {error.next}") from None
        return self

    @field_validator("trigger")
    @classmethod
    def _known_trigger(cls, value: str) -> str:
        if not _TRIGGER.fullmatch(value):
            raise ValueError('a trigger is "available_now" or a time such as "10 seconds"')
        return value

    @property
    def longest_pause_seconds(self) -> float:
        return _seconds(self.longest_pause)

    @property
    def epoch_budget_seconds(self) -> float:
        return _seconds(self.epoch_budget)

    @property
    def stop_within_seconds(self) -> float:
        return _seconds(self.stop_within)


class ObserveSection(Section):
    """`[observe]`: where metrics go, in addition to the log."""

    prometheus: Annotated[str, Field(pattern=r"^[^:]*:\d+$")] | None = Field(default=None, examples=["127.0.0.1:9108"])
    """`host:port` at which the driver serves its metrics. Needs `exactsink[prometheus]`."""
    certificate: str | None = None
    """A PEM file with the certificate (and its chain), to serve the metrics by HTTPS. A relative path begins at the job
    file's folder."""
    key: str | None = None
    """A PEM file with the certificate's private key, without a passphrase."""
    opentelemetry: bool = False
    """Send metrics and spans by the OpenTelemetry SDK that your program or `opentelemetry-instrument` has set up."""

    @field_validator("certificate", "key")
    @classmethod
    def _from_the_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else absolute_path(value, info.context)

    @model_validator(mode="after")
    def _both(self) -> ObserveSection:
        if (self.certificate is None) != (self.key is None) or (self.key is not None and self.prometheus is None):
            raise ValueError("give certificate and key together, with prometheus: they are for its HTTPS")
        return self


class SparkSection(Section):
    """`[spark]`: the session that `exactsink run` makes."""

    master: str | None = None
    """Spark's master, for example `local[2]`. Leave it out under spark-submit, which names the master itself."""
    packages: tuple[str, ...] = ()
    """Maven coordinates of packages for Spark, as in `spark.jars.packages`."""
    conf: Settings = Field(default_factory=dict, repr=False)  # may hold secrets
    """Spark's settings. exactsink passes them on unchanged."""


class SourceSection(Section):
    """`[source]`: the source that `exactsink run` reads by `spark.readStream`."""

    format: str = Field(examples=["csv"])
    """The source's format, as in `spark.readStream.format`."""
    schema_: Annotated[str | None, Field(alias="schema")] = None
    """The schema as DDL, for example `id BIGINT, name STRING`. Some sources need one."""
    path: str | None = Field(default=None, repr=False)
    """The argument of the reader's `load`: for files, their folder. A relative path begins at the job file's folder."""
    options: Settings = Field(default_factory=dict, repr=False)  # may hold secrets
    """The source's own options, as in `spark.readStream.options`."""

    @field_validator("path")
    @classmethod
    def _from_the_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if not value or is_object_url(value):
            return value
        path = absolute_path(value, info.context)
        return f"file://{path}" if value.lower().startswith("file:") else path  # not Hadoop's default file system


class TransformSection(Section):
    """`[transform]`: a SQL query that makes the sinks' frame. The table `source` is the source's frame. Set one of the
    two keys."""

    sql: Annotated[str, Field(pattern=r"\S")] | None = None
    """A query in Spark's SQL, for example `SELECT id, upper(name) AS name FROM source WHERE amount > 0`."""
    sql_file: Annotated[str, Field(min_length=1)] | None = None
    """A file with the query. A relative path begins at the job file's folder."""

    @field_validator("sql_file")
    @classmethod
    def _from_the_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else absolute_path(value, info.context)

    @model_validator(mode="after")
    def _one_query(self) -> TransformSection:
        if (self.sql is None) == (self.sql_file is None):
            raise ValueError("set either sql or sql_file")
        return self

    @property
    def key(self) -> str:
        """The key of the query, for messages."""
        return "[transform] sql" if self.sql_file is None else f"[transform] sql_file {self.sql_file}"

    def query(self) -> str:
        """Return the query. Raises ConfigError if its file can't be read."""
        if self.sql_file is None:
            return self.sql or ""
        try:
            return Path(self.sql_file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{self.key} can't be read", why=why or "", next="correct [transform] sql_file") from None


class SinkSection(Section):
    """Options of every sink, `[sinks.NAME]`. All other keys in its table are the backend's."""

    backend: str = Field(examples=["files"])
    """The name of an installed backend: `exactsink backends` lists them."""
    columns: tuple[str, ...] = Field(default=(), examples=[["id", "amount"]])
    """The columns that the sink gets. Default: all."""
    where: str | None = Field(default=None, min_length=1, examples=["amount > 0"])
    """A SQL condition. The sink gets only the rows for which the condition is true."""
    distribution: Annotated[int, Field(ge=1, strict=True)] | Annotated[str, Field(strict=True)] = "none"
    """How Spark splits an epoch into partitions: `none` (as the frame is), a number of partitions, or `hash(column,
    ...)`. Without a `route`, all sinks share one frame, so they share one `distribution`: set it in one sink, or the
    same value in several."""
    max_participants: Annotated[int, Field(ge=1)] | None = None
    """The highest number of partitions, and so of this sink's participants, in an epoch. exactsink merges partitions if
    there are more. If sinks share a frame, the smallest of their values counts."""
    after: Annotated[_Names, BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)] = ()
    """The sinks that must commit an epoch before this sink does (one name needs no list). Use it if rows here refer to
    rows there, for example by a foreign key."""
    epoch_column: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        default=None, examples=["epoch"]
    )
    """The name of a BIGINT column that exactsink adds to the rows, with the epoch's number, so that readers can read
    all sinks up to one epoch. Not for a quarantine, and not for Kafka with `value_format = "columns"`."""
    on_bad_row: Literal["stop", "quarantine"] = "stop"
    """How to treat a row that the target can't hold. `stop`: the job stops and names the row; for most rows before the
    decision, and after it for rules that only a commit can check. `quarantine`: this row goes into the sink that
    `quarantine` names, in the same epoch, and all others go into this sink."""
    quarantine: str | None = None
    """The sink of this job that gets the bad rows, in the columns `id`, `sink`, `epoch`, `reason` and `row` (JSON)."""
    quarantine_at_most: Annotated[int, Field(ge=1)] = 1000
    """How many rows of an epoch may go to the quarantine. One more stops the job, as with `stop`."""

    @field_validator("distribution")
    @classmethod
    def _known_distribution(cls, value: int | str) -> int | str:
        if isinstance(value, str) and not _DISTRIBUTION.fullmatch(value):
            raise ValueError('a distribution is "none", a number of partitions, or "hash(column, ...)"')
        return value

    @model_validator(mode="after")
    def _quarantine_is_named(self) -> SinkSection:
        if (self.on_bad_row == "quarantine") != (self.quarantine is not None):
            raise ValueError('give on_bad_row = "quarantine" and quarantine = "SINK" together')
        if self.quarantine is None and "quarantine_at_most" in self.model_fields_set:
            raise ValueError("quarantine_at_most bounds the rows that go to a quarantine, and the sink has none")
        return self


class JobConfig(Section):
    """A whole job, as in its file. `sinks` has the core options, `options` each backend's own, unchecked."""

    job: JobSection
    spark: SparkSection = SparkSection()
    source: SourceSection | None = None
    transform: TransformSection | None = None
    observe: ObserveSection = ObserveSection()
    sinks: Mapping[_Name, SinkSection] = Field(min_length=1)
    options: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict, exclude=True, repr=False)
    _file: str | None = PrivateAttr(None)

    def read_from(self, path: str) -> None:
        """Remember the file of this config, because messages name commands for it."""
        self._file = path

    @property
    def file(self) -> str | None:
        """The path of the job's file, as the caller gave it; None for a config made in Python."""
        return self._file

    @model_validator(mode="after")
    def _one_transform(self) -> JobConfig:
        if self.transform is not None and self.job.transform is not None:
            raise ValueError("use [transform] or [job] transform, not both: a Python transform can call spark.sql")
        return self

    @property
    def checkpoint(self) -> AnyPath:
        """The checkpoint's place. In a store it has fsspec's name, so that s3a:// and s3:// are one place."""
        return path_of(self.job.checkpoint)

    @property
    def history(self) -> AnyPath:
        """The place of this job's journal, state and staged rows: beside the checkpoint, never inside it."""
        return self.checkpoint.with_name(self.checkpoint.name + ".exactsink")

    @property
    def staging(self) -> AnyPath:
        return self.history / "staging" if self.job.staging is None else path_of(self.job.staging)


def _object_url(value: str) -> str:
    """Return a store's URL for Spark. Refuse a URL that Hadoop and fsspec would read differently."""
    found = _OBJECT_URL.fullmatch(value)
    if found is not None and ":" in found["store"].partition("@")[0] and "@" in found["store"]:
        raise ValueError("no secrets in URLs: give them by the environment, a profile or a role")
    path = found["path"].rstrip("/") if found is not None else ""
    if found is None or not found["store"] or not path:
        raise ValueError("a URL of an object store is scheme://bucket/path")
    if _UNUSUAL.search(path) or {"", ".", ".."} & set(path.split("/")):
        raise ValueError("a URL's path has plain names between its slashes, without ? # * [ ] and backslashes")
    return f"{found['scheme']}://{found['store']}/{path}"


def _seconds(duration: str) -> float:
    count, unit = duration.split()
    return float(count) * _SECONDS[unit.removesuffix("s")]
