"""`python -m aot.cache stats` tells what is in the cache on disk, `clear` empties it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from aot import cache, config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Example:
        >>> main(["--folder", str(tmp_path), "clear"])
        0 entries of ... are gone
        0
    """
    parser = argparse.ArgumentParser(prog="python -m aot.cache", description=__doc__)
    parser.add_argument("--folder", help="where it is (default: AOTFUZZ_CACHE_DIR, or the usual place)")
    commands = parser.add_subparsers(dest="command", required=True)
    stats_parser = commands.add_parser(
        "stats", help="entries, their size, hits, misses, what was not kept and why"
    )
    stats_parser.add_argument("--json", action="store_true", help="print one JSON object")
    commands.add_parser("clear", help="take all entries away")
    options = parser.parse_args(arguments)
    with config.patch(cache=options.folder or True):
        found = cache.stats()
        if options.command == "clear":
            print(f"{cache.clear()} entries of {found.folder} are gone")
        elif options.json:
            print(json.dumps(dataclasses.asdict(found)))
        else:
            print(_cache_stats_text(found))
    return 0


def _cache_stats_text(stats: cache.Stats) -> str:
    lines = [
        f"folder    {stats.folder}",
        f"entries   {stats.entries}, {stats.bytes / 2**20:.1f} MiB",
        f"hits      {stats.hits}",
        f"misses    {stats.misses}",
        f"dropped   {stats.dropped}",
        f"not kept  {sum(stats.uncached.values())}",
    ]
    if stats.unusable:
        lines.insert(1, f"not used  {stats.unusable}")
    return "\n".join([*lines, *(f"{count:9} {reason}" for reason, count in stats.uncached.items())])


if __name__ == "__main__":
    sys.exit(main())
