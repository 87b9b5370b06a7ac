#!/usr/bin/env python3
"""The score written in PyTorch, for comparison with bench/cuda_bench.cu.

    cuda_torch.py MODEL ROWS      MODEL: qwen3-8b or llama-3.1-70b

Prints milliseconds for all layers (one layer timed, times the number of layers), eager and compiled.
"""
import sys

MODELS = {"qwen3-8b": (36, 32, 8, 128), "llama-3.1-70b": (80, 64, 8, 128)}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(__doc__)
    try:
        import torch
    except ImportError:
        print("SKIPPED: PyTorch is not installed")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("SKIPPED: PyTorch finds no GPU")
        sys.exit(77)

    layers, q_heads, kv_heads, dim = MODELS[sys.argv[1]]
    rows = int(sys.argv[2])
    half = dim // 2
    group = q_heads // kv_heads
    keys = torch.randn(kv_heads, rows, dim, device="cuda", dtype=torch.float16)
    weights = torch.randn(kv_heads, dim, group, device="cuda", dtype=torch.float32)
    excess = torch.randn(kv_heads, half, group, device="cuda", dtype=torch.float32)

    def score(k):
        x = k.float()
        size = torch.sqrt(x[..., :half].square() + x[..., half:].square())
        raw = torch.bmm(x, weights) + torch.bmm(size, excess)
        mean = raw.mean(dim=1, keepdim=True)
        deviation = raw.std(dim=1, keepdim=True, unbiased=False)
        return ((raw - mean) / deviation).amax(dim=2)

    def milliseconds(function):
        times = []
        for _ in range(11):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            function(keys)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times[1:])[5] * layers

    name = torch.cuda.get_device_name(0)
    print(f"{name},{sys.argv[1]},{rows},eager,{milliseconds(score):.3f}")
    print(f"{name},{sys.argv[1]},{rows},compiled,{milliseconds(torch.compile(score)):.3f}")


if __name__ == "__main__":
    main()
