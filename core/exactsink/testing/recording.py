"""Record the work that today's release prepares, so that later releases can prove that they still commit it.

An author calls `record` once for each format of a payload, and keeps the texts in a file beside the target's module, as
`{name: [recording, ...]}`. `previous` then returns `recorded(file, name, folder)`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exactsink import __version__
from exactsink.contract import Committable, Txn
from exactsink.testing.context import Context
from exactsink.testing.processes import ask
from exactsink.testing.target import ConformanceTarget

__all__ = ["record", "recorded"]

_FOLDER = "{folder}"
_TOKEN = "5eed5eed5eed"


def record(target: ConformanceTarget, folder: Path) -> str:
    """Prepare two participants of three rows, and return as JSON their committables and the files that they made.

    Use it if the prepared work is files below the target's folder or in staging; for a server, keep statements instead.
    `folder` is empty. It forks: call it from a plain script, which has no threads.
    """
    context = Context(target, folder)
    session = context.session(1, _TOKEN)
    before = set(context.place.rglob("*"))
    committables = session.prepare(0, context.rows([3, 3])[0], run=ask)
    made = sorted(path for path in context.place.rglob("*") if path not in before and path.is_file())
    files = {str(path.relative_to(context.place)): base64.b64encode(path.read_bytes()).decode() for path in made}
    body = {"release": __version__, "files": files, "committables": [_plain(c, context.place) for c in committables]}
    return json.dumps(body, indent=1)


def recorded(path: Path, name: str, folder: Path) -> list[Committable]:
    """Copy one target's recorded files below its folder, and return the recorded committables."""
    recordings = json.loads(path.read_text())[name]
    return [committable for recording in recordings for committable in _replay(recording, folder)]


def _replay(body: Mapping[str, Any], folder: Path) -> list[Committable]:
    """Copy the recorded files below a target's folder."""
    for name, data in body["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    return [_committable(fields, folder) for fields in body["committables"]]


def _plain(committable: Committable, folder: Path) -> dict[str, Any]:
    return {
        "txn": committable.txn.id,
        "rows": committable.rows,
        "version": committable.version,
        "store_ref": committable.store_ref,
        "payload": committable.payload.decode("utf-8", "surrogateescape").replace(str(folder), _FOLDER),
    }


def _committable(fields: dict[str, Any], folder: Path) -> Committable:
    txn = Txn.parse(fields["txn"])
    assert txn is not None, f"{fields['txn']} is not a participant's id"
    payload = fields["payload"].replace(_FOLDER, str(folder)).encode("utf-8", "surrogateescape")
    return Committable(txn, fields["rows"], payload, fields["version"], store_ref=fields["store_ref"])
