"""A job that has all in a bucket: checkpoint, journal, state, staged rows, a Parquet lake, JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.e2e.jobs import SPARK, THREE_SINKS, TWO_FILES, leftovers, write_job, wrong_rows
from tests.servers.s3 import S3Server, own_s3
from tests.servers.s3_proxy import S3Proxy, cutting_s3
from tests.servers.s3a_jars import s3a_conf


class Bucket:
    """A test's own bucket, on a server of its own that it may stop; the job comes to it by a proxy.

    The server keeps objects as files, so the bucket's parts stand in the test's folder too: links to them.
    """

    def __init__(self, folder: Path, server: S3Server, proxy: S3Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.name = server.new_bucket("e2e")
        self.objects = server.folder / "data" / self.name
        self._folder = folder
        for part in ("lake", "lines", "checkpoint", "checkpoint.exactsink"):
            (folder / part).symlink_to(self.objects / part)

    @property
    def how(self) -> Mapping[str, Any]:
        """How a driver run finds the server."""
        return {"environment": self.proxy.environment}

    def job(self) -> Path:
        """Write the job's file."""
        in_bucket = re.sub(r"\{folder\}/(lake|lines)", rf"s3://{self.name}/\1", THREE_SINKS)
        conf = {f"spark.executorEnv.{name}": value for name, value in self.proxy.environment.items()}
        conf |= s3a_conf(self.proxy)
        spark = SPARK + "".join(f'"{name}" = "{value}"\n' for name, value in conf.items())
        return write_job(
            self._folder, in_bucket, source=TWO_FILES, spark=spark, checkpoint=f"s3a://{self.name}/checkpoint"
        )

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

    def amiss(self) -> Mapping[str, object]:
        """Hold every row of every sink against the source; and what is left behind. Empty when all is well."""
        found: dict[str, object] = dict(wrong_rows(self._folder, {}))
        found |= {"uploads": left} if (left := self.uploads()) else {}
        return found | ({"leftovers": files} if (files := leftovers(self._folder)) else {})


@contextmanager
def own_bucket(folder: Path) -> Iterator[Bucket]:
    """Return a bucket on a server of its own, gone at the end."""
    with own_s3() as server, cutting_s3(server) as proxy:
        yield Bucket(folder, server, proxy)
