"""The `files` backend: Parquet, JSON lines or CSV, in a folder or a store; an epoch's files appear when it is decided.

The modules, in the order in which a row, and then its vote, passes them:

- `plugin`: announces the backend.
- `backend`: the options and traits. Formats, partition folders and sizes are shared with other backends that write
  files: `exactsink.toolkit.tabular`.
- `writer`: a task attempt's hidden files, sealed by its vote; `upload_files`: the same as parts of uploads to a store.
- `votes`: the content of a vote.
- `committer`: gives files their final names, or removes them, and lists them for the sweep. `places` is its interface
  to the files' place: `folders` with `links` on a file system or `renames` on a server, `uploads` in a store.
- `stores`: the interface to an object store, with `s3`, `gcs` and `azure`; `preflight_stores` tries their calls.
- `marks`: the marks in the target's folder: which journal writes to it, and up to which epoch.
- `manifests`: the files of each epoch, merged into one file per 100 epochs.
- `snapshots`: the exact files of an epoch, for any reader; `commands`: the same for a shell.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls
from exactsink_files.snapshots import Snapshot, snapshot

__all__ = ["Files", "Snapshot", "snapshot"]

__getattr__ = sink_calls("files", Files="exactsink_files.backend:FilesOptions")
