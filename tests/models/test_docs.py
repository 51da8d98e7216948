"""docs/models.md holds the table that the measured numbers and the declared cells make."""

from __future__ import annotations

from tests.models.docs import BEGIN, END, PAGE, table
from vime.models.registry import FAMILIES


def test_the_page_holds_the_table_of_the_numbers():
    """But for the last column, which a change of the cells makes old until the command is run again."""
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert numbers(text) == numbers(table()), "write it anew: python -m tests.models.docs"


def numbers(text: str) -> list[list[str]]:
    return [line.split("|")[1:-2] for line in text.splitlines() if line.startswith("|")]


def test_the_page_names_every_family():
    text = PAGE.read_text(encoding="utf-8")
    assert [family.name for family in FAMILIES if f"`{family.name}`" not in text] == []
