#!/usr/bin/env python3
"""Plots what run.sh wrote: plot.py bench.jsonl OUTPUT_FOLDER (needs matplotlib)."""
import json
import pathlib
import sys


def label(run):
    parts = [run["dtype"], "D%d G%d" % (run["shape"][3], run["shape"][1] // run["shape"][2])]
    if run["shape"][0] > 8:
        parts.append("L%d" % run["shape"][0])
    if run["kept_terms"]:
        parts.append("kept")
    if run["layout"] == "head":
        parts.append("head-major")
    if run["mode"] != "per-layer-per-head":
        parts.append(run["mode"])
    return " ".join(parts)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(sys.argv[1], encoding="utf-8") as lines:
        runs = [json.loads(line) for line in lines]
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    most_rows = {label(r): max(q["rows"] for q in runs if label(q) == label(r)) for r in runs}
    threads = sorted({r["threads"] for r in runs})

    names = list(most_rows)
    figure, axes = plt.subplots(figsize=(8, 0.35 * len(names) * len(threads) + 1.5))
    for i, n in enumerate(threads):
        by_name = {label(r): r for r in runs if r["threads"] == n and r["rows"] == most_rows[label(r)]}
        places = [k * (len(threads) + 1) + i for k in range(len(names))]
        axes.barh(places, [by_name[name]["score"]["ratio"] if name in by_name else 0 for name in names],
                  label="%d thread%s" % (n, "" if n == 1 else "s"))
    axes.set_yticks([k * (len(threads) + 1) for k in range(len(names))], names)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("scoring as a share of the read bandwidth measured in the same run")
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "ratio.png", dpi=120)

    figure, axes = plt.subplots(figsize=(8, 4))
    for n in threads:
        line = sorted((r["rows"], r) for r in runs if r["threads"] == n and label(r) == label(runs[0]))
        xs = [rows for rows, _ in line]
        for part in ("score", "normalise", "select", "compact"):
            axes.loglog(xs, [r[part]["seconds"] for _, r in line], marker="o",
                        label="%s, %d thread%s" % (part, n, "" if n == 1 else "s"))
    axes.set_xlabel("rows")
    axes.set_ylabel("seconds")
    axes.set_title(label(runs[0]))
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(folder / "parts.png", dpi=120)


if __name__ == "__main__":
    main()
