"""`make bench-buffer`: tables of what the buffer costs. The last line is one line of JSON.

`vs_raw_redis` is the least ratio over sizes of many callers' speed to that of as many callers of a bare server,
`flat_ratio` what a group's whole way costs with a million groups outstanding over a thousand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.buffer import large, path, scale
from bench.buffer.setting import open_server


def main() -> None:
    """Run every part on a server of its own; with an argument, write all figures to that file too."""
    results = {}
    for part in (path, large, scale):
        with open_server() as server:
            results[part.__name__.rpartition(".")[2]] = part.compare(server)
    ratios = results["path"]["vs_raw_redis"]
    summary = {
        "vs_raw_redis": min(ratios.values()),
        "vs_raw_redis_by_callers": ratios,
        "flat_ratio": round(results["scale"]["flat_ratio"], 3),
        "payload_ratio": results["path"]["payload_ratio"],
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results | {"summary": summary}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
