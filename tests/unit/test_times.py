"""Sums of what tests took, and CONTRIBUTING's figures out of a run's junit file."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.times import BUDGETS, PAGE, sums, with_figures


def test_folders_are_summed_beside_their_budgets() -> None:
    over = BUDGETS["unit"] + 5.0
    tests = [
        ("tests/unit/test_a.py", over),
        ("tests/integration/kafka/test_b.py", 1.0),
        ("tests/integration/test_c.py", 1.0),
    ]
    head, unit, *others, whole = sums(tests)
    assert unit.split() == ["unit", "1", f"{over:.0f}", str(BUDGETS["unit"]), "over", "by", "5", "s"]
    assert sorted(line.split()[0] for line in others) == ["integration", "integration/kafka"]
    assert whole.split()[:3] == ["all", "3", f"{over + 2:.0f}"]
    assert len({len(line) for line in (head, *others, whole)}) == 1


def test_the_figures_of_a_run_are_taken_into_the_page() -> None:
    run = ElementTree.Element("testsuite", time="600.4", tests="4000", skipped="30", failures="2", errors="1")
    page = PAGE.read_text()
    [changed] = set(with_figures(page, "test", run).splitlines()) - set(page.splitlines())
    assert changed.startswith("- `make test` ")
    assert "10 minutes on two cores (3,967 tests)" in changed
