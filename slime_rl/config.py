"""The configuration: one YAML file, validated at once into frozen models. Every default stands here and only here."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic.fields import FieldInfo

from slime_rl.errors import ConfigError

Mark = Literal["free", "restart", "frozen"]
FROZEN: Mark = "frozen"
"""Marks a field that `slime-rl resume` refuses to change: the run would be another one."""
FREE: Mark = "free"
"""Marks a field that changes nothing of what is computed. What has no mark is `restart`: it holds from there on."""

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0), FREE]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Moment = Annotated[float, Field(ge=0, lt=1)]
Arguments = dict[str, Any]
KEY_PREFIX = "slime_rl"
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about names and types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class RunConfig(Section):
    """Where a run lives."""

    folder: Annotated[str, FROZEN]
    """Where everything of the run goes; must be new or empty."""
    seed: Annotated[int, Field(ge=0, lt=2**31), FROZEN] = 0
    """Seeds the order of the data, the engines and the trainer."""
    deterministic: Annotated[bool, FROZEN] = False
    """Make samples and weights a function of the configuration alone, at the price of speed; needs `max_lag` 0."""


class ModelConfig(Section):
    """The model that is trained: a Hugging Face folder."""

    path: str
    """A Hugging Face folder: configuration, safetensors, tokenizer."""
    dtype: Annotated[Literal["float32", "bfloat16"], FROZEN] = "bfloat16"
    """Of the weights in trainer and engines; master weights and gradients are float32."""
    trust_remote_code: bool = False
    """Whether code inside the model folder may run."""


class ColumnsConfig(Section):
    """Which columns of a row are the prompt and the reference answer."""

    prompt: str = "prompt"
    """Holds a text or a list of chat messages."""
    answer: str = "answer"
    """Holds what the reward compares with."""
    tools: str | None = None
    """Holds the tools that the chat template shows: a list of mappings, JSON text of one, or nothing."""


class SourceConfig(Section):
    """One of several parts of the training data."""

    path: str
    """As `data.path`."""
    weight: PositiveFloat = 1.0
    """Its share of the groups is this, over the sum of all weights."""
    rows: str | None = None
    """As `data.rows`."""
    columns: ColumnsConfig | None = None
    """By default `data.columns`."""


class DataConfig(Section):
    """The prompts to train on, one a row."""

    path: str | None = None
    """A JSONL or Parquet file, a folder of Hugging Face datasets, `file.py:function`, or `reasoning-gym:TASK`."""
    rows: str | None = None
    """`start:stop` or `start:stop:step`, counted from 0: only these rows; all without it."""
    sources: Annotated[tuple[SourceConfig, ...], Strict(False)] = ()
    """In place of `path`: several data sets, mixed by weights."""
    columns: Annotated[ColumnsConfig, FROZEN] = ColumnsConfig()
    """Which columns mean what; all others become metadata that rewards see."""
    template: Annotated[Literal["chat", "none"], FROZEN] = "chat"
    """`chat` renders the model's chat template, `none` continues the text as it is."""
    system_prompt: Annotated[str | None, FROZEN] = None
    """Put before the messages of every prompt."""
    max_prompt_tokens: PositiveInt | None = None
    """How long a prompt to train on may be, as rendered; each one is rendered before the run starts to see it."""
    over_long: Literal["error", "drop"] = "error"
    """What becomes of a longer one: an error, or it is left out and counted."""
    shuffle: Annotated[bool, FROZEN] = True
    """A new seeded order in each epoch."""
    max_epochs: PositiveInt | None = None
    """How often each source may be used; without it, until `loop.steps` are done."""

    @property
    def named(self) -> dict[str, SourceConfig]:
        """The sources by the dotted path that each has in the configuration; one where `path` stands alone."""
        if self.path is not None:
            return {"data": SourceConfig(path=self.path, rows=self.rows)}
        return {f"data.sources.{number}": source for number, source in enumerate(self.sources)}


class RewardConfig(Section):
    """The reward: a built-in name, an entry point, or `path/to/file.py:function`."""

    function: str = "exact_match"
    """`path/to/file.py:function`, or the name of an entry point."""
    timeout_s: Seconds = 30.0
    """How long grading one group may take; what takes longer is ended and tried again."""
    num_processes: Annotated[PositiveInt, FREE] = 1
    """Grader processes of each rollout worker."""


class SamplingConfig(Section):
    """How training rollouts are sampled. Only the temperature shapes the distribution: its log-probs are trained on."""

    temperature: PositiveFloat = 1.0
    """Log-probs are taken at this temperature, in the engine and in the trainer."""
    max_new_tokens: PositiveInt = 1024
    """How many tokens a sample may have; longer ones are cut and trained with their reward."""
    stop_token_ids: Annotated[tuple[int, ...], Strict(False)] = ()
    """End a sample besides the model's own end-of-text tokens."""


class LoopConfig(Section):
    """The one training loop. `max_lag` 0 is synchronous; k >= 1 lets no trained token be older than k versions."""

    steps: PositiveInt
    """Training steps of the whole run; each makes a new version."""
    groups_per_step: Annotated[PositiveInt, FROZEN] = 32
    """Prompts in a step."""
    samples_per_prompt: Annotated[PositiveInt, FROZEN] = 8
    """Samples in a group."""
    max_lag: Annotated[NonNegativeInt, FROZEN] = 0
    """How many versions a trained token may be behind the trainer; 0 is synchronous."""
    placement: Literal["colocated", "split"] | None = None
    """`colocated` shares devices and needs `max_lag` 0; by default it follows `max_lag`."""
    on_straggler: Literal["wait", "requeue", "mask"] = "wait"
    """What becomes of a group that is not finished when due: `requeue` starts it again, `mask` trains it later."""
    filters: Annotated[tuple[str, ...], Strict(False)] = ()
    """What drops scored groups, counted, for others: `equal_rewards`, `all_truncated`, `path/to/file.py:function`."""
    filter_timeout_s: Seconds = 30.0
    """How long a filter of a file may take for one group."""
    allow_smaller_groups: bool = False
    """Train a group of which some samples could not be had, if at least two are left; else it is sampled again."""
    stop_at_score: float | None = None
    """End early once the held-out score reaches this."""
    wait_timeout_s: Seconds = 600.0
    """How long a step may wait without anything changing in the buffer."""
    max_dropped_per_step: PositiveInt = 1000
    """How many groups may be dropped while one step waits for its own; more end the run with the reasons."""
    max_attempts: PositiveInt = 3
    """How often a prompt is tried before it is dropped and counted."""
    lease_s: Seconds = 60.0
    """After this long without a sign of life a worker's groups are given to others."""

    @property
    def slots(self) -> int:
        """How many groups may be outstanding: no group is born stale (design, section 4)."""
        return (self.max_lag + 1) * self.groups_per_step

    @property
    def colocated(self) -> bool:
        """Whether engines and trainer take turns on the same devices; follows `max_lag` unless it is set."""
        return self.placement == "colocated" or (self.placement is None and self.max_lag == 0)


class RolloutConfig(Section):
    """The engines, their router and the workers that use them. `sglang` passes any server argument through."""

    num_engines: PositiveInt = 1
    """SGLang servers."""
    num_workers: Annotated[PositiveInt, FREE] = 1
    """Processes that generate and score groups."""
    max_concurrent_episodes: Annotated[PositiveInt | None, FREE] = None
    """Groups that one worker generates at a time; by default all slots."""
    segment_tokens: PositiveInt | None = 1024
    """Longer answers are generated in parts of so many tokens, each durable before the next: what a crash can cost."""
    oversample: Annotated[float, Field(ge=1.0), FROZEN] = 1.0
    """Generate so many times the groups of a step and train the first that finish; the others' prompts come again."""
    router_policy: Annotated[Literal["round_robin", "power_of_two", "cache_aware", "random"], FREE] = "round_robin"
    """How the router spreads requests."""
    transport: Annotated[Literal["tensor", "disk"], FREE] = "tensor"
    """How weights reach the engines: shared memory, or a folder that both sides see."""
    start_timeout_s: Seconds = 300.0
    """How long an engine may take to start."""
    request_timeout_s: Seconds = 600.0
    """How long one request to an engine may take."""
    sglang: Arguments = Field(default_factory=dict)
    """Any argument of the SGLang server, such as `{context_length: 4096}`."""


class TrainerConfig(Section):
    """The Megatron side. `megatron` passes any TransformerConfig or OptimizerConfig field through."""

    data_parallel: PositiveInt = 1
    """Data-parallel ranks."""
    max_tokens_per_microbatch: PositiveInt = 8192
    """Samples are packed up to this many tokens; a longer one goes alone."""
    lr: PositiveFloat = 1e-6
    """Of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From `lr` to `min_lr` over `loop.steps`."""
    lr_warmup_steps: NonNegativeInt = 0
    """Linear warm-up from 0."""
    min_lr: NonNegativeFloat = 0.0
    """Where the schedule ends."""
    betas: Annotated[tuple[Moment, Moment], Strict(False)] = (0.9, 0.95)
    """Of AdamW."""
    eps: PositiveFloat = 1e-8
    """Of AdamW."""
    weight_decay: NonNegativeFloat = 0.0
    """Of AdamW."""
    clip_grad: PositiveFloat = 1.0
    """The largest global norm of the gradient."""
    start_timeout_s: Seconds = 300.0
    """How long ranks may take to meet and load."""
    step_timeout_s: Seconds = 3600.0
    """How long a step, a publish or a save may take."""
    megatron: Arguments = Field(default_factory=dict)
    """Any field of Megatron's configurations, such as `{recompute_granularity: selective}`."""


class ObjectiveConfig(Section):
    """The loss (design, section 8): clipped-ratio GRPO without KL, token-weighted mean; or supervised."""

    loss: Annotated[Literal["grpo", "gspo", "cispo", "sft"], FROZEN] = "grpo"
    """`grpo` clips each token's ratio, `gspo` its sequence's, `cispo` only a weight; `sft` is for `slime-rl sft`."""
    estimator: Literal["grpo", "rloo", "reinforce_pp"] = "grpo"
    """Rewards less the group's mean; `rloo` less the mean of the others; `reinforce_pp` over the step's deviation."""
    normalize_by_std: bool = False
    """Divide advantages by the standard deviation of the group's rewards."""
    reducer: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """The mean over tokens, over sequences of theirs, or over sequences of their sum over `reducer_length`."""
    reducer_length: PositiveInt | None = None
    """What `constant` divides a sequence's sum by, such as `sampling.max_new_tokens` (Dr. GRPO)."""
    clip_low: Fraction = 0.2
    """The ratio is clipped at 1 - `clip_low`."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at 1 + `clip_high`."""
    mask_truncated: bool = False
    """Leave samples that were cut at `sampling.max_new_tokens` out of the loss; their rewards count in their groups."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """The largest loss of a token with a negative advantage A is -A times this; `loss` grpo and gspo only."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Added to each token's loss: minus this times the entropy of its distribution."""
    correction: Literal["none", "tis", "icepop", "sequence_mask"] = "tis"
    """Of trainer over engine probability: `tis` truncates, `icepop` drops tokens, `sequence_mask` whole sequences."""
    correction_cap: PositiveFloat = 2.0
    """Where `tis` truncates."""
    correction_low: PositiveFloat = 0.5
    """Below this, `icepop` drops a token and `sequence_mask`, by the geometric mean, a sequence."""
    correction_high: PositiveFloat = 2.0
    """Above this, the same."""


class EvaluationConfig(Section):
    """The held-out set, scored by the same reward on the same engines."""

    path: str
    """A data set of any kind that `data.path` may name, with the same columns as the training data."""
    rows: str | None = None
    """`start:stop` or `start:stop:step`, counted from 0: only these rows; all without it."""
    every: PositiveInt = 20
    """In steps; the start and the last step are always scored."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    num_samples: PositiveInt = 1
    """Samples of each prompt; their mean counts."""
    max_new_tokens: PositiveInt | None = None
    """By default `sampling.max_new_tokens`."""
    max_prompts: PositiveInt | None = None
    """Only the first so many prompts."""
    timeout_s: Seconds = 1800.0
    """How long one evaluation may take."""


class CheckpointConfig(Section):
    """How often a durable checkpoint is written, in steps."""

    every: Annotated[PositiveInt, FREE] = 50
    """In steps; the last step is always saved."""
    keep: Annotated[PositiveInt, FREE] = 2
    """How many of the newest to keep."""


class BufferConfig(Section):
    """The Redis server: the run's own unless `url` names one. A password in the URL never reaches a log."""

    url: Annotated[str | None, FREE] = None
    """redis://, rediss:// (any node of a cluster) or unix://; by default a server that lives as long as the run."""
    url_env: Annotated[str | None, FREE] = None
    """The environment variable that holds the URL, so that its password stands in no file."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$"), FROZEN] = KEY_PREFIX
    """What the names of all keys begin with, after their brace."""
    tls_ca: Annotated[str | None, FREE] = None
    """A PEM file of the authorities that may have signed the server's certificate; by default the system's."""
    tls_cert: Annotated[str | None, FREE] = None
    """A PEM file with the certificate that this side shows, where the server asks for one."""
    tls_key: Annotated[str | None, FREE] = None
    """A PEM file with the private key of `tls_cert`."""
    call_timeout_s: Annotated[float, Field(gt=10), FREE] = 30.0
    """How long the server may take to answer; above the 10 s for which a call waits for news."""
    reconnect_timeout_s: Seconds = 60.0
    """How long a call is repeated while the server is out of reach or loading its data."""

    compression: Annotated[Literal["none", "zstd"], FREE] = "none"
    """Of groups on the server: `zstd` (level 1) halves them at a quarter of the speed."""
    inline_limit: Annotated[NonNegativeInt, FREE] = 2**18
    """Extra arrays of a sample, such as routed experts, go to a file of their own above so many bytes."""
    blobs: Annotated[str | None, FREE] = None
    """Where these go: a folder, or a URL that fsspec opens, seen by workers and trainer; by default the run folder."""

    def find_url(self) -> str | None:
        """The URL of an external server, or None for one of the run's own.

        Raises ConfigError if `url_env` names a variable that is not set, the URL is of another kind, or a file of TLS
        is missing or has no effect.
        """
        path, url = "buffer.url", self.url
        if self.url_env is not None:
            path, url = "buffer.url_env", os.environ.get(self.url_env)
            if url is None:
                raise ConfigError(path, "must name an environment variable that is set", self.url_env)
        if url is not None and not url.startswith(REDIS_SCHEMES):
            raise ConfigError(path, f"must be one of {', '.join(REDIS_SCHEMES)}", without_credentials(url))
        self._check_tls(encrypted=url is not None and url.startswith("rediss"))
        return url

    def _check_tls(self, *, encrypted: bool) -> None:
        for name in ("tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not encrypted:
                raise ConfigError(f"buffer.{name}", "has no effect unless the URL begins with rediss", path)
            if path is not None and not os.path.isfile(path):
                raise ConfigError(f"buffer.{name}", "must be a PEM file", path)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("buffer.tls_key", "must be given with buffer.tls_cert, and not without", self.tls_key)


class Config(Section):
    """A whole run."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    loop: LoopConfig
    reward: RewardConfig = RewardConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    evaluation: EvaluationConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    buffer: BufferConfig = BufferConfig()

    @model_validator(mode="after")
    def _combine(self) -> Config:
        for check in (
            _check_data,
            _check_loop,
            _check_objective,
            _check_deterministic,
            _check_without_effect,
            _check_schedule,
        ):
            check(self)
        return self

    def dump(self) -> str:
        """The configuration as YAML, every default written out and no password in it."""
        values = self.model_dump(mode="json")
        if self.buffer.url:
            values["buffer"]["url"] = without_credentials(self.buffer.url)
        return yaml.safe_dump(values, sort_keys=False)


def _check_data(config: Config) -> None:
    data = config.data
    if data.path is None and not data.sources:
        raise ConfigError("data.path", "is required, or data.sources", None)
    if data.path is not None and data.sources:
        raise ConfigError("data.path", "has no effect beside data.sources", data.path)
    if data.rows is not None and data.sources:
        raise ConfigError("data.rows", "has no effect beside data.sources", data.rows)
    if data.over_long == "drop" and data.max_prompt_tokens is None:
        raise ConfigError("data.over_long", "has no effect without data.max_prompt_tokens", data.over_long)
    for name, source in data.named.items():
        _check_rows(f"{name}.rows", source.rows)
        columns = source.columns or data.columns
        if columns.tools is not None and data.template == "none":
            path = f"{name}.columns.tools" if source.columns else "data.columns.tools"
            raise ConfigError(path, "has no effect when data.template is none", columns.tools)
    if config.evaluation is not None:
        _check_rows("evaluation.rows", config.evaluation.rows)


def _check_rows(path: str, rows: str | None) -> None:
    if rows is not None:
        try:
            parse_rows(rows)
        except ValueError as error:
            raise ConfigError(path, str(error), rows) from None


def _check_loop(config: Config) -> None:
    loop, objective = config.loop, config.objective
    if loop.placement == "colocated" and loop.max_lag > 0:
        raise ConfigError("loop.placement", f"must be split when loop.max_lag is {loop.max_lag}", loop.placement)
    if objective.loss != "sft" and loop.samples_per_prompt < 2:
        raise ConfigError("loop.samples_per_prompt", "must be at least 2", loop.samples_per_prompt)
    if objective.correction == "none" and loop.max_lag > 0:
        raise ConfigError("objective.correction", "must not be none when loop.max_lag is above 0", "none")
    if loop.stop_at_score is not None and config.evaluation is None:
        raise ConfigError("loop.stop_at_score", "needs an evaluation section", loop.stop_at_score)


def _check_deterministic(config: Config) -> None:
    """One request at a time, by one worker and one engine: anything else leaves the last bits to chance."""
    if not config.run.deterministic:
        return
    rollout = config.rollout
    largest = {
        "loop.max_lag": (config.loop.max_lag, 0),
        "rollout.num_engines": (rollout.num_engines, 1),
        "rollout.num_workers": (rollout.num_workers, 1),
        "rollout.max_concurrent_episodes": (rollout.max_concurrent_episodes or 1, 1),
        "rollout.oversample": (rollout.oversample, 1.0),
    }
    for path, (value, limit) in largest.items():
        if value > limit:
            raise ConfigError(path, f"must be {limit:g} when run.deterministic is true", value)
    if rollout.segment_tokens not in (None, RolloutConfig().segment_tokens):
        raise ConfigError(
            "rollout.segment_tokens", "has no effect when run.deterministic is true", rollout.segment_tokens
        )


def _check_objective(config: Config) -> None:
    """Each number of the objective belongs to one choice of it."""
    objective, default = config.objective, ObjectiveConfig()
    band = "icepop or sequence_mask"
    belongs = {
        "correction_cap": (objective.correction == "tis", "objective.correction is tis"),
        "correction_low": (objective.correction in ("icepop", "sequence_mask"), f"objective.correction is {band}"),
        "correction_high": (objective.correction in ("icepop", "sequence_mask"), f"objective.correction is {band}"),
        "dual_clip": (objective.loss in ("grpo", "gspo"), "objective.loss is grpo or gspo"),
        "reducer_length": (objective.reducer == "constant", "objective.reducer is constant"),
        "entropy_bonus": (objective.loss != "sft", "objective.loss is not sft"),
        "estimator": (objective.loss != "sft", "objective.loss is not sft"),
        "normalize_by_std": (
            objective.loss != "sft" and objective.estimator != "reinforce_pp",
            "objective.loss is not sft, and objective.estimator not reinforce_pp, which divides by the step's",
        ),
    }
    for name, (has_effect, when) in belongs.items():
        value = getattr(objective, name)
        if value != getattr(default, name) and not has_effect:
            raise ConfigError(f"objective.{name}", f"has an effect only when {when}", value)
    if objective.reducer == "constant" and objective.reducer_length is None:
        raise ConfigError("objective.reducer_length", "is required when objective.reducer is constant", None)
    if objective.correction_low >= objective.correction_high:
        expected = f"must be below objective.correction_high, {objective.correction_high:g}"
        raise ConfigError("objective.correction_low", expected, objective.correction_low)


def _check_without_effect(config: Config) -> None:
    """An option that would change nothing is a mistake, and is told as one."""
    data, objective, evaluation = config.data, config.objective, config.evaluation
    if config.loop.on_straggler != "wait" and config.loop.max_lag == 0:
        raise ConfigError("loop.on_straggler", "has no effect when loop.max_lag is 0", config.loop.on_straggler)
    if data.system_prompt is not None and data.template == "none":
        raise ConfigError("data.system_prompt", "has no effect when data.template is none", data.system_prompt)
    if evaluation is not None and evaluation.temperature == 0 and evaluation.num_samples > 1:
        raise ConfigError(
            "evaluation.num_samples", "must be 1 when evaluation.temperature is 0", evaluation.num_samples
        )
    if config.buffer.blobs is not None and "://" in config.buffer.blobs and "@" in config.buffer.blobs:
        shown = without_credentials(config.buffer.blobs)
        raise ConfigError("buffer.blobs", "must have no user or password in it: fsspec finds them by itself", shown)
    if config.buffer.url is not None and config.buffer.url_env is not None:
        raise ConfigError("buffer.url_env", "has no effect when buffer.url is set", config.buffer.url_env)
    if objective.loss == "sft":
        unused = {
            "sampling": SamplingConfig(),
            "reward": RewardConfig(),
            "rollout": RolloutConfig(),
            "buffer": BufferConfig(),
        }
        for name, default in unused.items():
            if getattr(config, name) != default:
                raise ConfigError(name, "has no effect when objective.loss is sft", "a section")


def _check_schedule(config: Config) -> None:
    trainer, steps = config.trainer, config.loop.steps
    if trainer.lr_warmup_steps > steps:
        raise ConfigError("trainer.lr_warmup_steps", f"must be at most loop.steps, {steps}", trainer.lr_warmup_steps)
    if trainer.min_lr > trainer.lr:
        raise ConfigError("trainer.min_lr", f"must be at most trainer.lr, {trainer.lr:g}", trainer.min_lr)
    if trainer.min_lr > 0 and trainer.lr_schedule == "constant":
        raise ConfigError("trainer.min_lr", "has no effect when trainer.lr_schedule is constant", trainer.min_lr)


def mark_of(field: FieldInfo) -> Mark:
    """What `slime-rl resume` makes of a change of a field."""
    return next((mark for mark in field.metadata if mark in get_args(Mark)), "restart")


def without_credentials(url: str) -> str:
    """A URL without user, password and query: what may be shown and logged."""
    scheme, slashes, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + slashes + rest.rpartition("@")[2].partition("?")[0]


def parse_rows(text: str) -> slice:
    """The slice that `start:stop:step` spells; raises ValueError for any other text, and for one that is empty."""
    found = re.fullmatch(r"(\d*):(\d*)(?::(\d*))?", text)
    if found is None:
        raise ValueError("must be start:stop or start:stop:step, in whole numbers from 0")
    start, stop, step = (int(part) if part else None for part in found.groups())
    if step == 0 or (stop is not None and stop <= (start or 0)):
        raise ValueError("must choose at least one row")
    return slice(start, stop, step)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` for the known name that is closest, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
