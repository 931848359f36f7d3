"""Brings Ray up for a run and takes it down again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

LOCAL_ADDRESS = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 2**20


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine that ends with the block.

    The local one listens on the loopback interface only. Actors carry ids and settings, never tensors, so its object
    store is small.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")  # engines are children of workers and no background job
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
            runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}},
        )
    try:
        yield
    finally:
        ray.shutdown()
