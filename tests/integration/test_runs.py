"""Whole runs through the command line, with the real Ray, Redis server, SGLang and Megatron."""

import fcntl
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from processes import wait_for, wait_until_ended

from slime_rl.buffer.order import Order, Source

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.megatron]

REWARD = """
def digits(prompt, sample):
    return sum(c.isdigit() for c in sample.text) / 6
"""
TIMEOUT_S = 420.0
END_S = 30.0


@pytest.fixture
def config(tmp_path: Path, model_folder: Path) -> dict:
    """A run of a few small steps on one engine."""
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(8)]
    for name, part in (("train", rows[:50]), ("heldout", rows[50:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return {
        "run": {"folder": str(tmp_path / "run")},
        "model": {"path": str(model_folder), "dtype": "float32"},
        "data": {"path": str(tmp_path / "train.jsonl"), "template": "none"},
        "reward": {"function": f"{tmp_path / 'reward.py'}:digits"},
        "sampling": {"max_new_tokens": 6, "temperature": 0.9},
        "loop": {"steps": 4, "groups_per_step": 8, "samples_per_prompt": 4},
        "rollout": {"sglang": {"context_length": 64, "max_total_tokens": 8192}},
        "trainer": {"lr": 1e-3},
        "evaluation": {"path": str(tmp_path / "heldout.jsonl"), "every": 4},
        "checkpoint": {"every": 2, "keep": 1},
    }


@contextmanager
def started(config: dict, *arguments: str, command: str = "train") -> Iterator[subprocess.Popen]:
    """A command on `config` in a process group of its own, ended with the block."""
    folder = Path(config["run"]["folder"])
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config))
    subject = folder if command in ("export", "resume") else file
    process = subprocess.Popen(
        [sys.executable, "-m", "slime_rl.cli", command, str(subject), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    try:
        yield process
    except BaseException:
        print_ends(folder / "logs")
        raise
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdout and not process.stdout.closed:
            process.communicate()


def print_ends(logs: Path) -> None:
    """The end of every log of a run, for pytest to show with the failure."""
    for log in sorted(logs.glob("*")):
        print(f"--- {log}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n")


def heed_ctrl_c() -> None:
    """A test run in the background of a shell ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def completed(config: dict, *arguments: str, command: str = "train") -> str:
    """What a command printed that ended well."""
    with started(config, *arguments, command=command) as process:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed
    return printed


def metrics_of(config: dict) -> list[dict]:
    lines = (Path(config["run"]["folder"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for_first_step(config: dict, process: subprocess.Popen) -> None:
    wait_for_steps(config, process, 1)


def wait_for_steps(config: dict, process: subprocess.Popen, num_steps: int) -> None:
    metrics = Path(config["run"]["folder"]) / "metrics.jsonl"

    def stepped_or_ended() -> bool:
        return process.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") >= num_steps)

    wait_for(stepped_or_ended, f"step {num_steps}", TIMEOUT_S)
    assert process.poll() is None, process.communicate()[0]


def family(pid: int) -> list[psutil.Process]:
    """A process's descendants."""
    return psutil.Process(pid).children(recursive=True)


def of_engines(pid: int) -> list[psutil.Process]:
    """The descendants that are SGLang's schedulers."""
    return [p for p in family(pid) if p.name().startswith("sglang::sch") or "sglang::scheduler" in p.cmdline()]


def test_a_synchronous_run_trains_on_its_own_version_and_leaves_what_it_should(config):
    completed(config, "trainer.data_parallel=2")
    folder = Path(config["run"]["folder"])
    rows = metrics_of(config)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {row["lag_max"] for row in rows} == {0}
    assert all(row["logprob_abs_diff"] < 3e-5 for row in rows)
    assert rows[-1]["reward"] > 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["max_lag_seen"] == 0
    assert math.isfinite(summary["heldout_before"])
    assert math.isfinite(summary["heldout_after"])
    assert summary["logprob_abs_diff_mean"] < 3e-5
    assert set(summary["seconds_by_phase"]) >= {"start", "wait", "train", "publish", "evaluate"}
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["version-000004"]
    assert len(list((folder / "samples").iterdir())) == 4
    assert (folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").iterdir())
    check_export(folder / "export")


def check_export(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = tokenizer("1+1=", return_tensors="pt")["input_ids"]
    assert model(tokens).logits.isfinite().all()


def test_two_deterministic_runs_end_with_the_same_bits(config, tmp_path):
    config["loop"]["filters"] = ["equal_rewards"]
    config["evaluation"]["every"] = 1
    ends = []
    for name in ("first", "second"):
        config["run"] = {"folder": str(tmp_path / name), "deterministic": True}
        completed(config)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        ends.append((weights_of(config), summary["heldout_after"], [row["reward"] for row in metrics_of(config)]))
    assert ends[0] == ends[1]


def test_a_run_that_was_killed_three_times_ends_with_the_bits_of_one_that_was_not(config, tmp_path):
    config["loop"] |= {"steps": 20, "groups_per_step": 4, "filters": ["equal_rewards"]}
    config["checkpoint"]["every"] = 3
    config["evaluation"]["every"] = 10
    config["run"] = {"folder": str(tmp_path / "undisturbed"), "deterministic": True}
    completed(config)
    undisturbed = weights_of(config), [(row["reward"], row["loss"]) for row in metrics_of(config)]
    config["run"]["folder"] = str(tmp_path / "killed")
    moments = sorted(random.uniform(1, 18) for _ in range(3))
    for command, moment in zip(("train", "resume", "resume"), moments, strict=True):
        with started(config, command=command) as process:
            wait_for_steps(config, process, int(moment))
            time.sleep(moment % 1)
            process.kill()
    completed(config, command="resume")
    killed = weights_of(config), [(row["reward"], row["loss"]) for row in metrics_of(config)]
    assert killed == undisturbed, f"killed at steps {moments}"


def weights_of(config: dict) -> str:
    """The SHA-256 of the weights that a run ended with."""
    digest = hashlib.sha256()
    for file in sorted((Path(config["run"]["folder"]) / "export").glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def test_an_asynchronous_run_is_stale_but_never_beyond_the_bound(config):
    config["loop"] |= {"steps": 8, "max_lag": 2}
    config["rollout"] |= {"num_engines": 2, "num_workers": 2, "transport": "disk", "segment_tokens": 2}
    completed(config, "checkpoint.every=8")
    lags = [row["lag_max"] for row in metrics_of(config)]
    assert len(lags) == 8
    assert max(lags) <= 2
    assert max(lags) >= 1
    assert all(row["logprob_abs_diff"] < 3e-5 for row in metrics_of(config))


def test_data_that_end_end_the_run_with_a_smaller_step_and_a_last_score(config, tmp_path):
    config["data"]["max_epochs"] = 1
    (tmp_path / "mine.py").write_text("def keep(prompt, samples):\n    return prompt.text[0] != '3' or 'threes'\n")
    filters = [f"{tmp_path / 'mine.py'}:keep", "equal_rewards"]
    config["loop"] |= {"steps": 100, "groups_per_step": 32, "filters": filters}
    completed(config)
    folder = Path(config["run"]["folder"])
    rows, summary = metrics_of(config), json.loads((folder / "summary.json").read_text())
    assert len(rows) == 2
    trained = sum(row["num_groups"] for row in rows)
    assert trained + sum(summary["dropped"].values()) == 50
    assert summary["dropped"]["threes"] == 8
    assert [json.loads(line)["version"] for line in (folder / "events.jsonl").read_text().splitlines()] == [0, 2]


def test_a_mix_of_sources_ends_with_the_first_of_them_and_over_long_prompts_are_left_out(config, tmp_path):
    (tmp_path / "rows.py").write_text(
        "def fn():\n"
        "    yield {'prompt': '1+1=' * 10, 'answer': 2}\n"
        "    yield from ({'prompt': f'{a}+9=', 'answer': a + 9} for a in range(20))\n"
    )
    sources = [
        {"path": f"{tmp_path / 'rows.py'}:fn"},
        {"path": config["data"].pop("path"), "rows": "::2", "weight": 3.0},
    ]
    config["data"] |= {"sources": sources, "max_epochs": 1, "max_prompt_tokens": 20, "over_long": "drop"}
    config["loop"] |= {"steps": 100, "groups_per_step": 16, "max_lag": 1}
    config["rollout"] |= {"num_workers": 2}
    assert "left out 1 of 46 prompts, longer than 20 tokens" in completed(config)
    summary = json.loads((Path(config["run"]["folder"]) / "summary.json").read_text())
    assert (summary["prompts"], summary["prompts_over_long"]) == (45, 1)
    trained = sum(row["num_groups"] for row in metrics_of(config)) + sum(summary["dropped"].values())
    assert trained == Order((Source(20), Source(25, 3.0)), 0, True).num_issues(1)


def test_supervised_learning_evaluation_and_export_from_the_command_line(config, tmp_path):
    supervised = {name: config[name] for name in ("run", "model", "data", "trainer", "evaluation", "checkpoint")}
    supervised |= {"objective": {"loss": "sft"}, "loop": {"steps": 30, "groups_per_step": 16}}
    completed(supervised, command="sft")
    probabilities = [row["heldout_probability"] for row in metrics_of(supervised) if "heldout_probability" in row]
    assert probabilities[-1] > probabilities[0]
    completed({"run": config["run"]}, str(tmp_path / "copy"), command="export")
    check_export(tmp_path / "copy")
    config["model"]["path"] = str(tmp_path / "copy")
    printed = completed(config, command="eval")
    [result] = Path(config["run"]["folder"]).glob("evaluations/*/result.json")
    assert f"score {json.loads(result.read_text())['score']:.4f} over 14 prompts" in printed


def test_ctrl_c_while_engines_start_leaves_no_process_and_frees_the_folder(config):
    logs = Path(config["run"]["folder"]) / "logs" / "engine-0.log"
    with started(config) as process:
        wait_for(logs.exists, "the engine's start", TIMEOUT_S)
        processes = family(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    wait_until_ended(processes, END_S)
    assert not json.loads((logs.parents[1] / "run.json").read_text())["began"]


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_with_every_process_of_it(config, interruption):
    config["loop"]["steps"] = 10_000
    with started(config) as process:
        wait_for_first_step(config, process)
        processes = family(process.pid)
        if interruption == signal.SIGINT:
            os.killpg(process.pid, interruption)  # as a terminal sends Ctrl-C
        else:
            process.send_signal(interruption)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "interrupted; every process of the run has ended" in printed
    wait_until_ended(processes, END_S)


def test_a_killed_driver_leaves_no_process(config):
    config["loop"]["steps"] = 10_000
    with started(config) as process:
        wait_for_first_step(config, process)
        processes = family(process.pid)
        process.kill()
    wait_until_ended(processes, END_S)


def test_a_run_goes_on_when_its_server_is_killed(config):
    config["loop"] |= {"steps": 12, "max_lag": 1}
    with started(config) as process:
        wait_for_first_step(config, process)
        [server] = [p for p in family(process.pid) if p.name() in ("valkey-server", "redis-server")]
        server.kill()
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed
    assert [row["step"] for row in metrics_of(config)] == [*range(1, 13)]
    assert "restart 1 of" in (Path(config["run"]["folder"]) / "logs" / "redis.log").read_text()


@pytest.mark.parametrize("victim", ["engine 0", "rollout worker 0", "trainer rank 0"])
def test_a_killed_part_ends_the_run_with_its_name(config, victim):
    config["loop"]["steps"] = 10_000
    with started(config) as process:
        wait_for_first_step(config, process)
        processes = family(process.pid)
        kill_part(process.pid, victim)
        printed, _ = process.communicate(timeout=90)
    assert process.returncode == 1, printed
    assert f"slime-rl: {victim}" in printed
    wait_until_ended(processes, END_S)


def test_a_killed_run_goes_on_from_its_newest_checkpoint(config):
    config["loop"] |= {"steps": 6}
    with started(config, "trainer.data_parallel=2") as process:
        wait_for_steps(config, process, 3)
        process.kill()
    folder = Path(config["run"]["folder"])
    printed = completed(config, "loop.steps=7", "trainer.lr=2e-3", command="resume")
    rows = metrics_of(config)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7], printed
    assert {row["lr"] for row in rows[:2]} == {1e-3}
    assert {row["lr"] for row in rows[4:]} == {2e-3}
    assert all(row["logprob_abs_diff"] < 3e-5 for row in rows)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    [resumed] = [event for event in events if event["event"] == "resumed"]
    assert resumed["version"] in (2, 4)
    assert resumed["changes"] == {"loop.steps": 7, "trainer.lr": 2e-3}
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["dropped"]) == (7, {})
    assert (folder / "export").resolve().name == "version-000007"
    check_export(folder / "export")


def test_an_asynchronous_run_killed_before_its_first_checkpoint_goes_on_without_its_server(config):
    config["loop"] |= {"steps": 5, "max_lag": 1}
    config["checkpoint"] = {"every": 100}
    with started(config) as process:
        wait_for_first_step(config, process)
        process.kill()
    folder = Path(config["run"]["folder"])
    wait_for(lambda: free_of_its_server(folder), "the end of the run's server", END_S)
    for file in (folder / "redis").glob("appendonlydir/*"):
        file.unlink()
    completed(config, command="resume")
    assert [row["step"] for row in metrics_of(config)] == [1, 2, 3, 4, 5]
    assert max(row["lag_max"] for row in metrics_of(config)) <= 1


def free_of_its_server(folder: Path) -> bool:
    with open(folder / "redis" / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def kill_part(driver: int, victim: str) -> None:
    if victim == "engine 0":
        of_engines(driver)[0].kill()
        return
    actor = {"rollout worker 0": "ray::WorkerActor", "trainer rank 0": "ray::TrainerActor"}[victim]
    [found] = [p for p in family(driver) if any(actor in word for word in p.cmdline())]
    found.kill()
