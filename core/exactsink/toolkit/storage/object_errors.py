"""Turn errors of object stores and their libraries into the OSError that a local file system would raise."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_taken", "store_code", "store_errors"]

_LIBRARIES = frozenset(
    [
        *("adlfs", "aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google"),
        *("paramiko", "requests", "s3fs", "urllib3"),
    ]
)
_NO_CREDENTIALS = frozenset(
    [
        *("CredentialRetrievalError", "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError"),
        *("ProfileNotFound", "SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError"),
    ]
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
        if isinstance(error, PermissionError) or _status(error) in _REFUSED:
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


def store_code(error: BaseException | None) -> str:
    """Return the store's own code for an error, empty if its library does not keep the code."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return str(response["Error"].get("Code", ""))
        error = error.__cause__
    return ""


def _status(error: BaseException) -> int:
    response = getattr(error.__cause__, "response", None)
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(response, dict) else 0
