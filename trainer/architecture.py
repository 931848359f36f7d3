"""What a Hugging Face folder says about its model, checked against what the trainer can build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from slime_rl.errors import ModelError

FAMILIES = ("llama", "qwen2", "qwen3")
_MUST_BE_OFF = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen2": ("use_sliding_window",),
    "qwen3": ("attention_bias", "use_sliding_window"),
}
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The only shape of Llama 3's scaled RoPE that megatron has."""


def read_architecture(folder: str | Path) -> PretrainedConfig:
    """The configuration of a model folder that the trainer can build and load.

    Raises ModelError where something is missing, or of a kind that is not known.
    """
    folder = Path(folder)
    values = _read_json(folder / "config.json")
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{folder}: model_type must be one of {', '.join(FAMILIES)}, got {family!r}")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder}: expected weights in *.safetensors files, found none")
    if values.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{folder}: hidden_act must be silu, got {values['hidden_act']!r}")
    for name in _MUST_BE_OFF[family]:
        if values.get(name):
            raise ModelError(f"{folder}: {name} must be off for {family}, got {values[name]!r}")
    try:
        architecture = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, StrictDataclassError) as error:
        raise ModelError(f"{folder}/config.json: {error}") from error
    rope_arguments(architecture)
    return architecture


def rope_arguments(architecture: PretrainedConfig) -> dict[str, Any]:
    """Megatron's arguments for the rotary position embedding (Su et al. 2021, arXiv 2104.09864).

    Raises ModelError for a kind of scaling that megatron does not have.
    """
    rope = architecture.rope_parameters
    arguments: dict[str, Any] = {"position_embedding_type": "rope", "rotary_base": rope["rope_theta"]}
    match rope.get("rope_type", "default"):
        case "default":
            return arguments
        case "linear":
            return arguments | {"seq_len_interpolation_factor": rope["factor"]}
        case "llama3" if all(rope[name] == value for name, value in _LLAMA3_ROPE.items()):
            return arguments | {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
        case kind:
            raise ModelError(f"rope_type must be default, linear or llama3 as released, got {kind!r} with {dict(rope)}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path.parent} is no model folder: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold an object, got {values!r}")
    return values
