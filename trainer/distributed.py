"""Process groups of the trainer: one rank joins its peers, and megatron learns the layout."""

from __future__ import annotations

import os
import random
import socket
from datetime import timedelta
from ipaddress import ip_address

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from slime_rl.config import TrainerConfig


def join(
    config: TrainerConfig, *, rank: int, world_size: int, master_addr: str, master_port: int, local_rank: int = 0
) -> None:
    """Meet the other ranks and set up megatron's groups. Rank 0 listens on `master_addr` only.

    Waits at most `start_timeout_s` for the others; later collectives wait at most `step_timeout_s`.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    if ip_address(socket.gethostbyname(master_addr)).is_loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore(
        master_addr,
        master_port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=config.start_timeout_s),
        master_listen_fd=_listen(master_addr, master_port) if rank == 0 else None,
    )
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.step_timeout_s),
    )
    parallel_state.initialize_model_parallel()


def _listen(address: str, port: int) -> int:
    """A listening socket of one address: left to itself, the store would listen on all of them."""
    listener = socket.create_server((address, port))
    return listener.detach()


def data_parallel_group() -> dist.ProcessGroup:
    """The ranks that share a step's samples out among them."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    assert isinstance(group, dist.ProcessGroup)  # this rank belongs to it
    return group


def use_deterministic_algorithms() -> None:
    """Let every operation give the same bits for the same input; raises RuntimeError later where torch has no such way.

    The sums of a CPU depend on how many threads share them, so there is one.
    """
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    else:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def seed(value: int) -> None:
    """Seed every generator of this process, megatron's own included."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    tensor_parallel.model_parallel_cuda_manual_seed(value)


def leave() -> None:
    """Tear the groups down."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
