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
    values = _read_json(folder)
    family = values.get("model_type")
    if family not in FAMILIES:
        raise _refused(folder, f"whose model_type is one of {', '.join(FAMILIES)}", repr(family))
    if not any(folder.glob("*.safetensors")):
        raise _refused(folder, "with weights in *.safetensors files", "none")
    if values.get("hidden_act", "silu") != "silu":
        raise _refused(folder, "whose hidden_act is silu", repr(values["hidden_act"]))
    for name in _MUST_BE_OFF[family]:
        if values.get(name):
            raise _refused(folder, f"whose {name} is off (model_type {family})", repr(values[name]))
    try:
        architecture = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, TypeError, LookupError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise _refused(folder, "with a sound config.json", f"{type(error).__name__} ({reason})") from error
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
        case "linear" if "factor" in rope:
            return arguments | {"seq_len_interpolation_factor": rope["factor"]}
        case "llama3" if "factor" in rope and all(rope.get(name) == value for name, value in _LLAMA3_ROPE.items()):
            return arguments | {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
        case kind:
            expected = "whose rope_type is default, linear or llama3 as released"
            raise ModelError(f"model.path must name a model {expected}, got {kind!r} with {dict(rope)}")


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(folder, "with a config.json", error.strerror) from None
    except ValueError as error:
        raise _refused(folder, "whose config.json is valid JSON", str(error)) from None
    if not isinstance(values, dict):
        raise _refused(folder, "whose config.json holds an object", repr(values))
    return values


def _refused(folder: Path, expected: str, got: object) -> ModelError:
    return ModelError(f"model.path must name a model {expected}, got {got} in {str(folder)!r}")
