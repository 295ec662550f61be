"""What `check` finds of a bucket on Azure and Google Cloud Storage before the first row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactsink.contract import JobContext, Retryable
from exactsink.toolkit.storage import ObjectPath, store_findings
from tests.integration.clouds.cloud import Cloud, Gives, buckets, everywhere
from tests.servers.s3_rules import Answer
from tests.unit.files_sink import SCHEMA, files


@buckets
@pytest.mark.parametrize("wrong", ["nothing", "bucket", "credentials", "listing", "pause"])
def test_preflight_tries_the_store_and_leaves_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    url = cloud.url.replace("://lake", "://nobody") if wrong == "bucket" else cloud.url
    if wrong == "credentials":
        cloud.set(Gives(Answer.error(403, "AuthorizationFailure")))
    if wrong == "listing":
        monkeypatch.setattr(ObjectPath, "names", lambda path: [])
    ctx = JobContext("job", "sink", staging="", longest_pause_seconds=(8 if wrong == "pause" else 7) * 86_400)
    found = list(files(url).backend.committer(ctx).check(SCHEMA, None))  # type: ignore[arg-type]
    fixes = {"bucket": "make the bucket", "credentials": "give ", "listing": "itself", "pause": "longest_pause"}
    expected = [] if wrong == "nothing" or (wrong, cloud.kind.scheme) == ("pause", "gs") else [fixes[wrong]]
    assert [fix for fix in expected if fix not in found[0].fix] == []
    assert (len(found), cloud.names()) == (len(expected), [])


@everywhere
@pytest.mark.parametrize("away", [503, 429, None])
def test_a_preflight_that_meets_a_store_that_is_away_is_tried_again_later(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, away: int | None
) -> None:
    monkeypatch.setattr("exactsink.toolkit.storage.cloud_files._PAUSES", (0.01,) * 5)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    place = ObjectPath.of(f"{cloud.url}/journal", skip_instance_cache=True)
    sink = cloud.sink()
    cloud.set(Gives(Answer.error(away, "SlowDown") if away else None))
    address = "check the store, and endpoint_url" if cloud.kind.scheme == "s3" else ""
    for check, fix in ((sink.check, address), (lambda: list(store_findings(place, "the journal", "", large=True)), "")):
        with pytest.raises(Retryable, match=f"(?s)can't be written.*{fix}"):
            check()


RULES: dict[str, tuple[dict[str, Any], int]] = {
    "6 days, all": ({"action": {"type": "Delete"}, "condition": {"age": 6}}, 1),
    "6 days, ours": ({"action": {"type": "Delete"}, "condition": {"age": 6, "matchesPrefix": ["lake/_exact"]}}, 1),
    "6 days, others": ({"action": {"type": "Delete"}, "condition": {"age": 6, "matchesPrefix": ["log/"]}}, 0),
    "7 days": ({"action": {"type": "Delete"}, "condition": {"age": 7}}, 0),
    "colder": ({"action": {"type": "SetStorageClass", "storageClass": "COLDLINE"}, "condition": {"age": 1}}, 0),
}


@pytest.mark.parametrize("emulator", ["gcs"], indirect=True)
@pytest.mark.parametrize("rule", RULES)
def test_preflight_compares_a_buckets_rules_with_the_longest_pause(cloud: Cloud, rule: str) -> None:
    given, findings = RULES[rule]
    body = json.dumps({"lifecycle": {"rule": [given]}}).encode()
    cloud.set(Gives(Answer(200, body, [("Content-Type", "application/json")]), r"^GET /storage/v1/b/[^/?]+\?"))
    ctx = JobContext("job", "sink", staging="", longest_pause_seconds=7 * 86_400)
    found = list(files(cloud.url).backend.committer(ctx).check(SCHEMA, None))  # type: ignore[arg-type]
    assert ["after 6 days, but the job may pause for 7" in each.message for each in found] == [True] * findings
