"""The proxy before the S3 server: each of its rules, as botocore sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from botocore.session import get_session

from tests.servers.s3 import KIND, S3
from tests.servers.s3_proxy import COMPLETE, ForgetsUploads, ListsWholeKeys, S3Proxy, SlowDown, Trap, cutting_s3

pytest_plugins = ("tests.servers.fixtures",)
pytestmark = pytest.mark.skipif(KIND != "versitygw", reason="the answers it changes are versitygw's")

PART = b"x" * (5 << 20)


@pytest.fixture
def proxy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with cutting_s3(s3) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def client(proxy: S3Proxy) -> Any:
    return get_session().create_client("s3", config=Config(retries={"total_max_attempts": 1}))


def started(client: Any, bucket: str, key: str) -> dict[str, Any]:
    """Begin an upload of two parts; return what its Complete takes."""
    upload = {"Bucket": bucket, "Key": key}
    upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
        for number, body in ((1, PART), (2, b"end"))
    ]
    return {**upload, "MultipartUpload": {"Parts": parts}}


def test_a_complete_is_done_and_its_answer_lost_and_the_repeat_is_unknown(proxy: S3Proxy, client: Any) -> None:
    bucket = proxy.new_bucket("proxy")
    complete = started(client, bucket, "a")
    assert client.complete_multipart_upload(**complete)["ETag"]
    assert client.complete_multipart_upload(**complete)["ETag"]  # what this server answers by itself
    cut = proxy.set(Trap(COMPLETE))
    forgets = proxy.set(ForgetsUploads())
    complete = started(client, bucket, "b")
    with pytest.raises(HTTPClientError):
        client.complete_multipart_upload(**complete)
    assert cut.sprung.is_set()
    assert client.get_object(Bucket=bucket, Key="b")["Body"].read() == PART + b"end"
    assert not forgets.sprung.is_set()
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.complete_multipart_upload(**complete)
    assert forgets.sprung.is_set()


def test_slow_down_holds_for_its_times_and_a_callback_comes_before_the_request(proxy: S3Proxy, client: Any) -> None:
    bucket = proxy.new_bucket("proxy")
    slow = proxy.set(SlowDown("^PUT .*/key", 2))
    for sprung in (False, True):
        with pytest.raises(ClientError, match="SlowDown"):
            client.put_object(Bucket=bucket, Key="key", Body=b"slow")
        assert slow.sprung.is_set() is sprung
    seen: list[bool] = []
    proxy.set(Trap("^PUT", before=lambda: seen.append((proxy.folder / "data" / bucket / "key").exists())))
    client.put_object(Bucket=bucket, Key="key", Body=b"good")
    assert seen == [False]
    assert client.get_object(Bucket=bucket, Key="key")["Body"].read() == b"good"


def test_uploads_are_found_by_their_whole_key_only(proxy: S3Proxy, client: Any) -> None:
    bucket = proxy.new_bucket("proxy")
    started(client, bucket, "folder/a")
    found = client.list_multipart_uploads(Bucket=bucket, Prefix="folder/")["Uploads"]
    hides = proxy.set(ListsWholeKeys())
    assert client.list_multipart_uploads(Bucket=bucket, Prefix="folder/a")["Uploads"] == found
    assert not hides.sprung.is_set()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket, Prefix="folder/")
    assert hides.sprung.is_set()
