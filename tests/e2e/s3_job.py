"""A job that has all in a bucket: checkpoint, journal, state, staged rows, a Parquet lake, JSON lines."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.e2e import jobs
from tests.servers.s3 import S3Server, own_s3
from tests.servers.s3_proxy import S3Proxy, cutting_s3
from tests.servers.s3a_jars import s3a_conf


class Bucket:
    """A test's own bucket, on a server of its own that it may stop; the job comes to it by a proxy."""

    def __init__(self, folder: Path, server: S3Server, proxy: S3Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.name = server.new_bucket("e2e")
        self._folder = folder

    @property
    def how(self) -> Mapping[str, Any]:
        """How a driver run finds the server."""
        return {"environment": self.proxy.environment}

    def job(self) -> Path:
        """Write the job's file."""
        return self._job(jobs.TWO_FILES, jobs.SPARK, {})

    def job_on(self, master: str, transform: str, conf: Mapping[str, object], files: int = jobs.PARTICIPANTS) -> Path:
        """Write the file of a job that runs on a cluster: its tasks need nothing but the bucket, for the source too."""
        for path in sorted((self._folder / "source").iterdir()):
            self.client.put_object(Bucket=self.name, Key=f"source/{path.name}", Body=path.read_bytes())
        source = jobs.SOURCE.replace("{folder}", f"s3a://{self.name}").replace("Trigger = 1", f"Trigger = {files}")
        return self._job(source, jobs.SPARK.replace("local[2]", master), conf, transform)

    def _job(self, source: str, spark: str, conf: Mapping[str, object], more: str = "") -> Path:
        in_bucket = re.sub(r"\{folder\}/(lake|lines)", rf"s3://{self.name}/\1", jobs.THREE_SINKS)
        there = {f"spark.executorEnv.{name}": value for name, value in self.proxy.environment.items()}
        there |= s3a_conf(self.proxy)
        spark += "".join(f'"{name}" = "{value}"\n' for name, value in {**there, **conf}.items())
        return jobs.write_job(self._folder, in_bucket, more, source, spark, checkpoint=f"s3a://{self.name}/checkpoint")

    @cached_property
    def client(self) -> Any:
        """What looks from outside: botocore, past the proxy."""
        from botocore.session import Session

        session = Session()
        given = self.server.environment
        session.set_credentials(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        return session.create_client("s3", given["AWS_DEFAULT_REGION"], endpoint_url=self.server.endpoint)

    def uploads(self) -> list[tuple[str, str]]:
        """List the unfinished uploads, key and id."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return sorted((upload["Key"], upload["UploadId"]) for upload in found)

    def parts(self, upload: tuple[str, str]) -> int:
        """Count the parts of an unfinished upload that have arrived."""
        key, number = upload
        return len(self.client.list_parts(Bucket=self.name, Key=key, UploadId=number).get("Parts", ()))

    def objects(self, *prefixes: str) -> Mapping[str, tuple[str, object]]:
        """List all objects below these prefixes: the ETag of each, and when it was written."""
        pages = self.client.get_paginator("list_objects_v2")
        listed = [page for prefix in prefixes for page in pages.paginate(Bucket=self.name, Prefix=f"{prefix}/")]
        return {
            each["Key"]: (each["ETag"], each["LastModified"]) for page in listed for each in page.get("Contents", ())
        }

    def copy(self) -> None:
        """Put what the bucket has now into the test's folder, as files."""
        parts = ("lake", "lines", "checkpoint.exactsink")
        for part in parts:
            shutil.rmtree(self._folder / part, ignore_errors=True)
        for key in self.objects(*parts):
            path = self._folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def epochs(self) -> float:
        """How many epochs the lake shows."""
        self.copy()
        return jobs.in_lake(self._folder).total() / jobs.ROWS_AN_EPOCH

    def amiss(self) -> Mapping[str, object]:
        """Hold every row of every sink against the source; and what is left behind. Empty when all is well."""
        self.copy()
        found: dict[str, object] = dict(jobs.wrong_rows(self._folder, {}))
        found |= {"uploads": left} if (left := self.uploads()) else {}
        return found | ({"leftovers": files} if (files := jobs.leftovers(self._folder)) else {})


@contextmanager
def own_bucket(folder: Path) -> Iterator[Bucket]:
    """Return a bucket on a server of its own, gone at the end."""
    with own_s3() as server, cutting_s3(server) as proxy:
        yield Bucket(folder, server, proxy)
