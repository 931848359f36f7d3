"""A run of many steps weighs no more on its server than one of few."""

from typing import cast

import pytest

pytestmark = pytest.mark.slow
NUM_STEPS = 1_000
WARM_UP = 100


async def test_memory_and_keys_are_flat_over_a_thousand_steps(on_server, fill, segment):
    buffer = await on_server.open(num_steps=NUM_STEPS, num_prompts=7, max_lag=1)

    async def take(step):
        """One step with a group that is continued, one that is tried again, and one that is dropped."""
        parted, failed = await buffer.reserve("worker-1"), await buffer.reserve(f"worker-{step}")
        await buffer.extend(parted, segment(0, 3, version=parted.version))
        await buffer.release(parted, reason="engine died", retry=True)
        await buffer.release(failed, reason="engine died", retry=step % 2 == 0)
        await fill(buffer, await buffer.reserve("worker-1"), await buffer.reserve("worker-2"))
        await buffer.assign(step)
        await buffer.publish(step + 1)
        await buffer.snapshot(step + 1)
        await buffer.commit(step)

    def weigh():
        """The run's keys and their bytes."""
        keys = list(cast(list[bytes], on_server.server.keys("*" + buffer.pacing.run_id + "}*")))
        return len(keys), sum(cast(int, on_server.server.memory_usage(key, samples=0)) for key in keys)

    for step in range(WARM_UP):
        await take(step)
    num_keys, num_bytes = weigh()
    for step in range(WARM_UP, NUM_STEPS):
        await take(step)
    assert weigh()[0] == num_keys
    assert weigh()[1] < 1.05 * num_bytes
    assert (await buffer.status()).num_bytes == 0
