"""The contract, version 1: the interface that a plugin implements, and the values that it is given.

It has the values that travel between driver, executors and journal, the errors, the interface of a backend, and the
hooks that announce a plugin. A plugin imports from here and from three modules of the toolkit: `roads` (two easier
roads to a backend), `storage` (durable files and objects) and `local_paths`. The others may change in any release.
"""

from typing import TYPE_CHECKING, Any

from exactsink.contract.backend import CONTRACT_VERSION, Backend, BackendOptions, Committer, JobSinks, OpenJob, Writer
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
from exactsink.contract.sink_calls import SinkKeys, sink_calls
from exactsink.contract.validation import BatchValidator, Validator

if TYPE_CHECKING:
    from exactsink.contract.hooks import HookSpecs, hookimpl

__all__ = [
    "CONTRACT_VERSION",
    "ENTRY_POINT_GROUP",
    "EXIT_BUG",
    "NAME_PATTERN",
    "AlreadyCommitted",
    "Audit",
    "Backend",
    "BackendOptions",
    "BackendSpec",
    "BatchValidator",
    "Committable",
    "Committed",
    "Committer",
    "ConfigError",
    "ContractError",
    "Event",
    "FileMode",
    "ExactsinkError",
    "Fatal",
    "Fenced",
    "Finding",
    "ForeignError",
    "HookSpecs",
    "InDoubt",
    "InDoubtError",
    "JobContext",
    "JobSinks",
    "LineageError",
    "Lost",
    "Mark",
    "OpenJob",
    "Outcome",
    "Prepared",
    "Standing",
    "PreflightError",
    "Refused",
    "Retryable",
    "SinkKeys",
    "Traits",
    "Txn",
    "Undecided",
    "Unknown",
    "Validator",
    "Writer",
    "hookimpl",
    "sink_calls",
]


def __getattr__(name: str) -> Any:
    """Import the hooks, and so pluggy, only for plugins and those who list them: executors need neither."""
    if name in ("HookSpecs", "hookimpl"):
        from exactsink.contract import hooks

        return getattr(hooks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
