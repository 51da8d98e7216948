"""The gate: what blocks, warns or passes; exit codes in the stated order; quarantine and its end; annotation, summary, status."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ci.annotation import markdown
from ci.gate import CHECKS_FAILED, Gate, decide
from ci.hosts import lost_runs
from ci.policy import Action, Policy, read_policy
from ci.selection import Excluded, Selected
from ci.settings import POLICY
from ci.status import StatusError, post
from matrix.loader import load
from matrix.outcome import EXIT_CODES, SEVERITY, Outcome
from matrix.problem import MatrixError, SelectionError
from tests.ci.conftest import verdict
from tests.ci.tree import example_tree

ROOT = Path(__file__).parents[2]
TIERS = ("smoke", "pr", "nightly", "weekly", "release")
NOW = datetime(2026, 5, 2, 12, tzinfo=UTC)
LEARN, COLOCATE, NON = "qwen3-4b.cpu.colocate@learn", "qwen3-4b.cpu.colocate", "qwen3-4b.cpu.non-colocate"
REQUIRED = (COLOCATE, NON, LEARN)


@pytest.fixture
def tree(tmp_path) -> Path:
    return example_tree(tmp_path)


@pytest.fixture
def results(tmp_path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def put(results: Path, cell: str, outcome: Outcome, created: datetime = NOW, **values) -> None:
    from matrix.cell_id import key

    folder = results / key(cell) / "verdicts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{created.strftime('%Y%m%dT%H%M%S')}.{len(list(folder.iterdir())):09d}Z.json").write_text(
        verdict(outcome, created=created.isoformat(), **values)
    )


def gate(tree: Path, results: Path, tier: str = "nightly", policy: Policy | None = None, **values) -> Gate:
    matrix = load(tree, today=date.min)
    return decide(results, matrix, policy or read_policy(None, TIERS), tier=tier, now=NOW, **values)


def all_pass(results: Path) -> None:
    for cell in REQUIRED:
        put(results, cell, Outcome.PASS)


def test_all_pass(tree, results):
    all_pass(results)
    decided = gate(tree, results)
    assert decided.exit_code == 0
    assert decided.counts == {Outcome.PASS: 3, Outcome.NOT_RUN: 5}
    assert decided.style == "warning"  # experimental cells did not run
    assert sum(decided.counts.values()) == len(load(tree).select(tier="nightly"))


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.PASS])
def test_each_outcome_of_a_required_cell_blocks_a_merge_with_its_own_code(tree, results, outcome):
    put(results, COLOCATE, outcome)
    put(results, NON, Outcome.PASS)
    assert gate(tree, results, "pr").exit_code == EXIT_CODES[outcome]


def test_the_nights_machines_warn_only(tree, results):
    all_pass(results)
    put(results, NON, Outcome.INFRA, NOW + timedelta(seconds=1))
    decided = gate(tree, results)
    assert (decided.exit_code, [one.standing.cell for one in decided.of(Action.WARN)][-1]) == (0, NON)


def test_the_exit_code_is_the_most_severe_in_the_stated_order(tree, results):
    policy = read_policy(None, TIERS)
    assert tuple(policy.severity) == tuple(outcome for outcome in SEVERITY if outcome is not Outcome.PASS)
    put(results, COLOCATE, Outcome.INVALID)
    put(results, NON, Outcome.NOT_RUN)
    put(results, LEARN, Outcome.FAIL)
    assert gate(tree, results).exit_code == 1
    turned = policy.model_copy(update={"severity": list(reversed(policy.severity))})
    assert gate(tree, results, policy=turned).exit_code == EXIT_CODES[Outcome.NOT_RUN]


def test_an_experimental_cell_never_sets_the_exit_code(tree, results):
    all_pass(results)
    put(results, "qwen3-4b.a3.colocate", Outcome.FAIL)
    decided = gate(tree, results)
    assert decided.exit_code == 0
    (one,) = [one for one in decided.decisions if one.outcome is Outcome.FAIL]
    assert (one.action, one.why) == (Action.WARN, "experimental")


def quarantine(tree: Path, expires: str) -> None:
    entry = f"{{cell: {COLOCATE}, owner: me, reason: flaky, issue: '#1', expires: {expires}}}"
    (tree / "quarantine.yaml").write_text(f"quarantined:\n  - {entry}\n")


def test_a_quarantined_cell_does_not_block_until_the_day_it_expires(tree, results):
    all_pass(results)
    put(results, COLOCATE, Outcome.FAIL, NOW + timedelta(seconds=1))
    quarantine(tree, "2026-05-02")
    decided = gate(tree, results)
    assert decided.exit_code == 0
    assert [(one.outcome, one.action) for one in decided.decisions if one.standing.cell == COLOCATE] == [(Outcome.FAIL, Action.WARN)]


def test_past_its_expiry_it_counts_again_and_the_gate_says_whose_it_was(tree, results):
    all_pass(results)
    put(results, COLOCATE, Outcome.FAIL, NOW + timedelta(seconds=1))
    quarantine(tree, "2026-05-01")
    with pytest.raises(MatrixError, match="expired"):
        load(tree)
    decided = gate(tree, results)
    assert decided.exit_code == 1
    assert "quarantine expired on 2026-05-01" in markdown(decided, results, tree)


def test_a_stale_pass_warns_and_can_be_made_to_block(tree, results):
    all_pass(results)
    put(results, LEARN, Outcome.PASS, NOW - timedelta(days=3))
    stale = results / "qwen3-4b.cpu.colocate__learn" / "verdicts"
    sorted(stale.iterdir())[-1].unlink()  # tonight's
    decided = gate(tree, results)
    assert [one.why for one in decided.decisions if one.standing.cell == LEARN] == ["its verdict is stale"]
    assert decided.exit_code == 0
    strict = read_policy(None, TIERS).model_copy(update={"stale": Action.BLOCK})
    assert gate(tree, results, policy=strict).exit_code == EXIT_CODES[Outcome.NOT_RUN]


def test_nothing_ran_at_all_is_no_success(tree, results):
    policy = Policy.model_validate({**json.loads(read_policy(None, TIERS).model_dump_json()), "tiers": {"nightly": {"NOT_RUN": "pass"}}}, strict=False)
    assert gate(tree, results, policy=policy).exit_code == EXIT_CODES[Outcome.NOT_RUN]


def test_no_cell_selected_passes_only_where_something_says_why(tree, results):
    why = Selected(tier="pr", build="b", cells=[], nothing=["docs/a.md: documentation"])
    assert gate(tree, results, selected=why).exit_code == 0
    assert gate(tree, results, selected=why.model_copy(update={"nothing": []})).exit_code == EXIT_CODES[Outcome.NOT_RUN]


def test_a_cell_that_no_step_could_run_is_shown_with_the_reason(tree, results):
    selected = Selected(tier="pr", build="b", cells=[], excluded=[Excluded(cell=COLOCATE, reason="no image")])
    decided = gate(tree, results, selected=selected)
    assert [(one.standing.reason, one.outcome, one.action) for one in decided.decisions] == [("no image", Outcome.NOT_RUN, Action.BLOCK)]
    assert decided.exit_code == EXIT_CODES[Outcome.NOT_RUN]


def test_a_check_that_failed_blocks_too_and_a_cell_before_it(tree, results):
    all_pass(results)
    assert gate(tree, results, checks={"lint": "hard_failed"}).exit_code == CHECKS_FAILED
    put(results, NON, Outcome.FAIL, NOW + timedelta(seconds=1))
    assert gate(tree, results, checks={"lint": "hard_failed"}).exit_code == 1


def test_the_status_text_fits_and_says_what_blocks(tree, results):
    put(results, COLOCATE, Outcome.FAIL)
    put(results, NON, Outcome.FAIL)
    put(results, LEARN, Outcome.PASS)
    status = gate(tree, results).status
    assert status.startswith("qwen3-4b.cpu.colocate FAIL and 1 more block; 1 PASS, 2 FAIL, 5 NOT_RUN")
    assert len(gate(tree, results, checks={"x" * 200: "hard_failed"}).status) <= 140


def test_a_cells_exception_holds_for_its_pattern_and_until_it_ends(tree, results):
    all_pass(results)
    put(results, NON, Outcome.FAIL, NOW + timedelta(seconds=1))
    told = json.loads(read_policy(None, TIERS).model_dump_json())
    entry = {"cells": "*.non-colocate", "outcomes": {"FAIL": "pass"}, "because": "known", "expires": "2026-05-02"}
    policy = Policy.model_validate({**told, "cells": [entry]}, strict=False)
    assert gate(tree, results, policy=policy).exit_code == 0
    ended = Policy.model_validate({**told, "cells": [{**entry, "expires": "2026-05-01"}]}, strict=False)
    decided = gate(tree, results, policy=ended)
    assert (decided.exit_code, decided.notes) == (1, ["the exception for *.non-colocate ended on 2026-05-01: known"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  FAIL: block\n", "", "outcomes must hold every outcome but PASS once; missing: FAIL"),
        ("  FAIL: block\n", "  FAIL: blok\n", "policy.yaml:4: outcomes.FAIL: blok: Input should be 'block', 'warn' or 'pass'"),
        ("[FAIL, INVALID", "[FAIL, FAIL", "severity must hold every outcome but PASS once; missing: INVALID"),
        ("nightly: {", "nigthly: {", "no tier 'nigthly' is declared; nearest: nightly"),
        ("nightly: {INFRA", "nightly: {PASS", "PASS always passes"),
        ("stale: warn", "stal: warn", "unknown key 'stal'; nearest: stale"),
    ],
)
def test_a_policy_is_read_strictly(tmp_path, old, new, message):
    text = POLICY.read_text()
    assert old in text
    (tmp_path / "policy.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(MatrixError, match=message):
        read_policy(tmp_path / "policy.yaml", TIERS)


def test_the_command_writes_annotation_summary_status_and_exits_by_outcome(tree, results, tmp_path):
    put(results, COLOCATE, Outcome.FAIL, datetime.now(UTC))
    words = [
        "gate",
        str(results),
        "--policy",
        str(POLICY),
        "--tier",
        "pr",
        "--matrix",
        str(tree),
        "-o",
        str(tmp_path / "gate"),
        "--summary",
        str(tmp_path / "s"),
    ]
    done = subprocess.run([sys.executable, "-m", "ci", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    text = (tmp_path / "gate" / "annotation.md").read_text()
    assert text.strip() == (tmp_path / "s").read_text().strip()
    assert text.startswith("### Gate: blocks, exit 1")
    assert (tmp_path / "gate" / "status.txt").read_text().startswith("qwen3-4b.cpu.colocate FAIL and 1 more block")
    assert json.loads((tmp_path / "gate" / "gate.json").read_text())["exit_code"] == 1


def test_a_results_root_that_is_not_there_is_an_error(tree, tmp_path):
    with pytest.raises(SelectionError, match="no such results directory"):
        gate(tree, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_an_annotation_keeps_to_its_limit(tree, results):
    for cell in load(tree).select(tier="nightly"):
        put(results, str(cell), Outcome.FAIL, reasons=["é" * 5000])
    decided = gate(tree, results)
    for limit in (4000, 20000):
        assert len(markdown(decided, results, tree, limit=limit).encode()) <= limit


def test_hosts_that_lost_runs_are_counted(tmp_path):
    for number, (outcome, earlier) in enumerate([("INFRA", [{"host": "h7"}]), (None, [{"host": "h7"}]), (None, []), ("INCOMPLETE", [])]):
        folder = tmp_path / f"cell{number}" / "seed-100"
        folder.mkdir(parents=True)
        (folder / "runner.json").write_text(json.dumps({"host": "h7" if number == 0 else "h1", "outcome": outcome, "earlier": earlier}))
    (tmp_path / "cell0" / "seed-101").mkdir()
    (tmp_path / "cell0" / "seed-101" / "runner.json").write_text("torn {")
    assert lost_runs(tmp_path) == {"h7": 3}
    assert lost_runs(tmp_path, ["h2", "h2", "h7"]) == {"h7": 3, "h2": 2}


# ---- the commit status ------------------------------------------------------------------------------------------------------------------------------
class Forge(BaseHTTPRequestHandler):
    code = 201
    seen: list[tuple[str, str, dict]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Forge.seen.append((self.path, self.headers["Authorization"], body))
        self.send_response(Forge.code)
        self.end_headers()
        self.wfile.write(b"no such commit")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def forge():
    Forge.seen, Forge.code = [], 201
    server = HTTPServer(("127.0.0.1", 0), Forge)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_commit_status_is_posted(forge):
    post(f"{forge}/statuses/abc", "tok", "vime/gate", 1, "x" * 200, "http://build")
    ((path, token, body),) = Forge.seen
    assert (path, token) == ("/statuses/abc", "Bearer tok")
    assert body == {"state": "failure", "context": "vime/gate", "description": "x" * 140, "target_url": "http://build"}


def test_a_status_that_is_refused_says_so_without_the_token(forge):
    Forge.code = 422
    with pytest.raises(StatusError, match="422 .*no such commit") as caught:
        post(f"{forge}/statuses/abc", "tok", "vime/gate", 0, "x")
    assert "tok" not in str(caught.value)
    with pytest.raises(StatusError):
        post("http://127.0.0.1:1/x", "tok", "c", 0, "x")
