"""An operator's word: rebase on what the targets hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job
from tests.unit.two_sinks import Shop

from exactsink.cli.opened import Opened
from exactsink.contract import JobContext
from exactsink.job.config import load_config
from exactsink.job.history import JobHistory
from exactsink.operate.rebase import RebasePlan
from exactsink.protocol.journal.records import Complete
from exactsink.testing import Session

Command = Callable[..., Ended]
PARTS = ("chk", "chk.exactsink", "lake", "shop.db")


# the commands


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Epochs 0 to 2 are in the lake and in the table; `copy` is of the moment after the first."""
    made = Shop(tmp_path)
    made.epochs(0)
    keep(made, "copy")
    made.epochs(1, 2)
    keep(made, "newest")
    return made


def keep(shop: Shop, copy: str) -> None:
    for part in PARTS:
        place = shop.folder / part
        (shutil.copytree if place.is_dir() else shutil.copy2)(place, shop.folder / copy / part)


def put_back(shop: Shop, copy: str, *parts: str) -> None:
    for part in parts:
        place = shop.folder / part
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        (shutil.copytree if (shop.folder / copy / part).is_dir() else shutil.copy2)(shop.folder / copy / part, place)


def shown(command: Command, shop: Shop) -> tuple[dict[str, str], list[str]]:
    """Return what the table says of each sink, and the words of the command below it."""
    ended = command("rebase", shop.file)
    assert ended.code == 0
    lines = [re.split(r"  +", line) for line in ended.out.splitlines() if line.startswith(("lake", "table"))]
    found = re.search(r"exactsink rebase \S+ (.*) --yes --reason 'TEXT'", ended.out)
    return {cells[0]: cells[-1] for cells in lines}, found[1].split() if found is not None else []


NOTHING, NO_MARK = "nothing is missing or doubled", "can't be known: its mark is gone"
AGAIN, MISSING = "epochs 1 to 2 come again: doubled here", "epochs 1 to 2 are not read again, and not here: missing"


@pytest.mark.parametrize(
    ("parts", "lake", "table", "words"),
    [
        (["lake"], MISSING, NOTHING, "--sink lake=0 --batch 3"),
        (["lake", "shop.db"], MISSING, MISSING, "--sink lake=0 --sink table=0 --batch 3"),
        (["chk"], AGAIN, AGAIN, "--sink lake=2 --sink table=2 --batch 1"),
        (["chk.exactsink"], NOTHING, NOTHING, "--sink lake=2 --sink table=2 --batch 3"),
        (["chk", "chk.exactsink"], AGAIN, AGAIN, "--sink lake=2 --sink table=2 --batch 1"),
        (["chk.exactsink", "lake", "shop.db"], MISSING, MISSING, "--sink lake=0 --sink table=0 --batch 3"),
        (["chk", "lake"], NOTHING, AGAIN, "--sink lake=0 --sink table=2 --batch 1"),
        (["lake/_exactsink"], NO_MARK, NOTHING, "--sink lake=none --batch 3"),
        (["lake/_exactsink", "chk.exactsink/journal"], NO_MARK, NOTHING, "--sink lake=none --sink table=2 --batch 3"),
        (list(PARTS), NOTHING, NOTHING, ""),
    ],
    ids=str,
)
def test_a_rebase_names_the_epochs_that_are_missing_and_those_that_come_again(
    shop: Shop, command: Command, parts: list[str], lake: str, table: str, words: str
) -> None:
    """And it does no more: once the batches that the checkpoint gives are written, each sink holds just that."""
    for part in parts:
        put_back(shop, "copy", part) if part in PARTS else shutil.rmtree(shop.folder / part)
    before = shop.lake_rows()
    assert shown(command, shop) == ({"lake": lake, "table": table}, words.split())
    if not words:
        wrong = command("rebase", shop.file, "--sink", "lake=0", "--batch", "1", "--yes")
        assert (wrong.code, "there is nothing to rebase" in wrong.err) == (2, True)
        return
    assert command("rebase", shop.file, *words.split(), "--yes").code == 0
    assert shown(command, shop) == ({"lake": NOTHING, "table": NOTHING}, [])
    assert command("status", shop.file, "--within", "60").code == 0
    shop.epochs(int(words.split()[-1]))
    assert (shop.lake_rows(), command("status", shop.file, "--within", "60").code) == (before + 3, 0)


def test_a_sink_that_was_put_back_gets_the_epoch_that_is_not_done_as_lost_votes(shop: Shop, command: Command) -> None:
    """The others keep it: nothing of them comes again."""
    shop.sql("CREATE TRIGGER closed BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'closed'); END")
    shop.epochs(3)
    put_back(shop, "copy", "lake")
    shop.sql("DROP TRIGGER closed")
    again = "epochs 1 to 2 are not read again, and not here: missing; epoch 3 is written again, and compared with the"
    words = ["--sink", "lake=0", "--batch", "3"]
    assert shown(command, shop) == ({"lake": f"{again} decision", "table": NOTHING}, words)
    plan = command("rebase", shop.file, *words).out
    assert "would leave the rest of epoch 3 in lake, table to the next start" in plan
    assert command("rebase", shop.file, *words, "--yes").code == 0
    seen = command("status", shop.file, "--within", "60")
    assert (seen.code, "lost" in seen.err) == (3, True)
    shop.epochs(3)
    assert (command("status", shop.file, "--within", "60").code, shop.lake_rows()) == (0, 6)
    assert command("history", shop.file).out.count(" redecide ") == 1


def test_a_rebase_is_refused_where_the_journal_went_on_since_it_was_read(
    shop: Shop, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(shop, "copy", "lake")
    check = RebasePlan.check_named
    monkeypatch.setattr(RebasePlan, "check_named", lambda plan, *words: shop.epochs(3) or check(plan, *words))
    ended = command("rebase", shop.file, "--sink", "lake=0", "--batch", "3", "--yes")
    assert (ended.code, "the journal was written to while it was read" in ended.err) == (75, True)


def test_a_rebase_changes_nothing_until_all_that_differs_is_named_and_confirmed(shop: Shop, command: Command) -> None:
    put_back(shop, "copy", "lake")
    before = Opened.of(shop.file).operator().read()
    words = ("rebase", shop.file, "--sink", "lake=0", "--batch", "3")
    unsure = command(*words)
    assert (unsure.code, "can't be undone" in unsure.out) == (0, True)
    for wrong in (("--sink", "lake=7", "--batch", "3"), ("--sink", "lake=0", "--batch", "2"), ("--sink", "lake=0")):
        for sure in ((), ("--yes",)):
            refused = command("rebase", shop.file, *wrong, *sure)
            assert (refused.code, "not those of the targets and the checkpoint" in refused.err) == (2, True)
    shop.heartbeat(0)
    for sure in ((), ("--yes",)):
        assert command(*words, *sure).code == 4
    assert command(*words, "--take-over").code == 0
    assert Opened.of(shop.file).operator().read() == before


@pytest.mark.parametrize("name", ["status", "check --no-spark"])
def test_a_checkpoint_that_does_not_follow_the_journal_is_seen_before_a_start(
    shop: Shop, command: Command, name: str
) -> None:
    put_back(shop, "copy", "chk")
    seen = command(*name.split(), shop.file, *(["--within", "60"] if name == "status" else []))
    assert (seen.code, "the source came with epoch 1, the journal expects 3" in seen.err) == (5, True)


def test_after_a_rebase_no_epoch_comes_whose_rows_may_show_early_though_no_mark_is_found(
    job: Job, command: Command
) -> None:
    """The journal and the mark are lost. Batch 5 may have begun: by a number that came again, its rows would win."""
    text = Path(job.file).read_text().replace('backend = "files"', 'backend = "idempotent_upsert"\nstrategy = "direct"')
    path = f'url = "sqlite:///{job.folder}/table.db"\ntable = "rows"\nkeys = ["n"]\ncreate = true'
    Path(job.file).write_text(text.replace(f'path = "{job.folder}/lake"', path))
    job.checkpoint("query-1", *range(5))
    [named] = re.findall(r"job.toml (--sink .* --yes)", command("rebase", job.file).out)
    assert (command("rebase", job.file, *named.split()).code, job.journal.read().next_epoch) == (0, 6)


def test_a_runs_rebase_is_of_its_own_history_and_never_writes_its_rows_again(job: Job, command: Command) -> None:
    job.checkpoint("query-1", *range(3))  # the stream's is no business of a run
    history = JobHistory.of(load_config(job.file)[0], "monday")
    words = ("rebase", job.file, "--run", "monday", "--sink", "lake=birth", "--yes")
    foreign = Session(job.sink.backend, JobContext(history.job, "lake", "", 1, FOREIGN.lineage), FOREIGN.token)
    foreign.put_birth()
    assert "--run monday --sink lake=birth --yes" in command("rebase", job.file, "--run", "monday").out
    done = command(*words)
    assert (done.code, "the run will be epoch 0\n  next: call write again, with run='monday'" in done.out) == (0, True)
    log = history.journal(lambda attempt: None).read()
    assert (log.query_id, log.base, log.next_epoch, log.succeeds) == ("run monday", 0, 0, {FOREIGN.lineage})
    foreign.commit(0, foreign.prepare(0, [pa.table({"n": [1]})]))
    for sure in ((), ("--yes",)):
        again = command(*words[:4], "--sink", "lake=0", *sure)
        assert (again.code, "can't be continued: its rows show in lake" in again.err) == (2, True)
    journal = JobHistory.of(load_config(job.file)[0], "done").journal(lambda attempt: None)
    journal.claim("run done", "host:17")
    journal.keep(Complete(0))  # and its marks are gone
    again = command("rebase", job.file, "--run", "done")
    assert (again.code, "can't be continued: it is complete" in again.err) == (2, True)
