"""Every format: right numbers under our names, whatever the encoding and the compression; NaN in every position; what is refused and said."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import zstandard

from reports.errors import ReportError, UnreadableRun
from reports.model import NoteKind
from reports.readers import read_or_note, read_run, read_runs, readers
from reports.readers.base import Reading
from tests.reports.shapes import LOSS, OTHER, REWARD, SHAPES, event_file, expected, run_values

VALUES = run_values(1)
EVERY = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def write(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "curves.any"
    path.write_bytes(text.encode(encoding))
    return path


def check(run, shape, values=VALUES):
    wanted = expected(shape, values)
    first = 0 if not shape.keyed else 1
    assert set(wanted) <= set(run.curves)
    for name, curve in wanted.items():
        assert run.curves[name].steps.tolist() == list(range(first, first + len(curve)))
        np.testing.assert_array_equal(run.curves[name].values, curve)


def kinds(run):
    return {note.kind for note in run.notes}


@EVERY
def test_numbers_and_names(tmp_path, shape):
    run = read_run(write(tmp_path, shape.write(VALUES)))
    assert run.format == shape.format
    check(run, shape)
    assert kinds(run) <= {NoteKind.ASSUMED, NoteKind.TEXT_VALUE}


@EVERY
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "gb18030"])
def test_encodings(tmp_path, shape, encoding):
    check(read_run(write(tmp_path, shape.write(VALUES), encoding)), shape)


@EVERY
def test_crlf_gzip_and_zstd(tmp_path, shape):
    text = shape.write(VALUES)
    if "\r" not in text:
        check(read_run(write(tmp_path, text.replace("\n", "\r\n"))), shape)
    path = tmp_path / "packed"
    for packed in (
        gzip.compress(text.encode()),
        zstandard.compress(text.encode()),
        zstandard.compress(text[:100].encode()) + zstandard.compress(text[100:].encode()),
    ):
        path.write_bytes(packed)
        check(read_run(path), shape)


@EVERY
@pytest.mark.parametrize("at", range(12))
def test_nan_in_every_position(tmp_path, shape, at):
    metric = REWARD
    values = {name: list(curve) for name, curve in VALUES.items()}
    values[metric][at] = math.nan
    run = read_run(write(tmp_path, shape.write(values)))
    check(run, shape, values)
    name = "value" if shape.metrics == ("value",) else metric
    assert [note.metric for note in run.notes if note.kind is NoteKind.NON_FINITE] == [name]
    assert run.curves[name].first_bad_step == at + (1 if shape.keyed else 0)


@EVERY
def test_forced_format_reads_what_it_would_have_chosen_and_refuses_others(tmp_path, shape):
    path = write(tmp_path, shape.write(VALUES))
    check(read_run(path, shape.format), shape)
    for name in readers():
        if name not in (shape.format, "console", "jsonl", "csv", "long-table", "columns"):
            with pytest.raises((UnreadableRun, ReportError)):
                read_run(path, name)


@EVERY
def test_a_url_reads_as_the_local_file(shape):
    import fsspec

    with fsspec.open(f"memory://bucket/{id(shape)}/curves.any", "wb") as file:
        file.write(shape.write(VALUES).encode())
    run = read_run(f"memory://bucket/{id(shape)}/curves.any")
    check(run, shape)
    assert run.url.startswith("memory://bucket/")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES.values() if shape.by_line], ids=[name for name, shape in SHAPES.items() if shape.by_line])
def test_resumed_run_the_later_record_wins(tmp_path, shape):
    """Steps 1 to 8, then again from 5: for the formats a program goes on writing into."""
    other = run_values(2)
    before = len(shape.write({name: curve[:4] for name, curve in other.items()}).splitlines())
    again = shape.write(other).splitlines(keepends=True)[before:]
    run = read_or_note(write(tmp_path, shape.write({name: curve[:8] for name, curve in VALUES.items()}) + "".join(again)))
    if shape is SHAPES["hf console"]:
        assert "do not rise evenly" in run.notes[0].text  # a progress bar alone does not show a resume
        return
    check(run, shape, {name: VALUES[name][:4] + other[name][4:] for name in VALUES})
    assert NoteKind.RESTART in kinds(run)


def test_vime_run_directory_on_a_url(tmp_path):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.makedirs("/runs/seed-3", exist_ok=True)
    with fs.open("/runs/seed-3/metrics.jsonl", "wb") as file:
        file.write(SHAPES["jsonl"].write(VALUES).encode())
    with fs.open("/runs/seed-3/manifest.json", "wb") as file:
        file.write(b'{"seed": 3}')
    run = read_run("memory://runs/seed-3")
    assert (run.format, run.seed, run.name) == ("vime", 3, "seed-3")
    check(run, SHAPES["jsonl"])


def test_url_that_is_not_there_or_of_an_unknown_kind():
    with pytest.raises(ReportError, match="no such file"):
        read_run("memory://nothing/here")
    with pytest.raises(ReportError, match="nosuch://x"):
        read_run("nosuch://x")


# --- several runs in one file -------------------------------------------------------------------------------------------------------------------


def seeds_csv(tmp_path):
    rows = [f"32,{run},{seed},{100 * (i + 1)},{value}" for run, seed in ((0, 16979), (1, 77)) for i, value in enumerate(run_values(run)[REWARD])]
    return write(tmp_path, "\n".join(["gbs,run,seed,samples_count,eval_loss", *rows]) + "\n")


def test_a_table_of_several_runs_gives_each_of_them(tmp_path):
    path = seeds_csv(tmp_path)
    runs = read_runs([path])
    assert [(run.part, run.seed) for run in runs] == [("run=0,seed=16979", 16979), ("run=1,seed=77", 77)]
    assert [run.curves["eval_loss"].values.tolist() for run in runs] == [run_values(0)[REWARD], run_values(1)[REWARD]]
    assert runs[0].curves["eval_loss"].steps.tolist() == [100 * (i + 1) for i in range(12)]
    assert any(note.kind is NoteKind.ASSUMED and "samples_count" in note.text for note in runs[0].notes)
    assert read_run(f"{path}#seed=77").part == "run=1,seed=77"
    with pytest.raises(ReportError, match="holds 2 runs.*seed=77"):
        read_run(path)
    with pytest.raises(ReportError, match="0 runs are called 'seed=5'"):
        read_run(f"{path}#seed=5")


def test_wandb_chart_of_two_runs_with_gaps_extremes_and_names_with_dashes(tmp_path):
    text = '"Step","a - b - reward","a - b - reward__MIN","a - b - reward__MAX","c - reward","c - reward__MIN","c - reward__MAX"\n'
    text += '"0","0.5","0.5","0.5","","",""\n"1","","","","0.25","0.2","0.3"\n"2","0.75","0.75","0.75","0.5","0.5","0.5"\n'
    first, second = read_runs([write(tmp_path, text)])
    assert (first.part, second.part) == ("a - b", "c")
    assert first.curves[REWARD].steps.tolist() == [0, 2]
    assert first.curves[REWARD].values.tolist() == [0.5, 0.75]
    assert second.curves[REWARD].values.tolist() == [0.25, 0.5]
    assert NoteKind.AGGREGATE in kinds(second) and NoteKind.AGGREGATE not in kinds(first)
    assert set(first.curves) == {REWARD}


def test_swanlab_export_of_two_experiments(tmp_path):
    text = "step,exp-1-train/loss_step,exp-1-train/loss_timestamp,exp-2-train/loss_step,exp-2-train/loss_timestamp\n1,0.5,9,0.25,9\n2,,,0.5,9\n"
    first, second = read_runs([write(tmp_path, text)])
    assert (first.part, second.part) == ("exp-1", "exp-2")
    assert (first.curves[LOSS].values.tolist(), second.curves[LOSS].values.tolist()) == ([0.5], [0.25, 0.5])


# --- folders ------------------------------------------------------------------------------------------------------------------------------------

SINGLE = {name: [float(np.float32(v)) for v in curve] for name, curve in VALUES.items()}


def test_tensorboard_file_and_folder(tmp_path):
    file = event_file(tmp_path / "tb" / "events.out.tfevents.1.host", SINGLE)
    for path in (file, tmp_path / "tb"):
        run = read_run(path)
        assert run.format == "tensorboard"
        check(run, SHAPES["jsonl"], SINGLE)
        assert run.notes == ()


def test_tensorboard_file_as_tensorboard_writes_it(tmp_path):
    """Written by TensorBoard 2.21's EventFileWriter: tensors with content and with float_val, and metadata."""
    import base64

    data = (
        "SAAAAAAAAAD+kkidCQJkNCFww9pBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVyFy7fxi4AAAAAAAAAxctX+gkAAABA/FTZQSoj"
        "CiEKBnJld2FyZEIKCAESACIEAAAAP0oLCgkKB3NjYWxhcnOqfuAdMAAAAAAAAACV9dBfCQAAQED8VNlBEAEqIwohCgZyZXdhcmRCCggBEgAqBAAAwD9KCwoJCgdzY2FsYXJzAulZrzAAAAAAAAAA"
        "lfXQXwkAAIBA/FTZQRACKiMKIQoGcmV3YXJkQgoIARIAIgQAACBASgsKCQoHc2NhbGFyc/hzUmY="
    )
    path = tmp_path / "events"
    path.write_bytes(base64.b64decode(data))
    run = read_run(path)
    assert (run.curves[REWARD].steps.tolist(), run.curves[REWARD].values.tolist()) == ([0, 1, 2], [0.5, 1.5, 2.5])


def test_tensorboard_restart_opens_a_new_file_and_the_later_one_wins(tmp_path):
    event_file(tmp_path / "events.out.tfevents.9.host", {n: c[:8] for n, c in SINGLE.items()}, time=1000.0)
    other = {name: [float(np.float32(v)) for v in curve] for name, curve in run_values(2).items()}
    event_file(tmp_path / "events.out.tfevents.1.host", {n: c[4:] for n, c in other.items()}, start=5, time=2000.0)
    run = read_run(tmp_path)
    check(run, SHAPES["jsonl"], {name: SINGLE[name][:4] + other[name][4:] for name in SINGLE})
    assert NoteKind.RESTART in kinds(run)


def test_tensorboard_folder_of_folders_is_one_run_each(tmp_path):
    event_file(tmp_path / "a" / "events.out.tfevents.1.host", SINGLE)
    event_file(tmp_path / "b" / "events.out.tfevents.1.host", SINGLE)
    assert [run.part for run in read_runs([tmp_path])] == ["a", "b"]


@pytest.mark.parametrize("at", [5, 20, 60, 100, 200, 500, 900])
def test_tensorboard_damage_is_found_by_the_check_sum(tmp_path, at):
    file = event_file(tmp_path / "x.tfevents.1", SINGLE)
    data = bytearray(file.read_bytes())
    for damaged in (bytes(data[:at]), bytes(data[:at]) + bytes([data[at] ^ 0x10]) + bytes(data[at + 1 :])):
        file.write_bytes(damaged)
        run = read_or_note(file, "tensorboard")
        for name in run.curves:
            have = run.curves[name].values.tolist()
            assert have == SINGLE[name][: len(have)]
        assert kinds(run) & {NoteKind.TORN_LINE, NoteKind.UNREADABLE}


def test_mlflow_folder(tmp_path):
    (tmp_path / "meta.yaml").write_text("run_id: x\n")
    folder = tmp_path / "metrics" / "train"
    folder.mkdir(parents=True)
    (folder / "loss").write_text("".join(f"{1000 + i} {value!r} {i + 1}\n" for i, value in enumerate(VALUES[LOSS])))
    (tmp_path / "metrics" / "reward").write_text("".join(f"{1000 + i} {value!r} {i + 1}\n" for i, value in enumerate(VALUES[REWARD])) + "2000 0.5 1")
    run = read_run(tmp_path)
    assert run.format == "mlflow"
    assert run.curves[LOSS].values.tolist() == VALUES[LOSS]
    assert run.curves[REWARD].values.tolist() == VALUES[REWARD]
    assert kinds(run) == {NoteKind.TORN_LINE}  # "1" may be the beginning of 13


def test_swanlab_offline_folder(tmp_path):
    folder = tmp_path / "logs" / "train%2Floss"
    folder.mkdir(parents=True)
    (folder / "10.log").write_text("".join(json.dumps({"index": i + 1, "data": v, "create_time": "2026"}) + "\n" for i, v in enumerate(VALUES[LOSS][:6])))
    (folder / "20.log").write_text("".join(json.dumps({"index": i + 7, "data": v, "create_time": "2026"}) + "\n" for i, v in enumerate(VALUES[LOSS][6:])))
    run = read_run(tmp_path)
    assert (run.format, run.curves[LOSS].values.tolist()) == ("swanlab", VALUES[LOSS])


def test_trainer_state_in_a_checkpoint_folder(tmp_path):
    (tmp_path / "trainer_state.json").write_text(SHAPES["hf trainer state"].write(VALUES))
    run = read_run(tmp_path)
    assert (run.format, run.planned_steps) == ("hf-trainer", 12)
    check(run, SHAPES["hf trainer state"])


# --- what each format knows beside its numbers --------------------------------------------------------------------------------------------------


def test_provenance_that_files_carry(tmp_path):
    mllog = read_run(write(tmp_path, SHAPES["mllog"].write(VALUES)))
    assert (mllog.seed, mllog.planned_steps) == (7, 12)
    trl = read_run(write(tmp_path, SHAPES["trl reference"].write(VALUES)))
    assert (trl.seed, trl.planned_steps, trl.manifest["devices"], trl.manifest["versions"]) == (42, 12, ["H100"], {"torch": "2.11.0"})
    assert read_run(write(tmp_path, SHAPES["megatron console"].write(VALUES))).planned_steps == 12


def test_mllog_evaluation_that_names_only_samples_gets_its_step_and_early_stop_its_reason(tmp_path):
    text = SHAPES["mllog"].write(VALUES)
    text += ':::MLLOG {"time_ms": 9000, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": 0.71875, "metadata": {"samples_count": 3072}}\n'
    text += ':::MLLOG {"time_ms": 9001, "event_type": "INTERVAL_END", "key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'
    run = read_run(write(tmp_path, text))
    assert (run.curves["eval_accuracy"].steps.tolist(), run.curves["eval_accuracy"].values.tolist()) == ([12], [0.71875])
    assert run.events == ({"event": "early_stop", "reason": "run_stop with status success"},)


def test_mllog_of_two_seeds_is_refused(tmp_path):
    text = SHAPES["mllog"].write(VALUES)
    with pytest.raises(UnreadableRun, match="seed 8 after seed 7"):
        read_run(write(tmp_path, text + text.replace('"value": 7', '"value": 8')))


def test_golden_with_nan_as_text_zeros_and_a_short_range(tmp_path):
    text = json.dumps(
        {"lm loss": {"start_step": 1, "end_step": 4, "step_interval": 1, "values": {"1": "nan", "2": 0.5}}, "z": {"values": {"1": 0.0, "2": 0.0}}}
    )
    run = read_run(write(tmp_path, text))
    assert math.isnan(run.curves[LOSS].values[0])
    assert {NoteKind.NON_FINITE, NoteKind.VACUOUS, NoteKind.MISSING} == kinds(run)
    assert [note.metric for note in run.notes_of(NoteKind.VACUOUS)] == ["z"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"lm loss": {"start_step": 1, "end_step": 2, "values": {"1": 0.5, "3": 0.5}}}', "step 3 lies outside 1 to 2"),
        ('{"reward": {"1": 0.5, "01": 0.25}}', "step 1 is there twice"),
        ('{"reward": {"1": 0.5, "1": 0.25}}', "'1' occurs twice"),
        ('{"steps": [{"step": 2, "loss": 0.5}, {"step": 1, "loss": 0.25}]}', "out of order"),
        ('{"log_history": [{"step": 2, "loss": 0.5}, {"step": 1, "loss": 0.25}]}', "out of order"),
        ("step,reward,reward\n1,0.5,0.25\n", "occurs twice"),
        ("step;reward\n1;0,5\n2;0.25\n", "decimal sign is not known"),
        ("step;reward\n1;1,234\n2;2,345\n", "may be a decimal number or thousands"),
        ("step;reward\n1;1,234,567\n2;0,5\n", "decimal sign is not known"),
        ("step,reward\n1,0,5\n2,0,25\n", "do not have the 2 columns"),
        ("step,loss,reward\n1,0.5,0.25\nstep,reward,loss\n2,0.25,0.5\n", "a second header"),
        ("step,reward\n", "no row holds a step"),
        ("1 0.5\n2 0.25\n3 0.5\nabc\ndef\nghi\njkl\n", "are not a step and a value"),
        ("{'loss': 0.5, 'epoch': 0.1}\n{'loss': 0.25, 'epoch': 0.2}\n", "--step order"),
        ("1/9 [00:01<, 1s/it]\r{'loss': 0.5}\n2/9 [00:01<, 1s/it]\r{'loss': 0.6}\n2/9 [00:01<, 1s/it]\r{'loss': 0.7}\n", "do not rise evenly"),
    ],
)
def test_refused_with_the_reason(tmp_path, text, words):
    with pytest.raises(UnreadableRun, match=r"curves\.any") as error:
        read_run(write(tmp_path, text))
    assert words in str(error.value)


def test_decimal_comma_that_is_proven_once_holds_for_the_whole_file(tmp_path):
    run = read_run(write(tmp_path, "step;reward;n\n1;1,234;5\n2;0,5;6\n"))
    assert run.curves[REWARD].values.tolist() == [1.234, 0.5]


def test_console_records_by_position_where_the_caller_says_so(tmp_path):
    path = write(tmp_path, "{'loss': 0.5, 'epoch': 0.1}\nnoise\n{'loss': 0.25, 'epoch': 0.2}\n{'eval_loss': 0.3, 'epoch': 0.2}\n")
    run = read_run(path, Reading(step="order"))
    assert (run.curves[LOSS].steps.tolist(), run.curves[LOSS].values.tolist()) == ([1, 2], [0.5, 0.25])
    assert run.curves["eval_loss"].steps.tolist() == [2]


def test_console_with_two_records_on_a_line_or_a_key_twice_drops_the_line_and_says_so(tmp_path):
    text = (
        "step:1 - reward:0.5\nstep:2 - reward:0.6step:3 - reward:0.7\nstep:4 - reward:0.8 - reward:0.9\nrollout 5: {'reward': 0.1}rollout 6: {'reward': 0.2}\n"
    )
    run = read_run(write(tmp_path, text))
    assert run.curves[REWARD].steps.tolist() == [1]
    assert [note.where for note in run.notes_of(NoteKind.BROKEN_LINE)] == ["curves.any:2", "curves.any:3", "curves.any:4"]


def test_step_key_can_be_named_and_a_second_count_is_said(tmp_path):
    text = "".join(json.dumps({"_step": 2 * i, "global_step": i, "reward": 0.5 + i}) + "\n" for i in range(3))
    run = read_run(write(tmp_path, text))
    assert run.steps.tolist() == [0, 2, 4]
    assert "global_step" in run.notes_of(NoteKind.ASSUMED)[0].text
    assert read_run(write(tmp_path, text), Reading(step="global_step")).steps.tolist() == [0, 1, 2]


def test_two_writers_in_one_file_are_refused(tmp_path):
    one, two = VALUES, run_values(2)
    lines = [line for pair in zip(SHAPES["jsonl"].write(one).splitlines(), SHAPES["jsonl"].write(two).splitlines()) for line in pair]
    with pytest.raises(UnreadableRun, match="two writers"):
        read_run(write(tmp_path, "\n".join(lines)))


def test_record_again_with_an_earlier_time_is_refused(tmp_path):
    text = '{"step": 1, "time": 50, "metrics": {"a": 1.5}}\n{"step": 1, "time": 40, "metrics": {"a": 2.5}}\n'
    with pytest.raises(UnreadableRun, match="earlier time"):
        read_run(write(tmp_path, text))


def test_a_million_broken_lines_make_a_few_notes(tmp_path):
    path = write(tmp_path, '{"step": 1, "metrics": {"a": 1.5}}\n' + "broken\n" * 5000)
    notes = read_run(path).notes
    assert len(notes) == 21
    assert "4980 more" in notes[-1].text


def test_a_gigabyte_line_does_not_fill_the_memory(tmp_path, monkeypatch):
    from reports.readers import source

    monkeypatch.setattr(source, "LONGEST_LINE", 1000)
    path = write(tmp_path, '{"step": 1, "metrics": {"a": 1.5}}\n' + "x" * 5000 + '\n{"step": 2, "metrics": {"a": 2.5}}\n')
    run = read_run(path)
    assert run.curves["a"].values.tolist() == [1.5, 2.5]
    assert "longer than" in run.notes_of(NoteKind.BROKEN_LINE)[0].text


def test_compressed_file_that_ends_early_gives_what_is_whole(tmp_path):
    text = "".join(json.dumps({"step": i, "metrics": {"a": i + 0.5}}) + "\n" for i in range(5000))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text.encode())[:-3000])
    run = read_run(path)
    assert 0 < len(run.steps) < 5000
    assert run.curves["a"].values.tolist() == [i + 0.5 for i in range(len(run.steps))]
    assert NoteKind.TORN_LINE in kinds(run)


def test_extra_metric_keeps_its_own_name(tmp_path):
    assert OTHER in read_run(write(tmp_path, SHAPES["csv"].write(VALUES))).curves


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 1000,
        bytes(range(256)) * 20,
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        gzip.compress(b"", mtime=0),
        b"\x1f\x8b" + bytes(range(200)),
        b"\x28\xb5\x2f\xfd" + bytes(range(250)),
        zstandard.compress(b"x")[:-3],
        b"\n\n",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'"',
        b'step,a\n1,"0.5\n2,0.6\n',
        b'{"step": 99999999999999999999999, "metrics": {"a": 1.5}}\n',
        b'{"step": 1, "metrics": {"a": 1' + b"0" * 400 + b"}}\n",
        b"step,a\n-1,0.5\n",
        b"[1,2]\n[3,4]\n",
        b"1\n2\n3\n",
        b"{}",
        b"[]",
        b"null",
        b"step,a\n1.5,0.5\n2.5,0.6\n",
        b'{"step":1,"metrics":[1,2]}\n',
        b"step,a\n1," + b"9" * 200_000 + b"\n",
        b"{'step': nan, 'loss': 0.5}\n",
    ],
)
def test_what_holds_no_curve_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "any"
    path.write_bytes(content)
    with pytest.raises(UnreadableRun) as error:
        read_run(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    for name in readers():
        with pytest.raises((UnreadableRun, ReportError)):
            read_run(path, name)


def test_a_file_nobody_may_read_and_half_a_character_in_a_name(tmp_path):
    path = write(tmp_path, '{"step": 1, "metrics": {"\\ud800": 1.5}}\n')
    assert len(read_run(path, Reading(cache=tmp_path / "cache")).sha) == 64
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ReportError, match="loop"):
        read_run(loop)


def test_a_cut_last_row_that_fits_by_chance_is_left_out(tmp_path):
    run = read_run(write(tmp_path, "step,reward,loss,lr\n1,0.5,1.5,0.1\n2,0.25,1.25,0.1\n3,0,75,1"))
    assert run.steps.tolist() == [1, 2]
    assert NoteKind.TORN_LINE in kinds(run)
