"""Structural damage to a file of any shape: the numbers that are read are those that were written for that step, or the file is refused."""

import json
import math
import os
import re
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports.errors import ReportError
from reports.readers import read_runs
from tests.reports.shapes import LOSS, OTHER, REWARD, SHAPES, Shape, expected, run_values

EXAMPLES = int(os.environ.get("READER_FUZZ_EXAMPLES", "60"))  # a shape; 500 were run when a reader last changed
FIRST, SECOND = run_values(1), run_values(2)
DELIMITERS = ",;:\t \"'{}[]|\n"


@dataclass
class Damaged:
    """A file in the making. `spliced`: values of the second run are in it as well."""

    shape: Shape
    text: str
    spliced: bool = False
    comma: bool = False  # the decimal sign, so that dropping one is another number and no structural damage
    encoding: str = "utf-8"
    cut: int | None = None

    def bytes(self) -> bytes:
        data = self.text.encode(self.encoding, "replace")
        return data if self.cut is None else data[: self.cut]


def _lines(damaged: Damaged) -> list[str]:
    return damaged.text.split("\n")


def truncate(damaged, data):
    damaged.cut = data.draw(st.integers(0, len(damaged.text.encode(damaged.encoding, "replace"))), "cut")


def duplicate(damaged, data):
    lines = _lines(damaged)
    at = data.draw(st.integers(0, len(lines) - 1), "line")
    to = data.draw(st.integers(0, len(lines)), "to")
    lines.insert(to if damaged.shape.by_line else at, lines[at])
    damaged.text = "\n".join(lines)


def reorder(damaged, data):
    """Whole records change places: lines, or the members of a document's list or object."""
    if damaged.shape.by_line:
        lines = _lines(damaged)
        one, two = data.draw(st.integers(0, len(lines) - 1), "one"), data.draw(st.integers(0, len(lines) - 1), "two")
        lines[one], lines[two] = lines[two], lines[one]
        damaged.text = "\n".join(lines)
        return
    document = _document(damaged.text)
    if document is None:
        return
    for holder in ("steps", "log_history", "metrics"):
        if isinstance(document, dict) and isinstance(document.get(holder), list):
            document[holder] = data.draw(st.permutations(document[holder]), "records")
    if isinstance(document, dict):
        document = dict(data.draw(st.permutations(list(document.items())), "members"))
    damaged.text = json.dumps(document, ensure_ascii=False)


def reencode(damaged, data):
    damaged.encoding = data.draw(st.sampled_from(["utf-8-sig", "utf-16", "utf-16-le", "gb18030", "latin-1"]), "encoding")


def drop_delimiter(damaged, data):
    text = damaged.text
    decimal = {match.start() + 1 for match in re.finditer(r"\d,(?=\d)", text)} if damaged.comma else set()
    places = [i for i, sign in enumerate(text) if sign in DELIMITERS and i not in decimal]
    if places:
        at = data.draw(st.sampled_from(places), "place")
        damaged.text = text[:at] + text[at + 1 :]


def change_locale(damaged, data):
    """Every decimal point, or every one from a line on, becomes a comma."""
    lines = _lines(damaged)
    start = data.draw(st.sampled_from([0, len(lines) // 2]), "from line")
    damaged.comma = True
    damaged.text = "\n".join([*lines[:start], *(line.replace(".", ",") for line in lines[start:])])


def splice(damaged, data):
    """The beginning of one run and the end of another, cut between records (inside one, a document is as good as any other: a step with other values)."""
    theirs = damaged.shape.write(SECOND)
    damaged.spliced = True
    if not damaged.shape.by_line:
        document = _document(damaged.text)
        if document is not None:
            damaged.text = json.dumps(_joined(document, json.loads(theirs), data), ensure_ascii=False)
        return
    ours, behind = _lines(damaged), theirs.split("\n")
    one, two = data.draw(st.integers(0, len(ours)), "until"), data.draw(st.integers(0, len(behind)), "from")
    damaged.text = "\n".join([*ours[:one], *behind[two:]])


def _document(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def _joined(ours, theirs, data):
    """Every list and every object of steps: the beginning of one and the end of the other."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if all(isinstance(item, dict) and "step" not in item for item in ours + theirs):
            return [_joined(one, two, data) for one, two in zip(ours, theirs)]
        return ours[: data.draw(st.integers(0, len(ours)), "until")] + theirs[data.draw(st.integers(0, len(theirs)), "from") :]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours and all(key.isdigit() for key in ours):
            return dict(_joined(list(ours.items()), list(theirs.items()), data))
        return {key: _joined(value, theirs.get(key, value), data) for key, value in ours.items()}
    return ours


MUTATIONS = (truncate, duplicate, reorder, reencode, drop_delimiter, change_locale, splice)
POSITIONAL = (truncate, reencode, drop_delimiter, change_locale)  # where the position is the step, a record more or less cannot be seen


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_right_numbers_or_a_refusal_never_other_numbers(tmp_path, name, data):
    shape = SHAPES[name]
    damaged = Damaged(shape, shape.write(FIRST), comma="decimal comma" in name)
    for mutation in data.draw(st.lists(st.sampled_from(MUTATIONS if shape.keyed else POSITIONAL), min_size=1, max_size=3), "mutations"):
        mutation(damaged, data)
    path = tmp_path / "damaged"
    path.write_bytes(damaged.bytes())
    try:
        runs = read_runs([path])
    except ReportError:
        return  # refused, in one line
    for run in runs:
        for metric in (REWARD, LOSS, OTHER, "value"):
            if metric in run.curves:
                steps, values = run.curves[metric].steps.tolist(), run.curves[metric].values.tolist()
                check(shape, metric, dict(zip(steps, values)), damaged.spliced)


def check(shape, metric, found, spliced):
    start = 1 if shape.keyed else 0
    wanted = expected(shape, FIRST).get(metric) or FIRST[REWARD]
    theirs = expected(shape, SECOND).get(metric) or SECOND[REWARD]
    for step, value in found.items():
        assert step - start < len(wanted), f"{metric}: step {step} was never written"
        allowed = [wanted[step - start]] + ([theirs[step - start]] if spliced else [])
        assert not math.isnan(value) and value in allowed, f"{metric} at step {step}: {value}, written was {allowed}"
