"""The trainer's state in a checkpoint, in Megatron's distributed format: it loads into any number of ranks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from torch.distributed.checkpoint.api import CheckpointException

from slime_rl.errors import TrainerError
from slime_rl.trainer import distributed
from slime_rl.trainer.model import PolicyModel
from slime_rl.trainer.optimizer import Optimizer

BACKEND = "torch_dist", 1
_METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def save(folder: Path, policy: PolicyModel, optimizer: Optimizer) -> None:
    """Write weights, master weights, moments and generators to `folder`, which all ranks see; all of them call this."""
    stepped = optimizer.has_stepped
    state = _state(policy, optimizer if stepped else None, is_loading=False)
    dist_checkpointing.save(state, str(folder), BACKEND, content_metadata={"stepped": stepped})


def load(folder: Path, policy: PolicyModel, optimizer: Optimizer) -> None:
    """Take everything back from `folder`; all ranks call this, in any layout.

    Raises TrainerError if the folder does not hold this model's state.
    """
    try:
        metadata = cast(Mapping[str, Any], dist_checkpointing.load_content_metadata(str(folder)))
        stepped = metadata["stepped"]
        wanted = _state(policy, optimizer if stepped else None, is_loading=True)
        state: Any = dist_checkpointing.load(wanted, str(folder))
        policy.load_state_dict(state["model"])
        if stepped:
            optimizer.load_state_dict(state["optimizer"])
    except CheckpointException as error:  # each rank's own, and where they come from: over pages
        causes = {str(cause) for cause, _ in error.failures.values()}
        raise TrainerError(f"{folder} does not hold the state of this model: {'; '.join(sorted(causes))}") from None
    except (CheckpointingException, AssertionError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise TrainerError(f"{folder} does not hold the state of this model: {error}") from error
    _set_generators(state["generators"])


def _state(policy: PolicyModel, optimizer: Optimizer | None, *, is_loading: bool) -> dict[str, Any]:
    group = distributed.data_parallel_group()
    metadata = _METADATA | {"dp_cp_group": group}
    model = policy.sharded_state_dict(metadata=metadata)
    generators = ShardedObject("generators", _generators(), (1,), (0,), replica_id=group.rank())
    state = {"model": model, "generators": generators}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)
    return state


def _generators() -> dict[str, Any]:
    """The state of every generator that `distributed.seed` seeds; the data-parallel ranks have the same."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "megatron": _tracker().get_states(),
    }


def _set_generators(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    _tracker().set_states(states["megatron"])


def _tracker() -> Any:
    """Megatron's own generators, one for each kind of parallel region."""
    return tensor_parallel.get_cuda_rng_tracker()
