"""`exactsink schema`: print the JSON schema of a job's file, with the options of the installed backends."""

from __future__ import annotations

from pathlib import Path

import click

from exactsink.cli.options import command
from exactsink.contract import ConfigError
from exactsink.job.config.schema import schema_text

__all__ = ["schema"]


@command()
@click.option("--output", metavar="FILE", type=click.Path(dir_okay=False), help="File to write; by default stdout.")
def schema(output: str | None) -> None:
    """Print the JSON schema of a job's file, with which an editor completes and checks the file."""
    if output is None:
        print(schema_text(), end="")
        return
    try:
        Path(output).write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} can't be written", why=str(error.strerror), next="name another file") from None
    print(f"wrote {output}\n  next: #:schema {output} as the first line of a job's file beside it")
