"""Watch a job until Ctrl-C, on a terminal or as a page."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress

from exactsink.contract import ConfigError
from exactsink.watch.seen import Seen
from exactsink.watch.web import PageServer, place_of

__all__ = ["watch_job"]


def watch_job(look: Callable[[], Seen], web: str | None, every: float) -> None:
    """Show the state every `every` seconds, or later. Raises ConfigError before the first."""
    with suppress(KeyboardInterrupt):
        if web is None:
            _on_terminal(look, every)
            return
        with PageServer(place_of(web), look, every) as server:
            print(f"{server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever()


def _on_terminal(look: Callable[[], Seen], every: float) -> None:
    try:
        terminal = importlib.import_module("exactsink.watch.terminal")
    except ModuleNotFoundError as error:
        fix = "pip install 'exactsink[watch]'; or serve a page: exactsink watch JOB.toml --web 0"
        raise ConfigError("watch needs rich on a terminal", why=str(error), next=fix) from None
    terminal.watch_terminal(look, every)
