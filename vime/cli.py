"""The `vime` command. Exit codes: 0 done, 2 the configuration or the machine must be mended, 3 the run broke, 130 or 143 interrupted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vime import interrupts
from vime.errors import Interrupted, RunError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RL post-training of large language models: Megatron-Core trains, vLLM generates, Ray places.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configurations without running anything.")
app.add_typer(config_app, name="config")
convert_app = typer.Typer(no_args_is_help=True, help="Turn weights from Hugging Face's format into Megatron's torch_dist format and back, on the CPU.")
app.add_typer(convert_app, name="convert")

models_app = typer.Typer(help="The model families: what each supports and how it was checked.")
app.add_typer(models_app, name="models")

File = Annotated[Path, typer.Argument(help="A configuration or recipe (YAML). `vime config schema` describes every key.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, for example --set train.lr=1e-6. May be repeated.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The run directory to write. Default: run_dir of the configuration, else runs/<name>/<time>.", show_default=False)
]
PlatformName = Annotated[str | None, typer.Option("--platform", help="cpu, cuda, npu or auto; the same as --set platform=…", show_default=False)]


def _resolve(file: Path, overrides: list[str] | None, platform: str | None) -> Any:
    from vime.config.resolve import resolve

    return resolve(file, [*(overrides or []), *([f"platform={platform}"] if platform else [])])


def _runnable(file: Path, overrides: list[str] | None, platform: str | None) -> Any:
    """Resolved, and its `vllm:` and `megatron:` blocks held to the installed packages; raises UserError naming file and line."""
    from vime.config.options import check_pass_through

    resolved = _resolve(file, overrides, platform)
    if problems := check_pass_through(resolved.config, resolved.provenance):
        raise UserError("\n".join(problems))
    return resolved


@app.command()
def train(
    file: Annotated[Path | None, typer.Argument(help="A configuration or recipe (YAML). May be left out with --resume.", show_default=False)] = None,
    set_: Set = None,
    out: Out = None,
    platform: PlatformName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve and check everything that needs no device, print the result, run nothing.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this directory from its last checkpoint.", show_default=False)] = None,
) -> None:
    """Train by reinforcement learning.

    vime train recipe.yaml --set seed=1 --out runs/first      a new run
    vime train --resume runs/first                            after a crash: from the last checkpoint
    """
    if dry_run:
        if file is None or resume is not None:
            raise UserError("--dry-run takes a configuration file and no --resume: what a resumed run does stands in its config.yaml")
        from vime.config.resolve import to_dict

        resolved = _runnable(file, set_, platform)
        typer.echo(json.dumps({"hash": resolved.hash, **to_dict(resolved.config)}, indent=1))
        return
    from vime.loop.start import resume_training, start_training

    if resume is not None:
        if out is not None:
            raise UserError("--out and --resume exclude each other: a resumed run stays in its directory")
        resume_training(resume, file, [*(set_ or []), *([f"platform={platform}"] if platform else [])])
    elif file is None:
        raise UserError("name a configuration file, or a run with --resume")
    else:
        start_training(_runnable(file, set_, platform), out)


@app.command()
def sft(file: File, set_: Set = None, out: Out = None, platform: PlatformName = None) -> None:
    """Train on the labels (supervised) and write a Hugging Face directory: the warm start of a recipe.

    vime sft warm.yaml --set sft.output=models/warm
    """
    from vime.loop.sft import start_sft

    start_sft(_runnable(file, set_, platform), out)


@app.command()
def doctor(
    platform: PlatformName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    versions: Annotated[Path | None, typer.Option(help="A file of version sets to hold the platform to, with --set.", show_default=False)] = None,
    set_name: Annotated[str | None, typer.Option("--set", help="The set's name in that file, for example cann-91.", show_default=False)] = None,
    probing: Annotated[bool, typer.Option("--probe", help="Also try the devices: compute, talk to each other, share memory. Takes seconds a device.")] = False,
) -> None:
    """Say what this machine has, what each platform still needs, and how to get it. With --platform the exit code says whether that platform is ready.

    As a preflight of an agent: vime doctor --platform npu --versions matrix/versions.yaml --set cann-91 --probe
    """
    from vime import doctor as module

    if (versions is None) != (set_name is None):
        raise UserError("--versions and --set go together: the file, and the name of the version set in it")
    raise typer.Exit(module.run(platform, as_json, versions=None if versions is None or set_name is None else (versions, set_name), probing=probing))


@convert_app.command("hf-to-torch-dist")
def convert_hf_to_torch_dist(
    model: Annotated[Path, typer.Argument(help="A Hugging Face model directory (config.json, *.safetensors).", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The checkpoint directory to write.", show_default=False)],
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16. Default: config.json's.", show_default=False)] = None,
) -> None:
    """Write a checkpoint of weights alone; any layout starts from it with model.load: torch-dist and model.torch_dist_path."""
    from vime.convert import hf_to_torch_dist

    hf_to_torch_dist(model, out, dtype)  # type: ignore[arg-type]


@convert_app.command("torch-dist-to-hf")
def convert_torch_dist_to_hf(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint: one of <run>/checkpoints, or a converted one.", show_default=False)],
    model: Annotated[Path, typer.Argument(help="The Hugging Face directory whose config.json and tokenizer it belongs to.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The Hugging Face directory to write.", show_default=False)],
) -> None:
    """Write the weights of a checkpoint as a Hugging Face directory."""
    from vime.convert import torch_dist_to_hf

    torch_dist_to_hf(checkpoint, model, out)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the model families: what each supports, and how it was checked."""
    if context.invoked_subcommand is None:
        from vime.models.listing import families

        typer.echo(families())


@models_app.command("show")
def models_show(directory: Annotated[Path, typer.Argument(help="A Hugging Face model directory; its weights may be missing.", show_default=False)]) -> None:
    """What vime makes of a model: its family, sizes and layouts; and whether its weights are those that config.json describes."""
    from vime.models.listing import model

    typer.echo(model(directory))


@models_app.command("twin")
def models_twin(
    config: Annotated[Path, typer.Argument(help="A published config.json, or the directory that holds it.", show_default=False)],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also write the twin's directory: config.json and a tokenizer.", show_default=False)] = None,
) -> None:
    """Make a model's twin: the same class and flags at a tiny size, every ratio that deviates listed with its reason (as matrix/models/*.yaml holds it)."""
    from vime.models.listing import twin

    typer.echo(twin(config, out), nl=False)


@config_app.command("show")
def config_show(
    file: File, set_: Set = None, platform: PlatformName = None, changed: Annotated[bool, typer.Option("--changed", help="Leave the defaults out.")] = False
) -> None:
    """Every resolved value with the place it came from."""
    from vime.config.resolve import leaf_values

    resolved = _resolve(file, set_, platform)
    shown = [(key, json.dumps(value), resolved.provenance[key]) for key, value in leaf_values(resolved.config)]
    rows = [("key", "value", "from"), *(row for row in shown if not changed or row[2] != "default")]
    widths = [min(60, max(len(row[column]) for row in rows)) for column in (0, 1)]
    for key, value, place in rows:  # whole lines, however wide the terminal: a table that wraps or cuts loses the line number
        typer.echo(f"{key:{widths[0]}}  {value:{widths[1]}}  {place}")
    typer.echo(f"hash {resolved.hash}")


@config_app.command("schema")
def config_schema(output: Annotated[Path | None, typer.Option("-o", help="Write to this file instead of the terminal.", show_default=False)] = None) -> None:
    """The JSON Schema of configuration files, for editors and for the matrix."""
    from vime.config.resolve import schema

    text = json.dumps(schema(), indent=1, sort_keys=True) + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)


def main() -> None:
    """Entry point: errors a person can act on are printed as one message, without a traceback."""
    interrupts.install()
    try:
        app()
    except (UserError, RunError) as error:
        typer.echo(f"vime: error: {error}", err=True)
        sys.exit(error.exit_code)
    except Interrupted as stop:
        typer.echo(f"vime: {stop}", err=True)
        sys.exit(128 + stop.signum)


if __name__ == "__main__":
    main()
