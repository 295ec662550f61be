"""The contract, version 1: all that a plugin may import, beside `exactsink.toolkit`.

Values that travel between driver, executors and journal; errors by what the caller does next; the backend's interface
and two easier roads to it; the hooks that announce a plugin.
"""

from typing import TYPE_CHECKING, Any

from exactsink.contract.backend import CONTRACT_VERSION, Backend, BackendOptions, Committer, JobSinks, OpenJob, Writer
from exactsink.contract.durable import (
    NO_HARD_LINKS,
    DurableFile,
    SyncFailed,
    create_file,
    file_names,
    file_sha256,
    file_times,
    make_folder,
    new_file,
    new_folder,
    remove_files,
    replace_file,
    storage_errors,
    sync_folders,
)
from exactsink.contract.errors import (
    EXIT_BUG,
    ConfigError,
    ContractError,
    ExactsinkError,
    Fatal,
    Fenced,
    ForeignError,
    InDoubtError,
    LineageError,
    PreflightError,
    Refused,
    Retryable,
)
from exactsink.contract.idempotent import IdempotentBackend, Version
from exactsink.contract.model import (
    ENTRY_POINT_GROUP,
    NAME_PATTERN,
    AlreadyCommitted,
    Audit,
    BackendSpec,
    Committable,
    Committed,
    Event,
    FileMode,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
)
from exactsink.contract.object_calls import s3_pages
from exactsink.contract.object_checks import refused_store, store_findings
from exactsink.contract.object_errors import store_code, store_errors
from exactsink.contract.object_file import ObjectFile
from exactsink.contract.objects import AnyPath, ObjectPath, is_object_url, object_scheme, path_of
from exactsink.contract.staged import Applier, Marker, MarkerCommitter, StagedBackend, StagedCommitter, StagingBackend
from exactsink.contract.validation import BatchValidator, Validator

if TYPE_CHECKING:
    from exactsink.contract.hooks import HookSpecs, hookimpl

__all__ = [
    "CONTRACT_VERSION",
    "ENTRY_POINT_GROUP",
    "EXIT_BUG",
    "NAME_PATTERN",
    "NO_HARD_LINKS",
    "AlreadyCommitted",
    "Audit",
    "AnyPath",
    "Applier",
    "Backend",
    "BackendOptions",
    "BackendSpec",
    "BatchValidator",
    "Committable",
    "Committed",
    "Committer",
    "ConfigError",
    "ContractError",
    "DurableFile",
    "Event",
    "FileMode",
    "ExactsinkError",
    "Fatal",
    "Fenced",
    "Finding",
    "ForeignError",
    "HookSpecs",
    "IdempotentBackend",
    "InDoubt",
    "InDoubtError",
    "JobContext",
    "JobSinks",
    "LineageError",
    "Lost",
    "Mark",
    "Marker",
    "MarkerCommitter",
    "ObjectFile",
    "ObjectPath",
    "OpenJob",
    "Outcome",
    "Prepared",
    "Standing",
    "PreflightError",
    "Refused",
    "Retryable",
    "StagedBackend",
    "StagedCommitter",
    "StagingBackend",
    "SyncFailed",
    "Traits",
    "Txn",
    "Undecided",
    "Unknown",
    "Validator",
    "Version",
    "Writer",
    "create_file",
    "file_names",
    "file_sha256",
    "file_times",
    "hookimpl",
    "is_object_url",
    "make_folder",
    "new_file",
    "new_folder",
    "object_scheme",
    "path_of",
    "refused_store",
    "remove_files",
    "replace_file",
    "s3_pages",
    "storage_errors",
    "store_code",
    "store_errors",
    "store_findings",
    "sync_folders",
]


def __getattr__(name: str) -> Any:
    """Import the hooks, and so pluggy, only for plugins and those who list them: executors need neither."""
    if name in ("HookSpecs", "hookimpl"):
        from exactsink.contract import hooks

        return getattr(hooks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
