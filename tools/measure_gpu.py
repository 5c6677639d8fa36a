#!/usr/bin/env python3
"""Measures kernels, sustained power and single-device training steps of the GPU that PyTorch sees.

    python3 tools/measure_gpu.py --chip h100_80gb_sxm --out DIR [--minutes 8]

Writes three files:
  gpu_kernels.csv    one row per kernel, in the columns that `coplace validate` and `coplace calibrate` read;
  gpu_power.csv      watts and SM clock while one kernel runs for some seconds;
  training_runs.csv  steps of small Llama-like models with fused AdamW, and their peak memory.

Times are CUDA events around CUDA-graph replays (`timing` = device). The operands rotate over copies that together exceed
the L2 cache four times, so every kernel reads its operands from HBM. Operands are normal random numbers: zeros draw less
power and run faster. A kernel that the installed PyTorch lacks is skipped and named on standard error.
"""

import argparse, csv, math, os, subprocess, sys, threading, time
import torch
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--chip", required=True)
p.add_argument("--out", required=True)
p.add_argument("--minutes", type=float, default=8)
a = p.parse_args()
os.makedirs(a.out, exist_ok=True)
dev = torch.device("cuda")
props = torch.cuda.get_device_properties(0)
L2 = props.L2_cache_size
torch.manual_seed(0)
START = time.time()
VERSIONS = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
SOURCE = f"tools/measure_gpu.py, {props.name}, {VERSIONS}"
COLUMNS = "id,dataset,chip,kernel,m,n,k,batch,elements,dtype,measured_us,spread_pct,timing,source,heads,kv_heads,head_dim,q_len,kv_len,window,experts,top_k".split(
    ","
)
out = open(os.path.join(a.out, "gpu_kernels.csv"), "w", newline="")
rows = csv.DictWriter(out, COLUMNS)
rows.writeheader()
seen = set()


def late():
    return time.time() - START > a.minutes * 60


def timed(make, bytes_per_copy, graphed):
    """Median microseconds of one call, and (p90 - p10) / median in percent; `make(i)` returns a call on copy i.

    Calls that autograd makes cannot be captured: `graphed` is then false, and launches follow each other in a loop."""
    copies = max(1, min(16, math.ceil(4 * L2 / max(bytes_per_copy, 1))))
    calls = [make(i) for i in range(copies)]
    torch.cuda.synchronize()  # the operands are made on another stream than the one that reads them first
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for c in calls[:3]:
            c()
            c()
    torch.cuda.synchronize()
    begin = time.time()
    calls[0]()
    torch.cuda.synchronize()
    once = time.time() - begin
    inner = max(copies, min(200, int(0.004 / max(once, 1e-6)) + 1))
    if graphed:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(inner):
                calls[i % copies]()
        replay = graph.replay
    else:

        def replay():
            for i in range(inner):
                calls[i % copies]()

    replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(15):
        s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        s.record()
        replay()
        e.record()
        torch.cuda.synchronize()
        times.append(s.elapsed_time(e) * 1e3 / inner)
    times.sort()
    return times[7], (times[13] - times[1]) / times[7] * 100


def row(kernel, make, bytes_per_copy, library="", graphed=True, **shape):
    if late():
        return
    ident = "_".join([a.chip, kernel] + [f"{k}{v}" for k, v in shape.items()] + ([library] if library else []))
    if ident in seen:
        return
    seen.add(ident)
    try:
        us, spread = timed(make, bytes_per_copy, graphed)
    except Exception as why:  # a kernel that this PyTorch or GPU lacks
        print("skipped", ident, str(why).split("\n")[0][:150], file=sys.stderr)
        torch.cuda.synchronize()
        return
    finally:
        torch.cuda.empty_cache()
    rows.writerow(
        dict(
            id=ident,
            dataset="measure_gpu",
            chip=a.chip,
            kernel=kernel,
            measured_us=f"{us:.4f}",
            spread_pct=f"{spread:.2f}",
            timing="device",
            source=SOURCE + (f", {library}" if library else "") + ("" if graphed else ", loop of launches"),
            **shape,
        )
    )
    out.flush()


SIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
TYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def rand(*shape, dtype="bf16"):
    return (
        torch.randn(*shape, device=dev, dtype=torch.float32).to(TYPE[dtype])
        if math.prod(shape) < 2**28
        else torch.randn(*shape, device=dev, dtype=TYPE[dtype])
    )


def gemm(m, n, k, dtype="bf16", role="gemm"):
    """gemm: x (m,k) times w (n,k) transposed, layout TN; dgrad: y (m,k) times w (k,n), NN; wgrad: y (k,m) transposed times x (k,n), NT."""
    size = SIZE[dtype] * (m * k + k * n + m * n)

    def make(_):
        if role == "gemm":
            x, w = rand(m, k, dtype=dtype), rand(n, k, dtype=dtype)
            o = torch.empty(m, n, device=dev, dtype=TYPE[dtype])
            return lambda: torch.mm(x, w.t(), out=o)
        if role == "gemm_dgrad":
            y, w = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
            o = torch.empty(m, n, device=dev, dtype=TYPE[dtype])
            return lambda: torch.mm(y, w, out=o)
        y, x = rand(k, m, dtype=dtype), rand(k, n, dtype=dtype)
        o = torch.empty(m, n, device=dev, dtype=TYPE[dtype])
        return lambda: torch.mm(y.t(), x, out=o)

    row(role, make, size, m=m, n=n, k=k, batch=1, dtype=dtype)


def gemm_fp8(m, n, k):
    def make(_):
        x = rand(m, k).to(torch.float8_e4m3fn)
        w = rand(n, k).to(torch.float8_e4m3fn)
        s = torch.ones((), device=dev)
        return lambda: torch._scaled_mm(x, w.t(), s, s, out_dtype=torch.bfloat16)

    row("gemm", make, m * k + k * n + 2 * m * n, "operands already in fp8", m=m, n=n, k=k, batch=1, dtype="fp8")


def bmm(b, m, n, k, dtype="bf16"):
    def make(_):
        x, y = rand(b, m, k, dtype=dtype), rand(b, k, n, dtype=dtype)
        o = torch.empty(b, m, n, device=dev, dtype=TYPE[dtype])
        return lambda: torch.bmm(x, y, out=o)

    row("gemm", make, SIZE[dtype] * b * (m * k + k * n + m * n), m=m, n=n, k=k, batch=b, dtype=dtype)


def attention(b, h, kv, d, s, backward, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    which = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    size = 2 * b * s * d * (2 * h + 2 * kv)

    def make(_):
        q = rand(b, s, h, d).transpose(1, 2).requires_grad_(backward)
        k = rand(b, s, kv, d).transpose(1, 2).requires_grad_(backward)
        v = rand(b, s, kv, d).transpose(1, 2).requires_grad_(backward)

        def forward():
            with sdpa_kernel(which):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != h)

        if not backward:
            return forward
        o = forward()
        g = torch.randn_like(o)
        return lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True)

    row(
        "attention_backward" if backward else "attention_forward",
        make,
        size * (2 if backward else 1),
        "SDPA " + backend,
        graphed=not backward,
        batch=b,
        heads=h,
        kv_heads=kv,
        head_dim=d,
        q_len=s,
        kv_len=s,
        window=0,
        dtype="bf16",
    )


def grouped(e, m, n, k, role):
    offs = torch.arange(1, e + 1, device=dev, dtype=torch.int32) * (m if role != "grouped_gemm_wgrad" else k)

    def make(_):
        if role == "grouped_gemm_wgrad":  # (m, e k) times (e k, n), split along the contraction
            x, y = rand(e * k, m).t(), rand(e * k, n)
        else:
            x = rand(e * m, k)
            y = rand(e, n, k).transpose(1, 2) if role == "grouped_gemm" else rand(e, k, n)
        return lambda: torch._grouped_mm(x, y, offs=offs, out_dtype=torch.bfloat16)

    row(role, make, 2 * e * (m * k + k * n + m * n), "torch._grouped_mm", m=m, n=n, k=k, dtype="bf16", experts=e)


def vector(kernel, m, n, dtype, library="eager"):
    size = SIZE[dtype] * m * n * 2

    def make(_):
        x = rand(m, n, dtype=dtype)
        y = rand(m, n, dtype=dtype)
        w = rand(n, dtype=dtype)
        o = torch.empty_like(x)
        f = {
            "softmax": lambda: torch.softmax(x, -1),
            "layernorm": lambda: F.layer_norm(x, (n,), w, w),
            "rmsnorm": lambda: F.rms_norm(x, (n,), w),
            "gelu": lambda: F.gelu(x),
            "silu": lambda: F.silu(x),
            "relu": lambda: F.relu(x),
            "add": lambda: torch.add(x, y, out=o),
            "mul": lambda: torch.mul(x, y, out=o),
            "tanh": lambda: torch.tanh(x),
            "exp": lambda: torch.exp(x),
        }[kernel]
        return torch.compile(f) if library == "compiled" else f

    row(kernel, make, size, library, m=m, n=n, elements=m * n, dtype=dtype)


def indexed(kernel, v, n, t):
    def make(_):
        table, ids, g = rand(v, n), torch.randint(v, (t,), device=dev), rand(t, n)
        grad = torch.zeros(v, n, device=dev, dtype=torch.bfloat16)
        return (lambda: F.embedding(ids, table)) if kernel == "gather" else (lambda: grad.index_add_(0, ids, g))

    row(kernel, make, 4 * t * n, m=t, n=n, k=v, elements=t * n, dtype="bf16")


class Sampler:
    """Samples board power (W), SM clock (MHz) and temperature through NVML while a block runs."""

    def __init__(self):
        import pynvml

        self.n = pynvml
        pynvml.nvmlInit()
        self.h = pynvml.nvmlDeviceGetHandleByIndex(0)

    def during(self, call, seconds):
        samples, stop = [], threading.Event()

        def loop():
            while not stop.is_set():
                samples.append(
                    (
                        time.time(),
                        self.n.nvmlDeviceGetPowerUsage(self.h) / 1e3,
                        self.n.nvmlDeviceGetClockInfo(self.h, 1),
                        self.n.nvmlDeviceGetTemperature(self.h, 0),
                    )
                )
                time.sleep(0.02)

        t = threading.Thread(target=loop)
        t.start()
        begin, calls = time.time(), 0
        s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        while time.time() - begin < seconds * 0.4:
            for _ in range(10):
                call()
            torch.cuda.synchronize()
        settled = time.time()
        s.record()
        while time.time() - begin < seconds:
            for _ in range(10):
                call()
                calls += 1
            torch.cuda.synchronize()
        e.record()
        torch.cuda.synchronize()
        stop.set()
        t.join()
        late_ones = [x for x in samples if x[0] >= settled]
        mean = lambda i: sum(x[i] for x in late_ones) / max(len(late_ones), 1)
        return s.elapsed_time(e) * 1e3 / max(calls, 1), mean(1), mean(2), mean(3)


def power():
    try:
        sampler = Sampler()
    except Exception as why:
        print("skipped power:", why, file=sys.stderr)
        return
    f = open(os.path.join(a.out, "gpu_power.csv"), "w", newline="")
    w = csv.writer(f)
    w.writerow(
        "id,chip,kernel,operands,m,n,k,dtype,measured_us,tflop_per_s,gbytes_per_s,power_w,sm_clock_mhz,temperature_c,limit_w,source".split(
            ","
        )
    )
    limit = sampler.n.nvmlDeviceGetEnforcedPowerLimit(sampler.h) / 1e3

    def one(name, call, flops, moved, operands, m="", n="", k="", dtype=""):
        us, watt, clock, temperature = sampler.during(call, 2.5)
        w.writerow(
            [
                f"{a.chip}_power_{name}",
                a.chip,
                name,
                operands,
                m,
                n,
                k,
                dtype,
                f"{us:.3f}",
                f"{flops / us / 1e6:.1f}",
                f"{moved / us / 1e3:.1f}",
                f"{watt:.1f}",
                f"{clock:.0f}",
                f"{temperature:.0f}",
                f"{limit:.0f}",
                SOURCE,
            ]
        )
        f.flush()

    one("idle", lambda: time.sleep(0.05), 0, 0, "none")
    n = 8192
    for dtype in ("bf16", "fp16", "fp32", "fp8"):
        for operands in ("normal", "zeros"):
            torch.backends.cuda.matmul.allow_tf32 = False
            x = rand(n, n) if operands == "normal" else torch.zeros(n, n, device=dev, dtype=torch.bfloat16)
            y = rand(n, n) if operands == "normal" else torch.zeros(n, n, device=dev, dtype=torch.bfloat16)
            if dtype == "fp8":
                x8, y8, s = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn), torch.ones((), device=dev)
                call = lambda: torch._scaled_mm(x8, y8.t(), s, s, out_dtype=torch.bfloat16)
            else:
                x, y = x.to(TYPE[dtype]), y.to(TYPE[dtype])
                call = lambda: torch.mm(x, y.t())
            one(f"gemm_{dtype}_{operands}", call, 2 * n**3, 3 * n * n * SIZE[dtype], operands, n, n, n, dtype)
    x = rand(2**29)
    o = torch.empty_like(x)
    one("copy", lambda: o.copy_(x), 0, 2 * x.numel() * 2, "normal", 2**29, 1, "", "bf16")
    one("gelu", lambda: F.gelu(x), 0, 2 * x.numel() * 2, "normal", 2**29, 1, "", "bf16")
    q = rand(4, 32, 8192, 128)
    one(
        "attention_forward",
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        2 * 2 * 4 * 32 * 8192**2 * 128 / 2,
        4 * q.numel() * 2,
        "normal",
        8192,
        8192,
        128,
        "bf16",
    )
    f.close()


def kernels():
    # Heads whose vocabulary is no multiple of 8, in all three layouts, beside their padded ones.
    for v in (50257, 50258, 50260, 50264, 50304, 32001, 32004, 32008, 128257, 128256):
        for h in (1600, 4096):
            m = 8192
            gemm(m, v, h)
            gemm(m, h, v, role="gemm_dgrad")
            gemm(v, h, m, role="gemm_wgrad")
    # Odd contractions and rows.
    for k in (4095, 4092, 4088, 4096):
        gemm(4096, 4096, k)
        gemm(4096, k, 4096)
        gemm(k, 4096, 4096)
        gemm(4096, 4096, k, role="gemm_wgrad")
        gemm(4096, k, 4096, role="gemm_dgrad")
    # Products of layers, forward and backward.
    for m, n, k in (
        (2048, 4096, 4096),
        (4096, 6144, 4096),
        (8192, 28672, 4096),
        (8192, 4096, 14336),
        (8192, 10240, 8192),
        (8192, 8192, 8192),
        (16384, 8192, 28672),
        (4096, 1024, 4096),
        (1024, 4096, 1024),
        (512, 2048, 2048),
        (256, 8192, 8192),
    ):
        for role in ("gemm", "gemm_dgrad", "gemm_wgrad"):
            gemm(m, n, k, role=role)
        gemm(m, n, k, dtype="fp16")
        gemm_fp8(m, n, k)
    for m, n, k in ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 4096, 4096)):
        gemm(m, n, k, dtype="fp32")
    for b, m, n, k in (
        (96, 2048, 2048, 128),
        (96, 2047, 2047, 128),
        (64, 1024, 1024, 80),
        (64, 1024, 1024, 64),
        (128, 512, 512, 100),
        (32, 4096, 128, 4096),
    ):
        bmm(b, m, n, k)
    for backend in ("flash", "cudnn"):
        for b, h, kv, d, s in (
            (4, 32, 8, 128, 2048),
            (2, 32, 8, 128, 4096),
            (1, 32, 8, 128, 8192),
            (1, 64, 8, 128, 8192),
            (1, 32, 32, 128, 16384),
            (1, 16, 16, 64, 4096),
            (8, 16, 16, 64, 1024),
            (1, 32, 8, 128, 32768),
            (8, 12, 12, 64, 512),
        ):
            attention(b, h, kv, d, s, False, backend)
            attention(b, h, kv, d, s, True, backend)
    for e, m, n, k in (
        (8, 1024, 28672, 4096),
        (8, 1024, 4096, 14336),
        (64, 512, 2816, 2048),
        (128, 256, 1536, 2048),
        (128, 1024, 2048, 768),
        (16, 2048, 8192, 5120),
    ):
        for role in ("grouped_gemm", "grouped_gemm_dgrad", "grouped_gemm_wgrad"):
            grouped(e, m, n, k, role)
    for dtype in ("bf16", "fp32", "fp16"):
        for kernel in ("layernorm", "rmsnorm", "softmax"):
            for m, n in ((2048, 1024), (8192, 4096), (8192, 8192), (16384, 1600), (4096, 12288)):
                vector(kernel, m, n, dtype)
    for kernel in ("gelu", "silu", "add", "mul", "relu", "exp", "tanh"):
        for dtype in ("bf16", "fp32"):
            for m, n in ((1024, 1024), (8192, 4096), (8192, 28672)):
                vector(kernel, m, n, dtype)
    for v, n, t in ((32000, 4096, 8192), (128256, 4096, 16384), (50304, 1600, 8192)):
        indexed("gather", v, n, t)
        indexed("scatter_add", v, n, t)
    for kernel in ("layernorm", "rmsnorm", "gelu", "softmax"):
        for m, n in ((8192, 4096), (4096, 12288)):
            vector(kernel, m, n, "bf16", "compiled")


class Block(torch.nn.Module):
    def __init__(s, h, f, heads, kv):
        super().__init__()
        s.heads, s.kv, s.d = heads, kv, h // heads
        lin = lambda i, o: torch.nn.Linear(i, o, bias=False)
        s.n1, s.n2 = torch.nn.RMSNorm(h), torch.nn.RMSNorm(h)
        s.qkv, s.o = lin(h, h + 2 * kv * s.d), lin(h, h)
        s.gate, s.up, s.down = lin(h, f), lin(h, f), lin(f, h)

    def forward(s, x, cos, sin):
        b, t, h = x.shape
        q, k, v = s.qkv(s.n1(x)).split([h, s.kv * s.d, s.kv * s.d], -1)
        q, k, v = (y.view(b, t, -1, s.d).transpose(1, 2) for y in (q, k, v))
        turn = lambda y: y * cos + torch.cat((-y[..., s.d // 2 :], y[..., : s.d // 2]), -1) * sin
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + s.o(y.transpose(1, 2).reshape(b, t, h))
        y = s.n2(x)
        return x + s.down(F.silu(s.gate(y)) * s.up(y))


class Llama(torch.nn.Module):
    def __init__(s, layers, h, f, heads, kv, vocab):
        super().__init__()
        s.d = h // heads
        s.embed = torch.nn.Embedding(vocab, h)
        s.blocks = torch.nn.ModuleList(Block(h, f, heads, kv) for _ in range(layers))
        s.norm, s.head = torch.nn.RMSNorm(h), torch.nn.Linear(h, vocab, bias=False)

    def forward(s, ids, recompute):
        t = ids.shape[1]
        angle = torch.arange(t, device=dev)[:, None] / 10000 ** (torch.arange(s.d // 2, device=dev) * 2 / s.d)
        cos, sin = (torch.cat((f(angle), f(angle)), -1).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        x = s.embed(ids)
        for b in s.blocks:
            x = (
                torch.utils.checkpoint.checkpoint(b, x, cos, sin, use_reentrant=False)
                if recompute == "full"
                else b(x, cos, sin)
            )
        return s.head(s.norm(x))


def steps():
    import torch.utils.checkpoint

    names = (
        "id,dataset,model,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,gated_mlp,attention,chip,chips,chips_per_node,fabric,"
        "tp,pp,dp,cp,ep,sequence_parallel,zero_stage,micro_batch,global_batch,recompute,offload,precision,optimizer,iteration_s,peak_gib,fits,"
        "tied_embeddings,framework,compiled,optimizer_states,confidence,source"
    ).split(",")
    f = open(os.path.join(a.out, "training_runs.csv"), "w", newline="")
    w = csv.DictWriter(f, names)
    w.writeheader()
    models = {
        "llama-1b": (16, 2048, 8192, 32, 8, 128256),
        "llama-3b": (28, 3072, 8192, 24, 8, 128256),
        "gpt-760m": (24, 1536, 4096, 16, 16, 50257),
    }
    for name, s, mb, recompute, compiled in (
        ("gpt-760m", 1024, 4, "none", 0),
        ("llama-1b", 2048, 2, "none", 0),
        ("llama-1b", 4096, 2, "none", 0),
        ("llama-1b", 4096, 2, "full", 0),
        ("llama-1b", 8192, 1, "full", 0),
        ("llama-3b", 4096, 1, "none", 0),
        ("llama-3b", 4096, 2, "full", 0),
        ("llama-1b", 4096, 2, "none", 1),
    ):
        if late():
            return
        layers, h, ffn, heads, kv, vocab = models[name]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        row_of = dict(
            id=f"{a.chip}_{name}_s{s}_mb{mb}_{recompute}{'_compiled' * compiled}",
            dataset="measure_gpu",
            model=name,
            layers=layers,
            hidden=h,
            ffn_hidden=ffn,
            heads=heads,
            kv_heads=kv,
            head_dim=h // heads,
            vocab=vocab,
            seq=s,
            gated_mlp=1,
            attention="flash",
            chip=a.chip,
            chips=1,
            chips_per_node=1,
            tp=1,
            pp=1,
            dp=1,
            cp=1,
            ep=1,
            sequence_parallel=0,
            zero_stage=0,
            micro_batch=mb,
            global_batch=mb,
            recompute=recompute,
            offload=0,
            precision="bf16",
            optimizer="adamw",
            tied_embeddings=0,
            framework="pytorch",
            compiled=compiled,
            optimizer_states="parameters, gradients and both moments in bf16, fused",
            confidence="high",
            source=SOURCE,
        )
        try:
            with torch.device(dev):
                model = Llama(layers, h, ffn, heads, kv, vocab).to(torch.bfloat16)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            ids = torch.randint(vocab, (mb, s), device=dev)
            call = torch.compile(model) if compiled else model

            def step():
                logits = call(ids, recompute)
                F.cross_entropy(logits.view(-1, vocab).float(), ids.view(-1)).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            for _ in range(3):
                step()
            torch.cuda.synchronize()
            times = []
            for _ in range(8):
                t = time.time()
                step()
                torch.cuda.synchronize()
                times.append(time.time() - t)
            times.sort()
            row_of.update(
                iteration_s=f"{times[4]:.6f}", peak_gib=f"{torch.cuda.max_memory_allocated() / 2**30:.3f}", fits=1
            )
        except torch.OutOfMemoryError:
            row_of.update(fits=0)
        except Exception as why:
            print("skipped", row_of["id"], str(why)[:200], file=sys.stderr)
            continue
        finally:
            model = optimizer = call = None
            torch.cuda.empty_cache()
        w.writerow(row_of)
        f.flush()


def guarded(part):
    try:
        part()
    except Exception as why:
        print("stopped", part.__name__, repr(why)[:300], file=sys.stderr)
    torch.cuda.empty_cache()


for part in (power, steps, kernels):
    guarded(part)
    print(part.__name__, "done after", round(time.time() - START), "s", file=sys.stderr, flush=True)
