"""`exactsink watch`: what a look knows of a job, on a terminal of any width and over HTTP. It changes nothing."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.conftest import Ended
from tests.unit.two_sinks import Shop

from exactsink.cli.opened import Opened
from exactsink.contract import ConfigError, Event
from exactsink.job.history import JobHistory
from exactsink.watch import recent
from exactsink.watch.recent import Recent, recent_periods
from exactsink.watch.seen import Seen, Watched
from exactsink.watch.terminal import shown
from exactsink.watch.web import PageServer, place_of

Command = Callable[..., Ended]


def look(shop: Shop) -> Seen:
    opened = Opened.of(shop.file)
    with closing(opened.operator()) as operator:
        return Watched(opened.history, opened.sinks, operator).look()


def files(shop: Shop) -> Mapping[str, bytes]:
    """Return every file but those that SQLite makes for whoever reads."""
    paths = [path for path in shop.folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path): path.read_bytes() for path in paths}


def events(history: JobHistory, *epochs: int, job: str = "shop") -> Recent:
    """Send a subscriber the events of these epochs: 7 rows in 2 s each, of which the commit takes 1 s."""
    kept = Recent(history)
    kept(Event("source_behind", job, "", None, {"source": "incoming", "of": "files", "behind": 5.0}))
    for epoch in epochs:
        kept(Event("open_epoch", job, "after", epoch, {"seconds": 0.5}))
        kept(Event("commit:lake", job, "after", epoch, {"seconds": 1.0}))
        kept(Event("return", job, "before", epoch, {"rows": {"lake": 7}}))
    return kept


def test_a_look_says_which_sink_is_in_doubt_and_the_next_command(in_doubt: Shop) -> None:
    before = files(in_doubt)
    seen = look(in_doubt)
    assert (seen.state, seen.decided, seen.complete) == ("in doubt", 1, 0)
    assert {sink.name: (sink.rows, sink.in_doubt) for sink in seen.sinks} == {"table": (3, 1), "lake": (3, 1)}
    assert f"exactsink recover {in_doubt.file}" in seen.problem
    assert files(in_doubt) == before


def test_a_journal_that_cannot_be_read_is_a_problem_beside_what_was_seen_before(in_doubt: Shop) -> None:
    opened = Opened.of(in_doubt.file)
    with closing(opened.operator()) as operator:
        watched = Watched(opened.history, opened.sinks, operator)
        assert watched.look().decided == 1
        for entry in Path(opened.history.journal_place).iterdir():
            entry.write_text("{")
        seen = watched.look()
    assert seen.decided == 1
    assert "journal" in seen.problem


def test_what_a_driver_keeps_is_read_again_by_the_next_one(tmp_path: Path) -> None:
    history = Opened.of(Shop(tmp_path).file).history
    history.make()
    events(history, 0)
    events(history, 1)(Event("run_ended", "shop", "", None, {}))
    [period] = recent_periods(history)
    assert (period.epochs, period.epoch, period.rows) == (2, 1, {"lake": 14})
    assert period.phases == {"open_epoch": 1.0, "commit:lake": 2.0}
    assert period.behind == {"files of incoming": 5.0}


def test_periods_are_bounded_and_a_batch_run_adds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_PERIODS", 3)
    monkeypatch.setattr(recent, "_PERIOD_SECONDS", -1.0)
    history = Opened.of(Shop(tmp_path).file).history
    history.make()
    events(history, 0, job="shop-1234567890")
    assert recent_periods(history) == ()
    for epoch in range(5):
        events(history, epoch)
    assert [period.epoch for period in recent_periods(history)] == [2, 3, 4]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"began": 1, "other": 2}]'])
def test_a_file_of_another_release_is_no_error(tmp_path: Path, text: str) -> None:
    history = Opened.of(Shop(tmp_path).file).history
    history.make()
    (tmp_path / "chk.exactsink" / "recent.json").write_text(text)
    assert recent_periods(history) == ()


def test_a_disk_that_refuses_the_file_does_not_disturb_the_job(tmp_path: Path) -> None:
    history = Opened.of(Shop(tmp_path).file).history
    history.make()
    (tmp_path / "chk.exactsink" / "recent.json").mkdir()
    events(history, 0)


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_terminal_of_any_width_shows_every_word_and_no_line_is_too_long(in_doubt: Shop, width: int) -> None:
    events(Opened.of(in_doubt.file).history, 1)
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(shown(look(in_doubt)))
    said = captured.get()
    assert max(map(len, said.splitlines())) <= width
    assert {"shop", "lake", "table", "rows/s:", "behind:", "exactsink"} <= set(said.split())
    assert "\x1b" not in said


def test_a_pipe_gets_one_look_without_colour(in_doubt: Shop, command: Command) -> None:
    ended = command("watch", in_doubt.file)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("shop  in doubt")
    assert "\x1b" not in ended.out


@pytest.mark.timeout(120)
def test_in_a_terminal_it_looks_again_until_ctrl_c(in_doubt: Shop) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = [sys.executable, "-m", "exactsink.cli.main", "watch", in_doubt.file, "--every", "0.5"]
    shown, sent = b"", 0
    with subprocess.Popen(
        command,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as watching:
        os.close(theirs)
        with suppress(OSError):  # its end
            while more := os.read(ours, 65536):
                shown += more
                if shown.count(b"exactsink recover") >= 2 + 6 * sent:  # again if it looks on: Python may lose one
                    sent += os.write(ours, b"\x03")
    os.close(ours)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert watching.returncode == 0, said
    assert "Traceback" not in said
    assert max(map(len, re.split(r"[\r\n]+", said))) <= 80


@contextmanager
def served(seen: Callable[[], Seen], every: float = 0.0) -> Iterator[PageServer]:
    with PageServer(("127.0.0.1", 0), seen, every) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()


def test_the_page_needs_nothing_else_and_its_values_are_the_looks(in_doubt: Shop) -> None:
    with served(lambda: look(in_doubt)) as server:
        code, headers, page = get(server, "/")
        assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert re.findall(r"(?:src|href)=\"(?!data:)[^\"]*|https?://(?!www.w3.org/2000/svg)\S*|innerHTML", page) == []
        body = json.loads(get(server, "/seen.json")[2])
        assert (body["job"], body["state"]) == ("shop", "in doubt")
        assert [sink["in_doubt"] for sink in body["sinks"]] == [1, 1]


def test_the_page_only_reads_and_only_for_this_machine() -> None:
    with served(lambda: Seen("shop", time.time())) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server, "/", Host="localhost:1")[0] == 200
        assert get(server, "/seen.json", Host="evil.example")[0] == 403
        assert get(server, "/../etc/passwd")[0] == 404
        assert {get(server, "/", method)[0] for method in ("POST", "PUT", "DELETE")} == {501}


def test_many_browsers_are_one_look() -> None:
    looks = iter(range(100))
    with served(lambda: Seen(f"shop {next(looks)}", 0.0), every=1000.0) as server:
        assert {get(server, "/seen.json")[2] for _ in range(5)} == {get(server, "/seen.json")[2]}
    assert next(looks) == 1


@pytest.mark.parametrize(("given", "place"), {"80": ("127.0.0.1", 80), "0.0.0.0:0": ("0.0.0.0", 0)}.items())
def test_a_port_alone_is_this_machines(given: str, place: tuple[str, int]) -> None:
    assert place_of(given) == place


@pytest.mark.parametrize("given", ["", "http", "localhost", "1:", "65536", "-1", "²"])
def test_what_is_no_port_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="is not a port"):
        place_of(given)


def test_a_port_that_is_taken_is_said_with_a_way_out(in_doubt: Shop, command: Command) -> None:
    with served(lambda: Seen("shop", 0.0)) as server:
        ended = command("watch", in_doubt.file, "--web", str(server.server_address[1]))
    assert (ended.code, "Address already in use" in ended.err, "--web 0" in ended.err) == (2, True, True)
