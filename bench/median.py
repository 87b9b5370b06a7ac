#!/usr/bin/env python3
"""Joins repeated runs of run.sh: median.py A.jsonl B.jsonl ... prints a line for each case, every measured
number the median of what the runs had there."""
import json
import statistics
import sys


def median(values):
    if isinstance(values[0], dict):
        return {key: median([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], float):
        return float("%.4g" % statistics.median(values))
    return values[0]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as lines:
            runs.append([json.loads(line) for line in lines])
    for cases in zip(*runs, strict=True):
        print(json.dumps(median(list(cases))))


if __name__ == "__main__":
    main()
