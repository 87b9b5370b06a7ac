#!/usr/bin/env python3
"""tria inspect, convert and calibrate, from the outside: calibration.py TRIA DATA OUT with-import|without-import."""
import array
import json
import math
import os
import shutil
import struct
import subprocess
import sys

TRIA, DATA, OUT, IMPORT = sys.argv[1:5]
shutil.rmtree(OUT, ignore_errors=True)
os.makedirs(OUT)
failures = 0


def check(what, ok):
    global failures
    if not ok:
        failures += 1
        print("FAILED:", what)


def run(*arguments):
    return subprocess.run([TRIA, *arguments], capture_output=True, text=True)


def out(name):
    return os.path.join(OUT, name)


def inspect(path, *arguments):
    result = run("inspect", "--json", path, *arguments)
    check("inspect " + path + ": " + result.stderr, result.returncode == 0)
    return json.loads(result.stdout)


def refused(what, code, words, *arguments):
    result = run(*arguments)
    check("%s: exit code %d, expected %d" % (what, result.returncode, code), result.returncode == code)
    check("%s: %r says nothing of %r" % (what, result.stderr, words), words in result.stderr)
    check(what + ": more than one line", result.stderr.count("\n") == 1)


def read(name):
    with open(name, "rb") as file:
        return file.read()


def write(name, data):
    with open(out(name), "wb") as file:
        file.write(data)
    return out(name)


def npy(name, code, shape, values):
    descr = {"f": "<f4", "i": "<i4"}[code]
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, tuple(shape))
    header += " " * (-(len(header) + 11) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    return write(name, data + array.array(code, values).tobytes())


# inspect: dimensions, sums, first values, without surprises in the numbers
golden = os.path.join(DATA, "golden", "gqa4")
report = inspect(os.path.join(golden, "calib.tria"), "--stats")
check("format", report["format"] == "tria2")
check("layers", report["n_layers"] == 3 and report["n_heads"] == 24 and report["n_calibrated"] == 24)
check("geometry", report["layers"][2]["head_dim"] == 32 and report["layers"][2]["n_kv_heads"] == 2)
for name in ("q_mean_real", "q_mean_imag", "q_abs_mean"):
    raw = read(os.path.join(golden, name + ".npy"))
    values = array.array("f", raw[10 + raw[8] + 256 * raw[9]:])
    check("sum of " + name, math.isclose(report["stats"][name]["sum"], math.fsum(values), rel_tol=1e-12))
    check("first of " + name, report["stats"][name]["first"] == [values[i] for i in range(3)])
text = run("inspect", os.path.join(golden, "calib.tria")).stdout
check("text report", "tria2, 3 layers, 24 of 24 heads" in text and "median" in text)

# what is wrong comes with its name and exit code 1
broken = write("broken.tria", read(os.path.join(golden, "calib.tria"))[:-1])
refused("cut file", 1, broken, "inspect", broken)
refused("missing file", 1, "nowhere", "inspect", out("nowhere"))
refused("folder", 1, OUT, "inspect", OUT)
refused("no argument", 2, "FILE", "inspect")
refused("no model", 1, "nowhere.json" if IMPORT == "with-import" else "import library", "inspect",
        os.path.join(golden, "calib.tria"), "--model", out("nowhere.json"))

# convert: there and back, bit for bit, and the same scores
source = os.path.join(golden, "calib.tria")
result = run("convert", source, out("five.tria"))
check("convert: " + result.stderr, result.returncode == 0)
check("version 5", inspect(out("five.tria"))["format"] == "tria5")
for version, name in ((2, "two.tria"), (4, "four.tria")):
    result = run("convert", out("five.tria"), out(name), "--format", "tria%d" % version)
    check("back to %d: %s" % (version, result.stderr), result.returncode == 0)
check("back to the same bytes", read(out("two.tria")) == read(source))
scores = []
for index, name in enumerate((source, out("five.tria"), out("four.tria"))):
    result = run("score", "--calibration", name, "--keys", os.path.join(golden, "K_rot.npy"), "--position", "257",
                 "--output", out("scores%d.npy" % index))
    check("score: " + result.stderr, result.returncode == 0)
    scores.append(read(out("scores%d.npy" % index)))
check("identical scores", scores[0] == scores[1] == scores[2])
scaled = os.path.join(DATA, "golden_spec", "layer_budgets", "calib.tria")
refused("lossy", 1, "layer budget scales", "convert", scaled, out("one.tria"), "--format", "tria1")
check("nothing written", not os.path.exists(out("one.tria")))
result = run("convert", scaled, out("one.tria"), "--format", "tria1", "--lossy")
check("--lossy says what is lost", result.returncode == 0 and "layer budget scales" in result.stderr)
refused("unknown format", 2, "--format", "convert", source, out("x"), "--format", "tria9")

if IMPORT == "without-import":
    refused("no json", 1, "import library", "convert", source, out("x.json"), "--format", "json")
else:
    model = write("model.json", json.dumps({
        "name": "m", "n_layers": 2, "n_q_heads": 2, "n_kv_heads": 1, "head_dim": 6, "rotary_dim": 4,
        "rope": {"style": "half", "theta": 10000.0}}).encode())
    wrong = write("wrong.json", json.dumps({"n_layers": 2, "n_q_heads": 4, "head_dim": 6, "rotary_dim": 4}).encode())
    theta = write("theta.json", json.dumps({"n_layers": 3, "n_q_heads": 8, "n_kv_heads": 2, "head_dim": 64,
                                            "rotary_dim": 32, "rope": {"theta": 500000.0}}).encode())
    report = inspect(source, "--model", theta)
    texts = " ".join(finding["text"] for finding in report["findings"])
    check("theta in both", "10000 in the calibration, 500000 in the model" in texts)
    check("head_dim in both", "head_dim is 32 in the calibration" in texts and "64 in the model" in texts)
    result = run("inspect", source, "--model", wrong)
    check("mismatch exits 1", result.returncode == 1 and "in layer 2), the model 2" in result.stderr)
    result = run("convert", source, out("adopted.tria"), "--model", theta)
    check("adopted: " + result.stderr, result.returncode == 0)
    check("the model's theta", inspect(out("adopted.tria"))["layers"][0]["rope_theta"] == 500000.0)
    refused("json for a model", 1, "head_dim", "inspect", source, "--model",
            write("bad.json", b'{"n_layers": 1, "n_q_heads": 2}'))

    # calibrate: means by hand, one file or one per layer, pre-RoPE or rotated, continued
    tokens = 5000
    values = [math.sin(0.37 * i) + 0.5 * math.cos(0.011 * i * i) for i in range(2 * tokens * 2 * 6)]
    values = list(array.array("f", values))
    whole = npy("whole.npy", "f", [2, tokens, 2, 6], values)
    half = tokens * 2 * 6
    files = [npy("layer%d.npy" % l, "f", [tokens, 2, 6], values[l * half:(l + 1) * half]) for l in range(2)]
    result = run("calibrate", "--queries", whole, "--model", model, "--output", out("a.tria"))
    check("calibrate: " + result.stderr, result.returncode == 0 and "5000 tokens" in result.stdout)
    result = run("calibrate", "--queries", *files, "--model", model, "--output", out("b.tria"))
    check("calibrate per layer: " + result.stderr, result.returncode == 0)
    a = inspect(out("a.tria"), "--stats")
    b = inspect(out("b.tria"), "--stats")
    check("the same either way", a["stats"] == b["stats"] and a["tokens"] == 5000)
    real = [math.fsum(values[t * 12 + f] for t in range(tokens)) / tokens for f in range(2)]
    check("mean", all(abs(x - y) < 1e-7 for x, y in zip(a["stats"]["q_mean_real"]["first"], real)))
    size = math.fsum(math.hypot(values[t * 12], values[t * 12 + 2]) for t in range(tokens)) / tokens
    check("mean size", abs(a["stats"]["q_abs_mean"]["first"][0] - size) < 1e-7)
    check("content", abs(a["stats"]["content_mean"]["first"][0]
                         - math.fsum(values[t * 12 + 4] for t in range(tokens)) / tokens) < 1e-7)
    rotated = []
    for layer in range(2):
        for t in range(tokens):
            for head in range(2):
                row = values[layer * half + t * 12 + head * 6:][:6]
                for f in range(2):
                    angle = (3 * t) * 10000.0 ** (-f / 2)
                    re, im = row[f], row[2 + f]
                    row[f] = re * math.cos(angle) - im * math.sin(angle)
                    row[2 + f] = re * math.sin(angle) + im * math.cos(angle)
                rotated += row
    result = run("calibrate", "--queries", npy("rotated.npy", "f", [2, tokens, 2, 6], rotated), "--rotated", "--positions",
                 npy("positions.npy", "i", [tokens], [3 * t for t in range(tokens)]), "--model", model, "--output",
                 out("r.tria"))
    check("rotated: " + result.stderr, result.returncode == 0)
    r = inspect(out("r.tria"), "--stats")
    check("un-rotated", all(abs(x - y) < 1e-6 for x, y in
                            zip(r["stats"]["q_mean_imag"]["first"], a["stats"]["q_mean_imag"]["first"])))
    first = [npy("first%d.npy" % l, "f", [2000, 2, 6], values[l * half:l * half + 24000]) for l in range(2)]
    rest = [npy("rest%d.npy" % l, "f", [3000, 2, 6], values[l * half + 24000:(l + 1) * half]) for l in range(2)]
    result = run("calibrate", "--queries", *first, "--model", model, "--output", out("c.tria"))
    check("few tokens are told", result.returncode == 0 and "too few tokens" in result.stderr)
    result = run("calibrate", "--queries", *rest, "--model", model, "--output", out("c.tria"), "--merge", out("c.tria"))
    c = inspect(out("c.tria"), "--stats")
    check("continued", c["tokens"] == 5000 and all(
        abs(x - y) < 1e-6 for x, y in zip(c["stats"]["q_mean_real"]["first"], a["stats"]["q_mean_real"]["first"])))
    refused("merge without counts", 1, "how many tokens", "calibrate", "--queries", whole, "--model", model, "--output",
            out("d.tria"), "--merge", run("convert", out("a.tria"), out("plain.tria"), "--format", "triattention3",
                                          "--lossy") and out("plain.tria"))
    refused("NaN", 1, "layer 1 token 2 head 0 dim 3 is nan", "calibrate", "--queries",
            npy("nan.npy", "f", [2, 4, 2, 6], [0.5] * 75 + [math.nan] + [0.5] * 20), "--model", model, "--output",
            out("d.tria"))
    refused("width", 1, "2 of 6", "calibrate", "--queries", npy("wide.npy", "f", [2, 1, 2, 8], [0.5] * 32), "--model",
            model, "--output", out("d.tria"))
    refused("layers", 1, "3 layers of queries", "calibrate", "--queries", npy("l3.npy", "f", [3, 1, 2, 6], [0.5] * 36),
            "--model", model, "--output", out("d.tria"))
    refused("all layers and one", 1, "but", "calibrate", "--queries", whole, files[1], "--model", model, "--output",
            out("d.tria"))
    refused("positions", 1, "positions", "calibrate", "--queries", whole, "--rotated", "--positions",
            npy("short.npy", "i", [3], [0, 1, 2]), "--model", model, "--output", out("d.tria"))
    refused("rotated alone", 2, "--positions", "calibrate", "--queries", whole, "--rotated", "--model", model,
            "--output", out("d.tria"))
    refused("no queries", 2, "--queries", "calibrate", "--model", model, "--output", out("d.tria"))
    check("nothing written", not os.path.exists(out("d.tria")))

    # a file that does not say how many layers there are, and a name that would upset a terminal
    names = ["layer.0.q_center_real", "layer.0.q_center_imag", "layer.0.q_mean_norm"]
    header = json.dumps({name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * i, 16 * i + 16]}
                         for i, name in enumerate(names)}).encode()
    few = write("few.safetensors", struct.pack("<Q", len(header)) + header + struct.pack("<12f", *[1.0] * 8, *[2.0] * 4))
    report = inspect(few, "--model", model)
    check("the model knows the layers", not any(f["severity"] == "error" for f in report["findings"])
          and any("1 of 2 attention layers have no calibrated head" in f["text"] for f in report["findings"]))
    named = write("named.json", json.dumps({"name": "x\x1b[31m\ny", "n_layers": 2, "n_q_heads": 2, "n_kv_heads": 1,
                                            "head_dim": 6, "rotary_dim": 4}).encode())
    text = run("inspect", out("a.tria"), "--model", named).stdout
    check("no control characters", "x?[31m?y" in text and "\x1b" not in text)

    # JSON there and back
    result = run("convert", source, out("c.json"), "--format", "json")
    check("to json: " + result.stderr, result.returncode == 0)
    result = run("convert", out("c.json"), out("from_json.tria"), "--format", "tria2")
    check("from json: " + result.stderr, result.returncode == 0)
    x = inspect(out("from_json.tria"), "--stats")["stats"]
    y = inspect(source, "--stats")["stats"]
    check("json keeps the numbers", all(x[k] == y[k] for k in ("q_mean_real", "q_mean_imag", "q_abs_mean")))

print("failures:", failures)
sys.exit(failures != 0)
