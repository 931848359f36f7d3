"""Runs one SGLang server: `python -m slime_rl.rollout.serve`, its ServerArgs as JSON on standard input."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence

from sglang.launch_server import run_server
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import kill_process_tree

from slime_rl.rollout import sglang_plugin

SECRETS = ("api_key", "admin_api_key")


def main() -> None:
    """Serve until killed; a wrong argument ends the process with a traceback in the log."""
    faulthandler.register(signal.SIGUSR1)
    arguments = json.load(sys.stdin)
    redact_logs([arguments[name] for name in SECRETS])
    sglang_plugin.check()
    load_plugins()
    try:
        run_server(ServerArgs(**arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def redact_logs(secrets: Sequence[str]) -> None:
    """Keep `secrets` out of what this process logs: SGLang writes all of its arguments at start-up."""

    class RedactedRecord(logging.LogRecord):
        def getMessage(self) -> str:
            message = super().getMessage()
            for secret in secrets:
                message = message.replace(secret, "***")
            return message

    logging.setLogRecordFactory(RedactedRecord)


if __name__ == "__main__":
    main()
