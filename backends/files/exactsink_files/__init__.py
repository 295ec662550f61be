"""The `files` backend: Parquet, JSON lines or CSV, in a folder or in S3; an epoch's files appear when it is decided.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `backend`: the options, and what the backend says of itself. Formats, partition folders and sizes are shared with
  other stores of files: `exactsink.toolkit.tabular`.
- `writer`: a task attempt's hidden files, sealed by its vote; `upload_files`: the same as parts of uploads to S3.
- `votes`: what it says.
- `committer`: its files get their final names, or go; what the sweep finds. `places` is what it asks of where they are:
  `folders` with `links` on a file system or `renames` on an SFTP server, `uploads` in S3.
- `s3`: the calls on a store; `preflight_s3` tries them.
- `marks`: what the target's folder proves of it, and of the journal that feeds the folder.
- `manifests`: which files each epoch has, folded by the hundred.
- `snapshots`: the exact files of an epoch, for any reader; `commands`: the same for a shell.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls
from exactsink_files.snapshots import Snapshot, snapshot

__all__ = ["Files", "Snapshot", "snapshot"]

__getattr__ = sink_calls("files", Files="exactsink_files.backend:FilesOptions")
