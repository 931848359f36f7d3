"""Runs the router before the engines: `python -m slime_rl.rollout.serve_router`, its RouterArgs as JSON on stdin."""

from __future__ import annotations

import json
import sys

from sglang_router.router import Router
from sglang_router.router_args import RouterArgs


def main() -> None:
    """Serve until killed."""
    Router.from_args(RouterArgs(**json.load(sys.stdin))).start()


if __name__ == "__main__":
    main()
