"""The names of a run's keys. All share the run's hash tag, so that a run fits one slot range of a cluster."""

from __future__ import annotations

from slime_rl.config import KEY_PREFIX


def run_key(run_id: str, *, prefix: str = KEY_PREFIX) -> str:
    """The key that every function gets, and from which it derives the others (lua/state.lua lists them)."""
    return f"{{{prefix}:{run_id}}}:run"


def stream_key(run_id: str, stream: str, *, prefix: str = KEY_PREFIX) -> str:
    """The stream `changes`, whose newest entry numbers the buffer's last change, or `openings`, for the last of these
    that can answer whoever waits for a slot.
    """
    return f"{{{prefix}:{run_id}}}:{stream}"


def group_key(run_id: str, group_id: int, *, prefix: str = KEY_PREFIX) -> str:
    """What is known of a group until it is dropped or its step committed."""
    return f"{{{prefix}:{run_id}}}:group:{group_id}"


def payload_key(run_id: str, group_id: int, *, prefix: str = KEY_PREFIX) -> str:
    """Where a group's payload lies from its fill until its step is committed."""
    return f"{{{prefix}:{run_id}}}:payload:{group_id}"


def segments_key(run_id: str, group_id: int, *, prefix: str = KEY_PREFIX) -> str:
    """The list of the parts of a group's samples that are durable, until the group is filled."""
    return f"{{{prefix}:{run_id}}}:segments:{group_id}"
