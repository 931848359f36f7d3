"""What a run would start, for `--dry-run`."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from slime_rl.config import Config
from slime_rl.launch.preflight import Inputs
from slime_rl.launch.progress import console
from slime_rl.rollout.rendering import Renderer


def show(config: Config, inputs: Inputs) -> None:
    """Print the processes, the pace and one rendered, tokenised prompt."""
    loop, rollout = config.loop, config.rollout
    mode = "synchronous" if loop.max_lag == 0 else f"asynchronous, at most {loop.max_lag} versions behind"
    table = Table("what", "how many", box=box.SIMPLE)
    rows = {
        "steps": f"{loop.steps}, {mode}, {'colocated' if loop.colocated else 'split'}",
        "samples a step": f"{loop.groups_per_step} groups of {loop.samples_per_prompt}, in {loop.slots} slots",
        "prompts": f"{len(inputs.prompts)} to train on, {len(inputs.held_out)} held out{_left_out(inputs)}",
        "engines": f"{rollout.num_engines} SGLang servers behind a {rollout.router_policy} router",
        "rollout workers": f"{rollout.num_workers}, reward {config.reward.function}",
        "trainer ranks": f"{config.trainer.data_parallel} of Megatron, {config.model.dtype}",
        "buffer": "a server of this run" if config.buffer.url is None else "the server of buffer.url",
        "run folder": config.run.folder,
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console.print(table)
    renderer = Renderer(config.model, config.data)
    tokens = renderer.encode_prompt(inputs.prompts[0])
    console.print("first prompt:", Text(repr(renderer.decode(tokens))))
    console.print("as tokens:", tokens)


def _left_out(inputs: Inputs) -> str:
    count = inputs.selection.num_left_out
    return f", {count} left out as over-long" if count else ""
