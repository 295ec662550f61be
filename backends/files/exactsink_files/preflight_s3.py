"""Check S3's lifecycle rules for unfinished uploads, and name the fix of its refusals."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.storage import store_code

__all__ = ["lifecycle_problems", "remedy_of"]

_DAY = 86_400
_NO_RULES = frozenset({"NoSuchLifecycleConfiguration", "NoSuchLifecycle"})
_ELSEWHERE = ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"})
_GIVE = (
    "give the environment's keys, a profile or a role these rights for {root}: s3:ListBucket, s3:GetObject, "
    "s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts, s3:ListBucketMultipartUploads"
)
_SIGN_IN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or `profile`, or run under a role"


def lifecycle_problems(
    lifecycle: Callable[[], list[dict[str, Any]]], prefix: str, root: str, ctx: JobContext
) -> Iterator[Finding]:
    """Check that the bucket keeps unfinished uploads for the job's longest pause."""
    pause = ctx.longest_pause_seconds
    try:
        rules = lifecycle()
    except OSError as error:
        if store_code(error) in _NO_RULES or error.errno in (errno.ENOSYS,):
            return
        message = f"{root}: the bucket's lifecycle rules can't be read: {error.strerror or error}"
        fix = f"check that no rule aborts multipart uploads within {pause / _DAY:g} days; or grant the right to read"
        yield Finding("warning", message, f"{fix} them (s3:GetLifecycleConfiguration)")
        return
    for rule in rules:
        days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        if rule.get("Status") == "Enabled" and days is not None and days * _DAY < pause and _concerns(rule, prefix):
            message = f"{root}: the bucket's rule {rule.get('ID', '')!r} aborts uploads after {days} days"
            fix = f"set it to {-(-pause // _DAY):g} days or more, or the job's longest_pause to {days} days or less"
            yield Finding("error", f"{message}, but the job may pause for {pause / _DAY:g}", fix)


def _concerns(rule: dict[str, Any], target: str) -> bool:
    """Return whether a rule may concern the target: one of the two prefixes begins with the other."""
    chosen = rule.get("Filter") or rule
    both = chosen.get("And") or chosen
    prefix, here = str(both.get("Prefix") or ""), target.removesuffix("_exactsink/")
    return here.startswith(prefix) or prefix.startswith(here)


def remedy_of(error: OSError, root: str) -> str:
    """Return the fix for a refusal by S3."""
    code = store_code(error)
    if code in _ELSEWHERE:
        return "set AWS_DEFAULT_REGION, or the profile's region, to the bucket's"
    if code in _CREDENTIALS or "credentials" in str(error).lower() or "ProfileNotFound" in str(error):
        return _SIGN_IN
    if error.errno == errno.EACCES:
        return _GIVE.format(root=root)
    return "check the store, and endpoint_url or AWS_ENDPOINT_URL"
