#!/usr/bin/env python3
"""Bad inputs of every kind to score, select, compact and backends: the right exit code, one line on stderr that
names the culprit, nothing written and nothing crashed. Also what must still work: odd but valid inputs.

Usage: bad_inputs.py TRIA DATA_FOLDER SCRATCH_FOLDER with-import|without-import
"""

import json
import math
import os
import struct
import subprocess
import sys

TRIA, DATA, SCRATCH = sys.argv[1:4]
WITH_IMPORT = sys.argv[4] == "with-import"
CASE = os.path.join(DATA, "golden_spec", "protect")  # L 2, Hq 4, Hkv 2, D 16, N 64, t 400
CALIBRATION = os.path.join(CASE, "calib.tria")
KEYS = os.path.join(CASE, "K_rot.npy")
POSITIONS = os.path.join(CASE, "positions.npy")
OUTPUT = os.path.join(SCRATCH, "out.npy")
os.makedirs(SCRATCH, exist_ok=True)

failures = 0
n_checks = 0


def write(name, data):
    path = os.path.join(SCRATCH, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def npy_bytes(descr, shape, payload, order="False", version=1):
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }" % (
        descr, order, "".join("%d," % n for n in shape))
    text += " " * (63 - (len(text) + 10) % 64) + "\n"
    head = b"\x93NUMPY" + bytes([version, 0])
    head += struct.pack("<H" if version == 1 else "<I", len(text))
    return head + text.encode() + payload


def npy(name, descr, shape, values=None):
    codes = {"f4": "f", "f8": "d", "i4": "i", "i8": "q", "u1": "B", "i1": "b", "u2": "H", "f2": "e"}
    count = math.prod(shape)
    values = [0] * count if values is None else values
    payload = struct.pack("<%d%s" % (count, codes[descr]), *values)
    return write(name, npy_bytes("<" + descr, shape, payload))


def run(arguments):
    if os.path.exists(OUTPUT):
        os.unlink(OUTPUT)
    # Drivers that are loaded and unloaded again leak what the sanitizers cannot attribute to them.
    drivers = arguments[:1] == ["backends"] or "--backend" in arguments
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0") if drivers else None
    return subprocess.run([TRIA] + arguments, capture_output=True, timeout=120, env=environment)


def report(arguments, what, result):
    global failures
    failures += 1
    print("FAILED: %s\n  tria %s\n  exit %d, stderr: %s" % (
        what, " ".join(arguments), result.returncode, result.stderr.decode(errors="replace").strip()))


def bad(code, arguments, *words):
    """`arguments` must end with exit code `code`, saying all of `words` in one line."""
    global n_checks
    n_checks += 1
    result = run(arguments)
    lines = result.stderr.decode(errors="replace").splitlines()
    if result.returncode != code:
        report(arguments, "expected exit code %d" % code, result)
    elif len(lines) != 1 or not lines[0].startswith("tria: "):
        report(arguments, "expected one line that begins with tria:", result)
    elif any(word not in lines[0] for word in words):
        report(arguments, "expected a line that says %s" % ", ".join(words), result)
    elif os.path.exists(OUTPUT) or any(".tmp" in name for name in os.listdir(SCRATCH)):
        report(arguments, "expected that nothing is written", result)


def good(arguments):
    global n_checks
    n_checks += 1
    result = run(arguments)
    if result.returncode != 0:
        report(arguments, "expected success", result)
    return result


def replaced(base, **options):
    """`base` with options replaced or added; None takes one away, True is a flag."""
    arguments = dict(base)
    arguments.update({name.replace("_", "-"): value for name, value in options.items()})
    command = [arguments.pop("command")]
    for name, value in arguments.items():
        if value is True:
            command.append("--" + name)
        elif value is not None:
            command += ["--" + name, str(value)]
    return command


SCORE = {"command": "score", "calibration": CALIBRATION, "keys": KEYS, "position": 400, "output": OUTPUT}
SELECT = dict(SCORE, command="select", positions=POSITIONS, mode="per-head", budget=40)
COMPACT_CASE = os.path.join(DATA, "golden_spec", "compact_f16")  # L 2, Hkv 3, N 40
COMPACT = {"command": "compact", "keys": os.path.join(COMPACT_CASE, "K.npy"),
           "values": os.path.join(COMPACT_CASE, "V.npy"),
           "keep": os.path.join(COMPACT_CASE, "keep_shared.npy"), "output-keys": OUTPUT}


def score(**options):
    return replaced(SCORE, **options)


def select(**options):
    return replaced(SELECT, **options)


def compact(**options):
    return replaced(COMPACT, **options)


def command_line():
    bad(2, [], "which command")
    bad(2, ["frobnicate"], "frobnicate")
    bad(2, ["--frobnicate"], "--frobnicate")
    for command in ("score", "select", "compact", "backends"):
        bad(2, [command, "--frobnicate"], "--frobnicate")
        bad(2, [command, "stray"], "stray")
        assert run([command, "--help"]).stdout.startswith(b"Usage: tria " + command.encode())
        assert run([command, "--version"]).stdout.startswith(b"tria ")
    bad(2, ["score"], "--calibration")
    for needed in ("calibration", "keys", "position", "output"):
        bad(2, score(**{needed: None}), "--" + needed)
    bad(2, select(mode=None), "--mode")
    bad(2, select(budget=None), "--budget")
    bad(2, compact(keep=None), "--keep")
    bad(2, compact(output_keys=None), "nothing is asked for")
    bad(2, compact(output_values=OUTPUT, values=None), "--values")
    for text in ("", "x", "1x", "-1", "99999999999999999999", "2147483649", "1e3", "0x10", " "):
        bad(2, score(position=text), "--position")
    for text in ("nan", "inf", "x", "1.5.5"):
        bad(2, score(content_weight=text), "--content-weight")
    bad(2, score() + ["--position"], "--position")
    bad(2, score() + ["--json=yes"], "--json")
    bad(2, score(threads=0), "--threads")
    bad(2, score(offset_max=0), "--offset-max")
    bad(2, score(stage="fine"), "fine")
    bad(2, score(rope="neox"), "neox")
    bad(2, score(offsets="median"), "median")
    bad(2, score(backend="tpu"), "tpu")
    bad(2, score(normalize_over="candidates"), "candidates")
    bad(2, score(keys_raw=True, keys_hadamard=True), "--keys-raw")
    bad(2, score(keys_raw=True), "--positions")
    bad(2, score(dtype="f17"), "f17")
    bad(2, select(mode="per-token"), "per-token")
    bad(2, select(budget=-1), "--budget")
    bad(2, select(percent=10), "--max-rows")
    bad(2, select(max_rows=10), "--percent")
    bad(2, select(percent=10, max_rows=10), "--budget")
    bad(2, select(percent=101, max_rows=10, budget=None), "--percent")
    bad(2, select(percent=-1, max_rows=10, budget=None), "--percent")
    bad(2, select(protect_prefill=True), "--prompt-end")
    for option in ("recent", "sinks", "pool"):
        bad(2, select(positions=None, **{option: 2}), "--positions")
    bad(2, compact(order="random"), "random")


def settings_that_cannot_work():
    bad(1, select(budget=0), "budget")
    bad(1, select(percent=0, max_rows=100, budget=None), "budget")
    bad(1, select(sinks=20, recent=20), "40")
    bad(1, select(recent=64), "64")
    bad(1, select(budget=2147483647, recent=2147483647, sinks=2147483647))
    per_head = npy("per_head_positions.npy", "i4", [2, 2, 64],
                   [i * (1 + (j == 3)) for j in range(4) for i in range(64)])
    for mode in ("per-head", "per-layer", "union", "global"):
        bad(1, select(positions=per_head, mode=mode), "position")
    good(select(positions=per_head, mode="per-layer-per-head"))
    bad(1, select(mode="global", layer_weights=npy("zeros.npy", "f4", [2])), "weight")
    for value in (-1.0, float("nan"), float("inf")):
        bad(1, select(mode="global", layer_weights=npy("w.npy", "f4", [2], [1.0, value])), "weight")


def npy_files():
    floats = struct.pack("<4f", 1, 2, 3, 4)
    whole = npy_bytes("<f4", [1, 1, 2, 2], floats)
    for length in range(len(whole)):
        bad(1, score(keys=write("short.npy", whole[:length])), "short.npy")
    bad(1, score(keys=write("long.npy", whole + b"x")), "long.npy")
    bad(1, score(keys=os.path.join(SCRATCH, "absent.npy")), "absent.npy")
    bad(1, score(keys=SCRATCH), "regular file")
    bad(1, score(keys="/dev/zero"), "regular file")
    for version in (0, 4, 255):
        bad(1, score(keys=write("v.npy", whole[:6] + bytes([version]) + whole[7:])), "version")
    bad(1, score(keys=write("f.npy", npy_bytes("<f4", [1, 1, 2, 2], floats, order="True"))), "Fortran")
    for descr in (">f4", "<f3", "<c8", "|O", "<U4", "|b1", "<f16", "f4", "<M8[ns]", ""):
        bad(1, score(keys=write("t.npy", npy_bytes(descr, [1, 1, 2, 2], floats))), "t.npy")
    huge = 2 ** 62
    for shape in ([huge, huge, huge, huge], [huge, 1, 1, 1], [2 ** 32, 2 ** 32, 1, 1], [0, huge, huge, 4],
                  [1, 1, 2, 3], [0, 1, 1, 1], [4], [2, 2], [1, 1, 1, 2, 2], []):
        bad(1, score(keys=write("s.npy", npy_bytes("<f4", shape, floats))), "s.npy")
    for text in ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, -2), }",
                 "{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'descr': '<f4', }",
                 "{'descr': '<f4', 'fortran_order': None, 'shape': (1,1,2,2)}",
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,2,2)} + exit()",
                 "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,1,2,2)}",
                 "{'shape': (1,1,2,2", "{", "", "{'", "()", "{'descr': '<f4\x00', 'fortran_order': False}"):
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + floats
        bad(1, score(keys=write("h.npy", data)), "h.npy")
    bad(1, score(keys=write("h2.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2 ** 32 - 1) + floats)), "header")
    for version in (1, 2, 3):
        path = write("ok%d.npy" % version, npy_bytes("<i4", [64], open(POSITIONS, "rb").read()[-256:], version=version))
        good(select(positions=path))


def arrays():
    payload = open(KEYS, "rb").read()[-2 * 2 * 64 * 16 * 4:]

    def keys(name, descr, shape):
        return write(name, npy_bytes(descr, shape, payload))

    bad(1, score(keys=keys("k1.npy", "<f4", [3, 2, 64, 16][:0] + [4, 1, 64, 16])), "k1.npy")
    bad(1, score(keys=keys("k2.npy", "<f4", [1, 4, 64, 16])), "4 KV heads")
    bad(1, score(keys=keys("k3.npy", "<f4", [2, 2, 128, 8])), "8 dimensions")
    bad(1, score(keys=keys("k4.npy", "<f8", [2, 2, 64, 8])), "double")
    bad(2, score(keys=keys("k5.npy", "<u2", [2, 2, 64, 32])), "--dtype")
    bad(2, score(keys=keys("k6.npy", "<u1", [2, 2, 64, 64])), "--dtype")
    bad(2, score(dtype="bf16"), "bf16")
    bad(2, score(dtype="q8_0"), "q8_0")
    bad(2, score(keys=keys("k7.npy", "<i1", [2, 2, 64, 64])), "--key-scales")
    bad(1, score(keys=keys("k8.npy", "|u1", [2, 2, 64, 64]), dtype="q8_0"), "q8_0")
    bad(1, score(keys=KEYS + "," + keys("k9.npy", "<f4", [2, 2, 32, 32])), "k9.npy")
    bad(1, score(keys=KEYS + "," + KEYS), "layers")
    bad(1, score(keys=KEYS + ",absent.npy"), "absent.npy")
    bad(1, score(positions=npy("p.npy", "i4", [63])), "p.npy")
    bad(1, score(positions=npy("p.npy", "i4", [2, 2, 63])), "p.npy")
    bad(1, score(positions=npy("p.npy", "f4", [64])), "p.npy")
    bad(1, select(positions=npy("p.npy", "i4", [64], [-1] * 64)), "-1")
    bad(1, select(positions=npy("p.npy", "i8", [64], [2 ** 40] * 64)), "1099511627776")
    bad(1, select(positions=npy("p.npy", "i4", [64], list(range(337, 401)))), "400")
    for option in ("inv_freq", "freq_scale_sq"):
        bad(1, score(**{option: npy("w.npy", "f8", [7])}), "w.npy")
        bad(1, score(**{option: npy("w.npy", "f8", [3, 8])}), "w.npy")
        bad(1, score(**{option: npy("w.npy", "i4", [8])}), "w.npy")
        bad(1, score(**{option: npy("w.npy", "f8", [8], [float("nan")] * 8)}))
    bad(1, score(rotary_dim=14))
    bad(1, score(rotary_dim=15))
    bad(1, score(rotary_dim=32))
    bad(1, score(rotary_offset=2))
    bad(1, select(pin=npy("pin.npy", "i4", [1], [64])), "pin.npy")
    bad(1, select(pin=npy("pin.npy", "i4", [1], [-1])), "pin.npy")
    bad(1, select(pin=npy("pin.npy", "f4", [1])), "pin.npy")
    bad(1, select(pin=npy("pin.npy", "i4", [1, 1])), "pin.npy")
    bad(1, select(layer_weights=npy("lw.npy", "f4", [3])), "lw.npy")
    bad(1, select(layer_weights=npy("lw.npy", "i4", [2])), "lw.npy")
    for layers in ("0", "0,1,2"):
        bad(2, score(layers=layers), "--layers")
    for layers in ("1,0", "0,0", "0,x", "0,-1", "0,1.5", ",", "0,99999999999999999999"):
        bad(2, score(layers=layers), "--layers")
    bad(1, score(layers="0,2"), "layer 2")
    bad(1, score(calibration=KEYS), KEYS)
    bad(1, score(calibration=os.path.join(SCRATCH, "absent.tria")), "absent.tria")
    bad(1, score(calibration=SCRATCH), SCRATCH)
    bad(1, score(calibration=write("empty.tria", b"")), "empty.tria")
    bad(1, score(calibration=write("cut.tria", open(CALIBRATION, "rb").read()[:-1])), "cut.tria")
    for output in (os.path.join(SCRATCH, "no", "out.npy"), SCRATCH):
        bad(1, score(output=output), output)
    bad(1, score(output="/dev/full"), "/dev/full")
    scales = npy("scales.npy", "f4", [2, 3])
    bad(1, score(keys=keys("i8.npy", "<i1", [2, 2, 64, 64]), key_scales=scales), "scales.npy")
    good(score(keys=keys("i8.npy", "|i1", [2, 2, 64, 64]), key_scales="0.5", calibration=CALIBRATION))
    good(score(keys=keys("i8.npy", "|i1", [2, 2, 64, 64]), key_scales=npy("s.npy", "f4", [2, 2], [1.0] * 4)))
    good(score(keys=keys("i8.npy", "|u1", [2, 2, 64, 64]), dtype="int8", key_scales=npy("s.npy", "f4", [2], [1.0] * 2)))


def keep_sets():
    def keep(descr, shape, values):
        return compact(keep=npy("keep.npy", descr, shape, values))

    bad(1, keep("i4", [2], [1, 0]), "keep.npy")
    bad(1, keep("i4", [2], [1, 1]), "keep.npy")
    bad(1, keep("i4", [2], [0, 40]), "40")
    bad(1, keep("i4", [2], [0, -2]), "-2")
    bad(1, keep("i4", [3], [0, -1, 2]), "keep.npy")
    bad(1, keep("f4", [2], [0, 1]), "keep.npy")
    bad(1, keep("i4", [41], list(range(40)) + [-1]), "keep.npy")
    bad(1, keep("i4", [5, 1], [0] * 5), "keep.npy")
    bad(1, keep("i4", [2, 2, 1], [0] * 4), "keep.npy")
    bad(1, keep("i4", [1, 2, 3, 1], [0] * 6), "keep.npy")
    bad(1, keep("i4", [0], []), "keep.npy")
    bad(1, compact(keep_per_layer=True, keep=npy("keep.npy", "i4", [3, 1], [0] * 3)), "keep.npy")
    bad(1, compact(values=npy("v.npy", "f2", [2, 3, 39, 4])), "v.npy")
    bad(1, compact(values=npy("v.npy", "f2", [2, 3, 40])), "v.npy")
    bad(1, compact(positions=npy("p.npy", "i4", [39])), "p.npy")
    bad(1, compact(positions=npy("p.npy", "i4", [3, 2, 40])), "p.npy")
    good(keep("i8", [2], [0, 39]))
    good(keep("i4", [3], [0, 39, -1]))
    good(compact(values=None))
    good(compact(keys=npy("bytes.npy", "u1", [2, 3, 40, 7]), values=None))
    good(compact(keys=npy("scales.npy", "f4", [2, 3, 40, 1]), values=npy("v.npy", "f2", [2, 3, 40, 1])))
    good(compact(keys=npy("doubles.npy", "f8", [2, 3, 40, 3]), values=None))


def backends():
    listing = json.loads(good(["backends", "--json"]).stdout)
    names = {entry["name"]: entry for entry in listing["backends"]}
    assert {"cpu", "reference", "cuda", "hip", "vulkan"} <= set(names), names
    assert names["cpu"]["built_in"] and "f16" in names["cpu"]["devices"][0]["dtypes"]
    for name, entry in names.items():
        if not entry["devices"]:
            assert entry["reason"], "%s has no device and no reason" % name
            bad(3, score(backend=name), name)
            bad(3, select(backend=name), name)
            bad(3, compact(backend=name), name)
    report = json.loads(good(select(json=True)).stdout)
    assert report["over_budget"] == 0 and report["counts"] == [40, 40] and report["backend"] == "cpu", report
    assert json.loads(good(score(json=True)).stdout)["shape"] == [2, 4, 64]
    assert json.loads(good(compact(json=True)).stdout)["rows_before"] == 40


def models():
    """Model descriptions: JSON is the import library's. Layers that read another layer's cache have no keys."""
    path = os.path.join(SCRATCH, "model.json")

    def model(**changes):
        description = {"name": "test", "n_layers": 3, "n_q_heads": 4, "n_kv_heads": 2, "head_dim": 16,
                       "rope": {"style": "half", "theta": 10000.0}, "layers": [{}, {}, {"kv_source": 0}]}
        description.update(changes)
        with open(path, "w") as file:
            json.dump(description, file)
        return path

    if not WITH_IMPORT:
        bad(1, score(model=model()), "import library")
        return
    case = os.path.join(DATA, "golden_spec", "layer_kinds")
    shared = dict(SELECT, calibration=os.path.join(case, "calib.tria"), keys=os.path.join(case, "K_rot.npy"),
                  positions=os.path.join(case, "positions.npy"), position=300, budget=20)
    for mode in ("per-head", "per-layer", "union", "global"):
        good(replaced(shared, mode=mode, model=model()))
        with open(OUTPUT, "rb") as got, open(os.path.join(case, "keep_%s.npy" % mode.replace("-", "_")), "rb") as expected:
            assert got.read() == expected.read(), mode
    windowed = model(layers=[{}, {"window": 21}, {"kv_source": 0}])
    bad(1, replaced(shared, model=windowed, mode="per-layer"), "21")
    bad(1, replaced(shared, model=model(n_q_heads=8)), "8")
    bad(1, replaced(shared, model=model(head_dim=32)), "32")
    bad(1, replaced(shared, model=model(layers=[{}, {"kv_source": 0}, {"kv_source": 0}])), "1")
    bad(1, replaced(shared, model=model(layers=[{}, {}, {"kv_source": 7}])), "7")
    bad(1, replaced(shared, model=write("model.json", b"{")), "model.json")
    bad(1, replaced(shared, model=write("model.json", b"[]")), "model.json")
    bad(1, replaced(shared, model=os.path.join(SCRATCH, "absent.json")), "absent.json")
    bad(1, replaced(shared, calibration=write("calibration.json", b"{}")), "calibration.json")


for part in (models, command_line, settings_that_cannot_work, npy_files, arrays, keep_sets, backends):
    part()
print("%d checks, %d failed" % (n_checks, failures))
sys.exit(1 if failures else 0)
