"""The configuration: one YAML file, validated at once into frozen models. Every default stands here and only here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from slime_rl.errors import ConfigError

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Arguments = dict[str, Any]


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about names and types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class RunConfig(Section):
    """Where a run lives."""

    folder: str
    """Where everything of the run goes; must be new or empty."""
    seed: NonNegativeInt = 0
    """Seeds the order of the data, the engines and the trainer."""


class ModelConfig(Section):
    """The model that is trained: a Hugging Face folder."""

    path: str
    """A Hugging Face folder: configuration, safetensors, tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the weights in trainer and engines; master weights and gradients are float32."""
    trust_remote_code: bool = False
    """Whether code inside the model folder may run."""


class ColumnsConfig(Section):
    """Which columns of a row are the prompt and the reference answer."""

    prompt: str = "prompt"
    """Holds a text or a list of chat messages."""
    answer: str = "answer"
    """Holds what the reward compares with."""


class DataConfig(Section):
    """The prompts to train on: a JSONL file, one row a line."""

    path: str
    """A JSONL file, one prompt a line."""
    columns: ColumnsConfig = ColumnsConfig()
    """Which columns mean what; all others become metadata that rewards see."""
    template: Literal["chat", "none"] = "chat"
    """`chat` renders the model's chat template, `none` continues the text as it is."""
    system_prompt: str | None = None
    """Put before the messages of every prompt."""
    shuffle: bool = True
    """A new seeded order in each epoch."""
    max_epochs: PositiveInt | None = None
    """How often the data may be used; without it, until `loop.steps` are done."""


class RewardConfig(Section):
    """The reward: a built-in name, an entry point, or `path/to/file.py:function`."""

    function: str = "exact_match"
    """`path/to/file.py:function`, or the name of an entry point."""
    timeout_s: PositiveFloat = 30.0
    """How long grading one group may take; what takes longer is ended and tried again."""
    num_processes: PositiveInt = 1
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
    groups_per_step: PositiveInt = 32
    """Prompts in a step."""
    samples_per_prompt: PositiveInt = 8
    """Samples in a group."""
    max_lag: NonNegativeInt = 0
    """How many versions a trained token may be behind the trainer; 0 is synchronous."""
    placement: Literal["colocated", "split"] | None = None
    """`colocated` shares devices and needs `max_lag` 0; by default it follows `max_lag`."""
    drop_equal_rewards: bool = False
    """Drop and count groups whose rewards are all equal, and sample others instead."""
    stop_at_score: float | None = None
    """End early once the held-out score reaches this."""
    wait_timeout_s: PositiveFloat = 600.0
    """How long a step may wait without anything changing in the buffer."""
    max_attempts: PositiveInt = 3
    """How often a prompt is tried before it is dropped and counted."""
    lease_s: PositiveFloat = 60.0
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
    num_workers: PositiveInt = 1
    """Processes that generate and score groups."""
    max_concurrent_episodes: PositiveInt | None = None
    """Groups that one worker generates at a time; by default all slots."""
    router_policy: Literal["round_robin", "power_of_two", "cache_aware", "random"] = "round_robin"
    """How the router spreads requests."""
    transport: Literal["tensor", "disk"] = "tensor"
    """How weights reach the engines: shared memory, or a folder that both sides see."""
    start_timeout_s: PositiveFloat = 300.0
    """How long an engine may take to start."""
    request_timeout_s: PositiveFloat = 600.0
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
    betas: Annotated[tuple[float, float], Strict(False)] = (0.9, 0.95)
    """Of AdamW."""
    eps: PositiveFloat = 1e-8
    """Of AdamW."""
    weight_decay: NonNegativeFloat = 0.0
    """Of AdamW."""
    clip_grad: PositiveFloat = 1.0
    """The largest global norm of the gradient."""
    start_timeout_s: PositiveFloat = 300.0
    """How long ranks may take to meet and load."""
    step_timeout_s: PositiveFloat = 3600.0
    """How long a step, a publish or a save may take."""
    megatron: Arguments = Field(default_factory=dict)
    """Any field of Megatron's configurations, such as `{recompute_granularity: selective}`."""


class ObjectiveConfig(Section):
    """The loss (design, section 8): clipped-ratio GRPO without KL, token-weighted mean; or supervised."""

    loss: Literal["grpo", "sft"] = "grpo"
    """`grpo`, or `sft` for `slime-rl sft`."""
    normalize_by_std: bool = False
    """Divide advantages by the standard deviation of the group's rewards."""
    clip_low: Fraction = 0.2
    """The ratio is clipped at 1 - `clip_low`."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at 1 + `clip_high`."""
    correction: Literal["none", "tis"] = "tis"
    """`tis` weights tokens by trainer over engine probability, truncated; `none` does not."""
    correction_cap: PositiveFloat = 2.0
    """Where `tis` truncates."""


class EvaluationConfig(Section):
    """The held-out set, scored by the same reward on the same engines."""

    path: str
    """A JSONL file with the same columns as the training data."""
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


class CheckpointConfig(Section):
    """How often a durable checkpoint is written, in steps."""

    every: PositiveInt = 50
    """In steps; the last step is always saved."""
    keep: PositiveInt = 2
    """How many of the newest to keep."""


class BufferConfig(Section):
    """The Redis server: the run's own unless `url` names one. A password in the URL never reaches a log."""

    url: str | None = None
    """redis://, rediss:// or unix://; by default a server that lives as long as the run."""


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
        loop, objective = self.loop, self.objective
        if loop.placement == "colocated" and loop.max_lag > 0:
            raise ConfigError("loop.placement", f"must be split when loop.max_lag is {loop.max_lag}", loop.placement)
        if objective.loss == "grpo" and loop.samples_per_prompt < 2:
            raise ConfigError("loop.samples_per_prompt", "must be at least 2", loop.samples_per_prompt)
        if objective.correction == "none" and loop.max_lag > 0:
            raise ConfigError("objective.correction", "must be tis when loop.max_lag is above 0", "none")
        if loop.stop_at_score is not None and self.evaluation is None:
            raise ConfigError("loop.stop_at_score", "needs an evaluation section", loop.stop_at_score)
        return self

    def dump(self) -> str:
        """The configuration as YAML, every default written out and no password in it."""
        values = self.model_dump(mode="json")
        if self.buffer.url:
            values["buffer"]["url"] = re.sub(r"//[^@/]*@", "//***@", self.buffer.url)
        return yaml.safe_dump(values, sort_keys=False)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a YAML file with `dotted.path=value` overrides.

    Raises ConfigError with the dotted path, what was expected and what came.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"a readable configuration file ({error.strerror})", str(path)) from None
    values = parse_yaml(text, source=str(path))
    if not isinstance(values, dict):
        raise ConfigError("", "a mapping of sections", values)
    for override in overrides:
        apply_override(values, override)
    return validate(values)


def validate(values: Mapping[str, Any]) -> Config:
    """Build the configuration from plain values; raises ConfigError for the first fault."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _first_fault(error) from None


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number, as everybody means it, and a repeated key is an error."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, *, source: str) -> Any:
    """The value of a YAML text; raises ConfigError with the line at fault."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise ConfigError("", f"valid YAML in {where}", getattr(error, "problem", str(error))) from None


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `dotted.path=value` in the nested mapping `values`; the value is read as YAML."""
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError("", "an override of the form section.field=value", override)
    target = values
    for key in keys[:-1]:
        if target.get(key) is None:
            target[key] = {}
        target = target[key]
        if not isinstance(target, dict):
            raise ConfigError(path, f"cannot be set: {key} is not a section", override)
    target[keys[-1]] = parse_yaml(text, source=f"override {path}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` for the known name that is closest, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _first_fault(error: ValidationError) -> ConfigError:
    fault = error.errors(include_url=False)[0]
    limits = fault.get("ctx", {})
    cause = limits.get("error")
    if isinstance(cause, ConfigError):
        return cause
    path = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "extra_forbidden":
            parent, name = _section(fault["loc"][:-1]), str(fault["loc"][-1])
            return ConfigError(path, f"is not a known field{nearest(name, parent.model_fields)}", fault["input"])
        case "missing":
            return ConfigError(path, "is required", None)
        case "greater_than_equal":
            return ConfigError(path, f"must be at least {limits['ge']}", fault["input"])
        case "greater_than":
            return ConfigError(path, f"must be above {limits['gt']:g}", fault["input"])
        case "less_than":
            return ConfigError(path, f"must be below {limits['lt']:g}", fault["input"])
        case "literal_error":
            return ConfigError(path, f"must be {limits['expected']}", fault["input"])
        case _:
            expected = re.sub(r"^Input should be ", "", fault["msg"])
            return ConfigError(path, f"must be {expected}", fault["input"])


def _section(loc: Sequence[str | int]) -> type[BaseModel]:
    """The model class at a location, to name its fields."""
    found: type[BaseModel] = Config
    for part in loc:
        annotation = found.model_fields[str(part)].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        found = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return found
