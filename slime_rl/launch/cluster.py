"""Brings Ray up for a run and takes it down again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray

T = TypeVar("T")
LOCAL_ADDRESS = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 2**20


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, in which SIGTERM ends it as Ctrl-C does."""

    async def interruptible() -> T:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
        return await work

    return asyncio.run(interruptible())


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine that ends with the block.

    The local one listens on the loopback interface only. Actors carry ids and settings, never tensors, so its object
    store is small.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")  # engines are children of workers and no background job
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # which a local cluster inherits, and torch reads as it is imported
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, log_to_driver=False)
    else:
        ray.init(
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=LOCAL_ADDRESS,
        )
    try:
        yield
    finally:
        ray.shutdown()
