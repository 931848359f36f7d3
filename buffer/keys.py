"""The names of a run's keys. All share the run's hash tag, so that a run fits one slot range of a cluster."""

from __future__ import annotations


def run_key(run_id: str) -> str:
    """The key that every function gets, and from which it derives the others (lua/state.lua lists them)."""
    return f"{{slime_rl:{run_id}}}:run"


def changes_key(run_id: str) -> str:
    """The stream whose newest entry numbers the buffer's last change."""
    return f"{{slime_rl:{run_id}}}:changes"


def openings_key(run_id: str) -> str:
    """The stream whose newest entry numbers the last change that can answer whoever waits for a slot."""
    return f"{{slime_rl:{run_id}}}:openings"


def payload_key(run_id: str, group_id: int) -> str:
    """Where a group's payload lies from its fill until its step is committed."""
    return f"{{slime_rl:{run_id}}}:payload:{group_id}"
