"""What brokers are started from: jars that are there whole or not at all, ports that stay one server's."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.servers.kafka_jars import JarSet, jars
from tests.servers.ports import Ports

SET = JarSet("some-1", ("group:one:1", "group:two:2"))


def whole(wanted: JarSet, folder: Path) -> None:
    for artifact in wanted.artifacts:
        _, name, version = artifact.split(":")
        with zipfile.ZipFile(folder / f"{name}-{version}.jar", "w") as jar:
            jar.writestr("Main.class", b"")


def broken(wanted: JarSet, folder: Path) -> None:
    whole(wanted, folder)
    jar = folder / "two-2.jar"
    jar.write_bytes(jar.read_bytes()[:-10])


def missing(wanted: JarSet, folder: Path) -> None:
    whole(wanted, folder)
    (folder / "two-2.jar").unlink()


@pytest.mark.parametrize("fetch", [broken, missing])
def test_a_fetch_that_breaks_leaves_nothing_that_looks_whole(tmp_path: Path, fetch: object) -> None:
    with pytest.raises(RuntimeError, match=r"two-2\.jar"):
        jars(SET, tmp_path, fetch)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["some-1.lock"]
    folder = jars(SET, tmp_path, whole)
    assert sorted(jar.name for jar in folder.iterdir()) == ["one-1.jar", "two-2.jar"]


def test_of_those_who_come_at_once_one_fetches_and_all_see_it_whole(tmp_path: Path) -> None:
    fetched: list[str] = []
    together = Barrier(4)

    def fetch(wanted: JarSet, folder: Path) -> None:
        fetched.append(wanted.name)
        whole(wanted, folder)

    def come(_: int) -> list[str]:
        together.wait(30)
        return sorted(jar.name for jar in jars(SET, tmp_path, fetch).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(come, range(4))) == [["one-1.jar", "two-2.jar"]] * 4
    assert fetched == ["some-1"]


def test_a_held_port_is_no_one_elses_also_while_no_server_listens() -> None:
    first = Ports(1)
    among = range(first.numbers[0], first.numbers[0] + 1)
    with pytest.raises(RuntimeError, match=str(among.start)):
        Ports(1, among)
    first.close()
    again = Ports(1, among)
    assert again.numbers == [among.start]
    again.close()
