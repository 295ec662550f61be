"""Turn errors of object stores and their libraries into the OSError that a local file system would raise."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["AWAY", "is_away", "is_taken", "store_code", "store_errors"]

AWAY = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Statuses by which a store says that it can't answer now. 0 means that no answer came."""
_UNANSWERED = (
    *("ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError", "HTTPException"),
    *("NoValidConnectionsError", "ResponseParserError", "TimeoutError", "gaierror"),
)
"""The errors of libraries that got no answer, or only a part of one."""
_LIBRARIES = (
    *("adlfs", "aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google"),
    *("paramiko", "requests", "s3fs", "urllib3"),
)
_NO_CREDENTIALS = (
    *("CredentialRetrievalError", "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError"),
    *("ProfileNotFound", "SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError"),
)
_REFUSED = frozenset({401, 403})
_TAKEN = frozenset({"PreconditionFailed", "412"})


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn an error of a store's library into an OSError.

    FileNotFoundError means that the name does not exist; for a missing bucket it is ENODEV. PermissionError means that
    credentials are refused or missing.
    """
    try:
        yield
    except FileNotFoundError as error:
        if store_code(error) == "NoSuchBucket":
            raise OSError(errno.ENODEV, f"the bucket does not exist: {error}", url) from error
        raise FileNotFoundError(errno.ENOENT, str(error), url) from error
    except OSError as error:
        if isinstance(error, PermissionError) or _status(error.__cause__) in _REFUSED:
            text = f"{store_code(error)}: {error}".removeprefix(": ")
            raise PermissionError(errno.EACCES, text, url) from error
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        if type(error).__name__ in _NO_CREDENTIALS:
            raise PermissionError(errno.EACCES, str(error), url) from error
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


def is_taken(error: OSError) -> bool:
    """Return whether a create failed because its name is taken. Not every server says which condition failed."""
    return isinstance(error, FileExistsError) or store_code(error) in _TAKEN


def is_away(error: OSError) -> bool:
    """Return whether the store can't answer now, so that the same call may succeed later."""
    names = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    return not names.isdisjoint(_UNANSWERED) if (status := _status(error)) is None else status in AWAY


def store_code(error: BaseException | None) -> str:
    """Return the store's own code for an error, empty if its library does not keep the code."""
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException | None) -> Any:
    return _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def _answer(error: BaseException | None) -> Mapping[str, Any]:
    """Return the answer of the store that its library keeps in an error. Empty if it keeps none."""
    answers = (getattr(each, "response", None) for each in _causes(error))
    return next((found for found in answers if isinstance(found, dict)), {})


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
