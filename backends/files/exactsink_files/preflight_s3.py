"""What a bucket must give before the first row: rights, conditional writes, uploads that stay for as long as a job may.

All is tried for real, with tiny objects below `_exactsink/` that are removed again.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.storage import store_code
from exactsink_files.s3 import S3
from exactsink_files.votes import Part

__all__ = ["store_problems"]

_DAY = 86_400
_DONE = frozenset({"NoSuchUpload", "404", "PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
_NO_RULES = frozenset({"NoSuchLifecycleConfiguration", "NoSuchLifecycle"})
_ELSEWHERE = frozenset(
    {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"})
_GIVE = (
    "give the environment's keys, a profile or a role these rights for {root}: s3:ListBucket, s3:GetObject, "
    "s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts, s3:ListBucketMultipartUploads"
)
_SIGN_IN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or `profile`, or run under a role"


def store_problems(own: S3, root: str, ctx: JobContext) -> Iterator[Finding]:
    """Find out what is missing. `own` has the calls below the target's `_exactsink`."""
    tried = own.key(f"try-{secrets.token_hex(8)}")
    try:
        if why := own.root.why_no_creates():
            yield Finding("error", f"{root}: {why}", "use a store that takes If-None-Match: the marks rely on it")
        try:
            yield from _upload_problems(own, root, tried)
        finally:
            own.delete([tried])
        yield from _lifecycle_problems(own, root, ctx)
    except OSError as error:
        yield _refused(error, root)


def _upload_problems(own: S3, root: str, tried: str) -> Iterator[Finding]:
    """Try to abort an upload, and to complete one; list them as a sweep does, by name and all of the bucket."""
    for completed in (False, True):
        upload = own.create(tried, {})
        try:
            part = own.put_part(tried, upload, 1, b"tried")
            if own.head(tried) is not None:
                yield Finding("error", f"{root}: the store shows an upload before it is completed", "use another store")
            elif completed:
                _complete(own, tried, upload, part)
            else:
                list(own.uploads(tried))
                next(own.uploads(""), None)
                if own.parts(tried, upload) != [part]:
                    yield Finding("error", f"{root}: the store does not list an upload's parts", "use another store")
        finally:
            own.abort(tried, upload)
        if own.parts(tried, upload) is not None:
            yield Finding("error", f"{root}: the store keeps an upload that was aborted", "use another store")


def _complete(own: S3, tried: str, upload: str, part: Part) -> None:
    """Complete an upload, also where the answer was lost: its repeat is refused by some servers."""
    try:
        own.complete(tried, upload, [part])
    except OSError as error:
        if store_code(error) not in _DONE or own.head(tried) is None:
            raise


def _lifecycle_problems(own: S3, root: str, ctx: JobContext) -> Iterator[Finding]:
    """Compare how long the bucket keeps unfinished uploads with how long the job may stand still."""
    pause = ctx.longest_pause_seconds
    try:
        rules = own.lifecycle()
    except OSError as error:
        if store_code(error) in _NO_RULES or error.errno in (errno.ENOSYS,):
            return
        message = f"{root}: the bucket's lifecycle rules can't be read: {error.strerror or error}"
        fix = f"see that no rule aborts multipart uploads within {pause / _DAY:g} days; or allow their reading"
        yield Finding("warning", message, f"{fix} (s3:GetLifecycleConfiguration)")
        return
    for rule in rules:
        days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        if rule.get("Status") == "Enabled" and days is not None and days * _DAY < pause and _concerns(rule, own):
            message = f"{root}: the bucket's rule {rule.get('ID', '')!r} aborts uploads after {days} days"
            fix = f"set it to {-(-pause // _DAY):g} days or more, or the job's longest_pause to {days} days or less"
            yield Finding("error", f"{message}, and the job may pause for {pause / _DAY:g}", fix)


def _concerns(rule: dict[str, object], own: S3) -> bool:
    """Return whether a rule may be about the target: its prefix is one of the target's, or the other way round."""
    chosen = rule.get("Filter") or rule
    assert isinstance(chosen, dict)
    both = chosen.get("And") or chosen
    prefix, here = str(both.get("Prefix") or ""), own.prefix.removesuffix("_exactsink/")
    return here.startswith(prefix) or prefix.startswith(here)


def _refused(error: OSError, root: str) -> Finding:
    """Return what to do about the store's refusal."""
    code = store_code(error)
    if error.errno == errno.ENODEV:
        fix = "make the bucket, or set another path"
    elif code in _ELSEWHERE:
        fix = "set AWS_DEFAULT_REGION, or the profile's region, to the bucket's"
    elif code in _CREDENTIALS or "credentials" in str(error).lower() or "ProfileNotFound" in str(error):
        fix = _SIGN_IN
    elif error.errno == errno.EACCES:
        fix = _GIVE.format(root=root)
    elif error.errno == errno.ENOSYS:
        fix = "use a store that has what is named there"
    else:
        fix = "look at the store, and at endpoint_url or AWS_ENDPOINT_URL"
    return Finding("error", f"{root} can't be used: {_operation(error)}{error.strerror or error}", fix)


def _operation(error: BaseException | None) -> str:
    """Name the call that S3 has refused, where its library says it."""
    while error is not None:
        if name := getattr(error, "operation_name", ""):
            return f"{name}: "
        error = error.__cause__
    return ""
