"""The command line: `slime-rl COMMAND`. What a command needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from slime_rl.errors import SlimeError

INTERRUPTED = 130
ENGINE_MODULES = ("torch", "transformers", "megatron", "mbridge", "ray", "sglang", "sglang_router", "safetensors")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 a fault of the world, 2 the user's mistake, 130 Ctrl-C."""
    arguments = parse(argv)
    try:
        return arguments.run(arguments)
    except SlimeError as error:
        print(f"slime-rl: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ENGINE_MODULES:
            raise
        print(
            f"slime-rl: {missing.name} is not installed: run python -m slime_rl.install cpu (or gpu)", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("slime-rl: interrupted; every process of the run has ended", file=sys.stderr)
        return INTERRUPTED


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command line, on which overrides may stand before and after options."""
    root = parser()
    arguments, rest = root.parse_known_args(argv)
    if rest:
        if not hasattr(arguments, "overrides") or any(word.startswith("-") for word in rest):
            root.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    root = argparse.ArgumentParser(
        prog="slime-rl", description="Post-train language models with RL.", allow_abbrev=False
    )
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = commands.add_parser("train", allow_abbrev=False, help="run reinforcement learning from a YAML file")
    _add_config(train)
    train.add_argument("--dry-run", action="store_true", help="check everything, show what would start, start nothing")
    train.set_defaults(run=_train)

    resume = commands.add_parser("resume", allow_abbrev=False, help="go on with a run from its newest checkpoint")
    resume.add_argument("run_folder", metavar="RUN", help="a run folder")
    resume.add_argument("overrides", nargs="*", metavar="key=value", help="fields to change from here on")
    resume.set_defaults(run=_resume)

    sft = commands.add_parser("sft", help="run supervised learning from a YAML file")
    _add_config(sft)
    sft.set_defaults(run=_sft)

    evaluate = commands.add_parser("eval", help="score a model on the evaluation set of a YAML file")
    _add_config(evaluate)
    evaluate.set_defaults(run=_eval)

    export = commands.add_parser("export", help="copy a run's newest weights out as a Hugging Face folder")
    export.add_argument("run_folder", metavar="RUN", help="a run folder")
    export.add_argument("target", metavar="DIR", help="the folder to write; must not exist")
    export.set_defaults(run=_export)

    status = commands.add_parser("status", help="show what the buffer of a run under way holds")
    status.add_argument("run_folder", metavar="RUN", help="a run folder")
    status.set_defaults(run=_status)

    demo = commands.add_parser("demo", help="teach a small model to add, from nothing, on two CPU cores")
    demo.add_argument("--folder", help="where to put everything (default: the first free runs/demo-N)")
    demo.add_argument("--prepare", metavar="FOLDER", help="only make the data and the warmed-up model, in FOLDER")
    demo.add_argument("overrides", nargs="*", metavar="key=value", help="fields of the demo's configuration")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="check that this machine can run slime_rl")
    doctor.set_defaults(run=_doctor)
    return root


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="fields to set, such as trainer.lr=2e-6")


def _train(arguments: argparse.Namespace) -> int:
    from slime_rl.config_file import load_config
    from slime_rl.launch import training

    config = load_config(arguments.config, arguments.overrides)
    if arguments.dry_run:
        training.show_plan(config)
    else:
        training.run(config)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    from slime_rl.launch import resumption, supervised, training

    found = resumption.find(arguments.run_folder, arguments.overrides)
    if found.config.objective.loss == "sft":
        supervised.resume(found)
    else:
        training.resume(found)
    return 0


def _sft(arguments: argparse.Namespace) -> int:
    from slime_rl.config_file import load_config
    from slime_rl.launch import supervised

    supervised.run(load_config(arguments.config, arguments.overrides))
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    from slime_rl.config_file import load_config
    from slime_rl.launch import evaluation

    evaluation.run(load_config(arguments.config, arguments.overrides))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from slime_rl.launch import export

    export.run(arguments.run_folder, arguments.target)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from slime_rl.launch import status

    status.run(arguments.run_folder)
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from slime_rl.demo import addition

    if arguments.prepare:
        addition.prepare(Path(arguments.prepare))
    else:
        addition.run(arguments.folder, arguments.overrides)
    return 0


def _doctor(_arguments: argparse.Namespace) -> int:
    from slime_rl import doctor

    return doctor.run()


if __name__ == "__main__":
    raise SystemExit(main())
