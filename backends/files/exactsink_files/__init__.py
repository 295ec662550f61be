"""The `files` backend: Parquet, JSON lines or CSV in a folder, each epoch's files appearing when it is decided.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `backend`: the options, and what the backend says of itself. Formats, partition folders and sizes are shared with
  other stores of files: `exactsink.toolkit.tabular`.
- `writer`: a task attempt's hidden files, sealed by its vote.
- `votes`: what it says.
- `committer`: its files get their final names, or go; what the sweep finds.
- `marks`: what the target's folder proves of it, and of the journal that feeds the folder.
- `manifests`: which files each epoch has, folded by the hundred; `changes`: what took their place.
- `snapshots`: the exact files of an epoch, for any reader; `compaction`: fewer of them; `commands`: both for a shell.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink_files.snapshots import Snapshot, snapshot

__all__ = ["Snapshot", "snapshot"]
