"""The parts of the page about the command line that no docstring holds: examples, and a table."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXAMPLES", "NOTES"]

EXAMPLES: Mapping[str, str] = {
    "init": "exactsink init orders --from kafka --to postgres --to files",
    "bench": "exactsink bench --job job.toml --rows 20000 --out figures",
    "check": "exactsink check --no-spark job.toml",
    "run": "exactsink -v --log-format json run job.toml",
    "watch": "exactsink watch job.toml --web 8080",
    "status": "exactsink status job.toml --json",
    "stop": "exactsink stop job.toml --within 120",
    "barrier": "exactsink barrier job.toml --epoch 40 --timeout 60",
    "verify": "exactsink verify job.toml --epochs 40.. --deep",
    "indoubt explain": "exactsink indoubt explain job.toml 1f0c9a3e",
    "indoubt resolve": "exactsink indoubt resolve job.toml --epoch 40 --sink table --as lost --reason TEXT --yes",
    "recover": "exactsink recover job.toml --sink table --yes",
    "rebase": "exactsink rebase job.toml --sink lake=40 --sink table=39 --batch 40 --reason 'restored table' --yes",
    "adopt": "exactsink adopt job.toml --reason 'checkpoint lost'",
    "conformance": "exactsink conformance files --scenario other-process",
    "files read-list": "exactsink files read-list job.toml --at 40",
}
"""An example of each command with arguments that a reader might not find by the options alone."""

NOTES: Mapping[str, str] = {
    "recover": """\
| command | settles | acts |
| --- | --- | --- |
| `recover JOB.toml` | all sinks | at once; with `--dry-run` not at all |
| `recover JOB.toml --sink NAME` | this sink, and the sinks that must commit before it (`after`) | only with `--yes` |
| `recover JOB.toml --ref REF` | this participant; if it is decided, its sink's whole decision | only with `--yes` |

With `--sink` or `--ref`, `--sweep-token` needs `--reason`.
""",
}
"""Text after the options of a command."""
