"""What the `files` backend finds out of a bucket before the first row."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import AlreadyCommitted, Committed, JobContext, Lost
from exactsink_files.s3 import S3 as Calls
from exactsink_files.snapshots import snapshot
from tests.integration.files_s3.lake import Lake
from tests.integration.s3.calls import RIGHTS
from tests.integration.s3.calls import Calls as Requests
from tests.servers.s3 import SECRET
from tests.servers.s3_proxy import S3Proxy
from tests.servers.s3_rules import COMPLETE, ForgetsUploads, Trap
from tests.unit.files_sink import DAYS, EPOCH, SCHEMA, files


@pytest.mark.parametrize(
    ("given", "message", "fix"),
    [
        ({"bucket": "nobody-has-this-one"}, "the bucket does not exist", "make the bucket"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "signature", "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "", "endpoint_url": "http://127.0.0.1:9/"}, "credentials", "AWS_PROFILE"),
    ],
)
def test_preflight_says_what_to_do(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str, fix: str
) -> None:
    for name in given.keys() & os.environ.keys():
        monkeypatch.setenv(name, given[name]) if given[name] else monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    options = {} if "bucket" in given else {"endpoint_url": given.get("endpoint_url", f"{lake.direct.endpoint}/")}
    other = files(f"s3://{given.get('bucket', 'bucket')}/lake", **options)  # type: ignore[arg-type]
    [found] = other.check()
    assert found.severity == "error"
    assert message in found.message
    assert fix in found.fix
    assert SECRET not in found.message


SIX_DAYS = {"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 6}}


@pytest.mark.parametrize(
    ("rules", "severity"),
    [
        ([], None),
        ([{"Status": "Enabled", "Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}], None),
        ([{"Status": "Disabled", "Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}], None),
        ([SIX_DAYS | {"Prefix": "other/"}], None),
        ([SIX_DAYS | {"Prefix": "la"}], "error"),
        (PermissionError(13, "Access Denied"), "warning"),
    ],
)
def test_preflight_compares_the_lifecycle_with_the_longest_pause(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rules: Any, severity: str | None
) -> None:
    def lifecycle(self: Calls) -> Any:
        if isinstance(rules, Exception):
            raise rules
        return rules

    monkeypatch.setattr(Calls, "lifecycle", lifecycle)
    ctx = JobContext("job", "sink", staging="", longest_pause_seconds=7 * 86_400)
    found = list(lake.sink().backend.committer(ctx).check(SCHEMA, None))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize("operation", RIGHTS)
def test_preflight_tries_each_call_and_names_the_one_that_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    Requests(monkeypatch).refuse(operation, 403, "AccessDenied")
    [found] = lake.sink().check()
    if RIGHTS[operation] == "s3:GetLifecycleConfiguration":
        assert (found.severity, RIGHTS[operation] in found.fix) == ("warning", True)
    else:
        assert (found.severity, operation in found.message, RIGHTS[operation] in found.fix) == ("error", True, True)


def test_preflight_names_a_call_that_a_store_does_not_have(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    Requests(monkeypatch).refuse("ListMultipartUploads", 501, "NotImplemented")
    [found] = lake.sink().check()
    assert "ListMultipartUploads" in found.message
    assert found.fix.startswith("use a store that has this call, for example AWS S3")


_ABORTS = ("keeps an upload that was aborted", "drops aborted uploads")


@pytest.mark.parametrize(
    ("call", "answer", "lacks"),
    [
        ("head", "an object", [("shows an upload before it is completed", "hides unfinished uploads")]),
        ("parts", [], [("does not list an upload's parts", "lists the parts of an upload"), _ABORTS]),
        ("abort", None, [_ABORTS]),
    ],
)
def test_preflight_names_each_lack_of_a_store_once_and_one_that_has_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, call: str, answer: object, lacks: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(Calls, call, lambda *given: answer)
    found = [(finding.message, finding.fix) for finding in lake.sink().check()]
    there = "for example AWS S3, MinIO or versitygw"
    assert found == [(f"{lake.url}: the store {lack}", f"use a store that {wanted}, {there}") for lack, wanted in lacks]


def test_a_sinks_calls_are_tried_by_preflight_and_their_rights_are_on_the_page(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch)
    sink, voted = lake.two_files(participants=3)
    sink.begin(DAYS.empty_table()).abort()
    lake.remove_uploads(voted[0])
    assert [type(outcome) for outcome in sink.commit_marked(EPOCH, voted[:2])] == [Lost, Committed]
    assert sink.commit_marked(EPOCH, voted[1:2]) == [AlreadyCommitted()]
    sink.abort(*sink.listed())
    sink.with_committer(lambda committer: committer.trim_marks())
    assert len(snapshot(lake.url).files) == 2
    used, before = set(requests.sent), len(requests.sent)
    assert sink.check(DAYS) == []
    tried = set(requests.sent[before:])
    assert (used - tried, tried - RIGHTS.keys()) == (set(), set())
    page = (Path(__file__).parents[3] / "docs/how-to/object-stores-files.md").read_text()
    assert set(re.findall("s3:[A-Z][A-Za-z]+", page)) == {RIGHTS[operation] for operation in tried}


@pytest.mark.parametrize("forgets", [False, True])
def test_preflight_whose_answers_are_lost_goes_on(lake: Lake, proxy: S3Proxy, forgets: bool) -> None:
    cuts = [proxy.set(Trap(COMPLETE)), proxy.set(Trap("^PUT .*/try-[0-9a-f]+$"))]
    if forgets:
        proxy.set(ForgetsUploads())
    assert lake.sink(endpoint_url=proxy.endpoint).check() == []
    assert all(cut.sprung.is_set() for cut in cuts)
    assert (lake.names(), lake.uploads()) == ([], 0)
