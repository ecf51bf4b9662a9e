"""Checks the document that `hg-top demo --once -O json` prints: whole, plausible, and of a workload that moves."""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    document = json.load(file)

assert document["version"] == 1, document["version"]
assert document["sources"]["stats_page"]["on"], document["sources"]
(process,) = document["processes"]
(arena,) = process["arenas"]
assert arena["kind"] == "private" and arena["tier"] and arena["tier_wanted"], arena
assert 0 < arena["live_bytes"] <= arena["committed_bytes"] <= arena["reserved_bytes"], arena

FIELDS = ("size", "live", "cached", "carved", "reused", "refills", "flushes")
classes = arena["classes"]
assert len(classes) > 20 and all(field in row for row in classes for field in FIELDS), classes[:1]
assert sum(row["carved"] for row in classes) > 1000 and sum(row["reused"] for row in classes) > 1000

locks = arena["locks"]
for row in (row for row in locks if not row["torn"]):
    for side in ("hold", "wait"):
        histogram = row[side]
        assert histogram["count"] == sum(histogram["buckets"]), row
        assert histogram["p50_ns"] <= histogram["p99_ns"], row
assert {"refill", "flush", "grow"} <= {row["reason"] for row in locks}, sorted({row["reason"] for row in locks})

source = "stats page and eBPF" if document["sources"]["ebpf"]["on"] else "stats page alone"
print(f"demo: {len(classes)} classes, {len(locks)} locks, {len(document['events'])} events; from the {source}")
