#!/usr/bin/env python3
"""Measures the machine that PyTorch sees, in rows that `coplace validate` and `coplace calibrate` read.

    python3 measure.py --chip h100_80gb_sxm --out DIR [--minutes 5] [--parts steps,copies,kernels] [--quick]

`--chip` is the name of the chip: one of `coplace list chips`, or of a chip file of your own. It writes
  kernels.csv            products by format, layout and alignment, attention, norms, the optimizer: one row per kernel;
  stream_contention.csv  host copies beside products;
  training_runs.csv      steps and peaks of Llama-like models in the operations of transformers: plain, recomputed, and with the loss by chunks;
  serving_kernels.csv    (part `serving`) what decoding runs: products of few rows, attention of one query, few tokens
                         an expert, in the columns of kernels.csv;
  decode_passes.csv      (part `decode`) one iteration of a Llama-like model, as one graph, by sequences and context, and
                         chunks of a prompt behind tokens in the cache;
  finetuning_peaks.csv   (part `adapters`, needs transformers and peft) peaks and steps of LoRA, DoRA and all weights;
  gpu_energy.csv         (part `power`, needs pynvml) energy of a kernel, by board power and time, and the clock.

Times on a GPU are CUDA events around replays of CUDA graphs (`timing` = device). The operands rotate over copies that
together exceed the last cache four times, so every kernel reads its operands from memory. Operands are normal random
numbers: zeros draw less power and run faster. Without a GPU the same calls run on the CPU, in a loop. `--quick` takes
small sizes, which say nothing of a chip's rates: it is a check of the script. A kernel that the installed PyTorch lacks
is skipped and named on standard error.
"""

import argparse, contextlib, csv, math, os, sys, threading, time
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--chip", required=True, help="name of the chip, as in `coplace list chips` or a chip file")
p.add_argument("--out", required=True, help="directory for the files")
p.add_argument("--minutes", type=float, default=5, help="time for all parts")
p.add_argument("--parts", default="steps,copies,kernels", help="of steps, copies, kernels, serving, decode, adapters, power")
p.add_argument("--quick", action="store_true", help="small sizes: a check of the script")
a = p.parse_args()
os.makedirs(a.out, exist_ok=True)
GPU = torch.cuda.is_available()
dev = torch.device("cuda" if GPU else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
if GPU:
    NAME, LAST_CACHE = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).L2_cache_size
    VERSIONS = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
else:
    NAME, LAST_CACHE = f"CPU, {torch.get_num_threads()} threads", 2**25
    VERSIONS = "a loop of calls"
SOURCE = f"coplace calibrate --script, {NAME}, PyTorch {torch.__version__}, {VERSIONS}" + ", --quick" * a.quick
SIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
TYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# A part's share of the minutes.
SHARE = {"steps": 0.4, "copies": 0.1, "kernels": 0.5, "serving": 0.3, "decode": 0.3, "adapters": 0.4, "power": 0.5}


def sync():
    if GPU:
        torch.cuda.synchronize()


def free():
    if GPU:
        torch.cuda.empty_cache()


def named(why):
    return str(why).split("\n")[0][:150]


class Table:
    """A CSV file whose rows are written at once, so that an interrupted run keeps them."""

    def __init__(self, name, columns):
        self.file = open(os.path.join(a.out, name), "w", newline="")
        self.rows = csv.DictWriter(self.file, columns.split(","))
        self.rows.writeheader()

    def add(self, **cells):
        self.rows.writerow(cells)
        self.file.flush()


def median_of(call, repeats):
    """Median seconds of a call and (p90 - p10) / median, on the host's clock with the device drained."""
    times = []
    for _ in range(repeats):
        sync()
        begin = time.perf_counter()
        call()
        sync()
        times.append(time.perf_counter() - begin)
    times.sort()
    middle = times[len(times) // 2]
    return middle, (times[-1 - len(times) // 10] - times[len(times) // 10]) / middle


def timed(make, bytes_per_copy, graphed):
    """Median microseconds of one call, and its spread in percent; `make()` returns a call on operands of its own.

    Calls that autograd makes cannot be captured: `graphed` is then false, and launches follow each other in a loop."""
    most = 16 if GPU else 2
    calls = [make() for _ in range(max(1, min(most, math.ceil(4 * LAST_CACHE / max(bytes_per_copy, 1)))))]
    sync()  # the operands are made on another stream than the one that reads them first
    with torch.cuda.stream(torch.cuda.Stream()) if GPU else contextlib.nullcontext():
        for call in calls[:3] * 2:
            call()
    once, _ = median_of(calls[0], 1)
    inner = max(len(calls), min(200, int(0.004 / max(once, 1e-6)) + 1))

    def loop():
        for i in range(inner):
            calls[i % len(calls)]()

    replay = loop
    if GPU and graphed:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loop()
        replay = graph.replay
    replay()
    if not GPU:
        seconds, spread = median_of(replay, 5)
        return seconds / inner * 1e6, spread * 100
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        sync()
        start.record()
        replay()
        end.record()
        sync()
        times.append(start.elapsed_time(end) * 1e3 / inner)
    times.sort()
    return times[7], (times[13] - times[1]) / times[7] * 100


def rand(*shape, dtype="bf16"):
    narrow = math.prod(shape) >= 2**28
    return torch.randn(*shape, device=dev, dtype=TYPE[dtype] if narrow else torch.float32).to(TYPE[dtype])


KERNELS = (
    "id,dataset,chip,kernel,m,n,k,batch,elements,dtype,measured_us,spread_pct,timing,source,"
    "heads,kv_heads,head_dim,q_len,kv_len,window,experts,top_k,library"
)


class Kernel:
    """A kernel to measure: its row, how its calls are made, and the bytes that a call reads and writes."""

    def __init__(self, kernel, make, moved, how="", graphed=True, dataset="measured_here", **shape):
        self.kernel, self.make, self.moved, self.dataset = kernel, make, moved, dataset
        self.how, self.graphed, self.shape = how, graphed, shape
        parts = [a.chip, kernel] + [f"{key}{value}" for key, value in shape.items()] + [how.replace(" ", "-")]
        self.id = "_".join(part for part in parts if part)

    def measure(self, table):
        try:
            us, spread = timed(self.make, self.moved, self.graphed)
        except Exception as why:  # a kernel that this PyTorch or device lacks
            return print("skipped", self.id, named(why), file=sys.stderr)
        finally:
            free()
        how = [SOURCE, self.how, "" if self.graphed or not GPU else "loop of launches"]
        table.add(
            id=self.id,
            dataset=self.dataset,
            chip=a.chip,
            kernel=self.kernel,
            measured_us=f"{us:.4f}",
            spread_pct=f"{spread:.2f}",
            timing="device",
            source=", ".join(part for part in how if part),
            **self.shape,
        )


def product(m, n, k, dtype="bf16", layout="TN"):
    """(m, k) times (k, n). TN is a linear layer, x times a transposed weight; NN the gradient of its input; NT that of
    its weight without a sum over micro-batches."""

    def make():
        x = rand(k, m, dtype=dtype).t() if layout == "NT" else rand(m, k, dtype=dtype)
        w = rand(n, k, dtype=dtype).t() if layout == "TN" else rand(k, n, dtype=dtype)
        out = torch.empty(m, n, device=dev, dtype=TYPE[dtype])
        return lambda: torch.mm(x, w, out=out)

    kernel = "gemm_dgrad" if layout == "NN" else "gemm"
    how = "layout NT" if layout == "NT" else ""
    return Kernel(kernel, make, SIZE[dtype] * (m * k + k * n + m * n), how, m=m, n=n, k=k, batch=1, dtype=dtype)


def weight_gradient(m, n, k):
    """Adds the product of bf16 operands to an fp32 sum."""

    def make():
        y, x, total = rand(k, m), rand(k, n), torch.zeros(m, n, device=dev)
        return lambda: torch.addmm(total, y.t(), x, out_dtype=torch.float32)

    return Kernel("gemm_wgrad", make, 2 * k * (m + n) + 8 * m * n, m=m, n=n, k=k, batch=1, dtype="bf16")


def product_fp8(m, n, k, converted=False):
    """The input in bf16, converted on the way as a linear layer does it, or already in fp8."""

    def make():
        x, w = rand(m, k), rand(n, k).to(torch.float8_e4m3fn)
        s = torch.ones((), device=dev)
        if converted:
            y = x.to(torch.float8_e4m3fn)
            return lambda: torch._scaled_mm(y, w.t(), s, s, out_dtype=torch.bfloat16)
        return lambda: torch._scaled_mm(x.to(torch.float8_e4m3fn), w.t(), s, s, out_dtype=torch.bfloat16)

    how, dataset = ("input in fp8", "measured_here_narrow") if converted else ("", "measured_here")
    moved = (1 if converted else 3) * m * k + k * n + 2 * m * n
    return Kernel("gemm", make, moved, how, dataset=dataset, m=m, n=n, k=k, batch=1, dtype="fp8")


def products(b, m, n, k):
    def make():
        x, y, out = rand(b, m, k), rand(b, k, n), torch.empty(b, m, n, device=dev, dtype=torch.bfloat16)
        return lambda: torch.bmm(x, y, out=out)

    return Kernel("gemm", make, 2 * b * (m * k + k * n + m * n), m=m, n=n, k=k, batch=b, dtype="bf16")


def grouped(e, m, n, k):
    def make():
        ends = torch.arange(1, e + 1, device=dev, dtype=torch.int32) * m
        x, w = rand(e * m, k), rand(e, n, k).transpose(1, 2)
        return lambda: torch._grouped_mm(x, w, offs=ends, out_dtype=torch.bfloat16)

    return Kernel("grouped_gemm", make, 2 * e * (m * k + k * n + m * n), m=m, n=n, k=k, dtype="bf16", experts=e)


def attention_library(library):
    """The library by the name that coplace knows it by: PyTorch's flash attention is the second release."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION if library == "cudnn" else SDPBackend.FLASH_ATTENTION)


def attention(b, h, kv, d, s, backward, library="flash_attention_2"):
    def make():
        q, k, v = (rand(b, s, x, d).transpose(1, 2).requires_grad_(backward) for x in (h, kv, kv))

        def forward():
            with attention_library(library):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != h)

        if not backward:
            return forward
        out = forward()
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    kernel = "attention_backward" if backward else "attention_forward"
    moved = 2 * b * s * d * (2 * h + 2 * kv) * (1 + backward)
    shape = dict(batch=b, heads=h, kv_heads=kv, head_dim=d, q_len=s, kv_len=s, window=0, dtype="bf16")
    return Kernel(kernel, make, moved, "SDPA", graphed=not backward, library=library, **shape)


def decode_attention(b, h, kv, d, s, library="flash_attention_2"):
    """One query of each of b sequences over s keys."""

    def make():
        q, k, v = rand(b, 1, h, d).transpose(1, 2), *(rand(b, s, kv, d).transpose(1, 2) for _ in range(2))

        def forward():
            with attention_library(library):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=kv != h)

        return forward

    shape = dict(batch=b, heads=h, kv_heads=kv, head_dim=d, q_len=1, kv_len=s, window=0, dtype="bf16")
    return Kernel("attention_decode", make, 4 * b * s * kv * d, "SDPA", library=library, **shape)


def rows(kernel, m, n, dtype="bf16", backward=False):
    """Norms and softmax over m rows of n, and their gradients with respect to the rows."""

    def make():
        x = rand(m, n, dtype=dtype).requires_grad_(backward)
        w = rand(n, dtype=dtype)
        f = {
            "softmax": lambda: torch.softmax(x, -1),
            "layernorm": lambda: F.layer_norm(x, (n,), w, w),
            "rmsnorm": lambda: F.rms_norm(x, (n,), w),
        }[kernel]
        if not backward:
            return f
        out = f()
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, x, gradient, retain_graph=True)

    name = kernel + "_backward" * backward
    moved = SIZE[dtype] * m * n * (2 + backward)
    return Kernel(name, make, moved, "eager", graphed=not backward, m=m, n=n, elements=m * n, dtype=dtype)


def elementwise(kernel, m, n, dtype="bf16"):
    def make():
        x, y = rand(m, n, dtype=dtype), rand(m, n, dtype=dtype)
        out = torch.empty_like(x)
        return {
            "gelu": lambda: F.gelu(x),
            "silu": lambda: F.silu(x),
            "add": lambda: torch.add(x, y, out=out),
            "mul": lambda: torch.mul(x, y, out=out),
        }[kernel]

    return Kernel(kernel, make, SIZE[dtype] * m * n * 3, "eager", m=m, n=n, elements=m * n, dtype=dtype)


def update(elements, dtype):
    """Fused AdamW on weights, gradients and moments of one type."""

    def make():
        weights = rand(elements, dtype=dtype).requires_grad_()
        weights.grad = rand(elements, dtype=dtype)
        return torch.optim.AdamW([weights], lr=1e-4, fused=True).step

    return Kernel("adamw", make, SIZE[dtype] * elements * 7, "fused", graphed=False, elements=elements, dtype=dtype)


def copy(elements):
    def make():
        x, out = rand(elements), torch.empty(elements, device=dev, dtype=torch.bfloat16)
        return lambda: out.copy_(x)

    return Kernel("hbm_copy_rw", make, 4 * elements, elements=elements, dtype="bf16")


def kinds_of_kernels():
    """The kernels of each kind, the most telling first."""
    if a.quick:
        sizes = [(256, 256, 256), (512, 256, 512), (256, 1024, 256), (257, 255, 254)]
        vocabularies, hidden, tokens = (1001, 1024), 128, 256
        heads, vectors, shapes = [(1, 4, 2, 64, 128), (2, 4, 4, 32, 256)], [(256, 512)], [(4, 64, 128, 64)]
        batches, parameters = [(4, 64, 64, 32)], [2**18]
    else:
        sizes = [(8192, 4096, 4096), (8192, 28672, 4096), (8192, 4096, 14336), (4096, 4096, 4095), (4096, 4095, 4096)]
        sizes += [(8192, 8192, 8192), (2048, 4096, 4096), (4096, 4092, 4096), (1024, 4096, 1024), (512, 2048, 2048)]
        sizes += [(4096, 4096, 4092), (16384, 8192, 8192), (256, 8192, 8192), (4096, 1024, 4096), (4096, 4088, 4096)]
        vocabularies, hidden, tokens = (50257, 50304, 50260, 32001, 128256, 128257), 4096, 8192
        heads = [(2, 32, 8, 128, 4096), (1, 32, 8, 128, 8192), (8, 16, 16, 64, 1024), (1, 64, 8, 128, 16384)]
        vectors = [(8192, 4096), (2048, 1024), (4096, 12288)]
        shapes = [(8, 1024, 4096, 14336), (64, 512, 2816, 2048), (128, 1024, 2048, 768)]
        batches, parameters = [(96, 2048, 2048, 128), (96, 2047, 2047, 128), (64, 1024, 1024, 80)], [2**28, 2**24]
    layers = [size for size in sizes if all(side % 8 == 0 for side in size)]
    both = (False, True)
    return [
        [product(*size) for size in sizes],
        [product(m, k, n, layout="NN") for m, n, k in sizes],
        [weight_gradient(n, k, m) for m, n, k in layers],
        [product(n, k, m, layout="NT") for m, n, k in layers],
        [product(tokens, v, hidden) for v in vocabularies],
        [product(tokens, hidden, v, layout="NN") for v in vocabularies],
        # A CPU takes half a second for the smallest.
        [product_fp8(*size) for size in (layers if GPU else layers[:1])],
        [product(*size, dtype="fp16") for size in layers],
        [product(*size, dtype="fp32") for size in layers[:3]],
        [products(*shape) for shape in batches],
        [grouped(*shape) for shape in shapes],
        [attention(*shape, backward) for shape in heads for backward in both],
        [attention(*shape, backward, "cudnn") for shape in heads for backward in both],
        [rows(kernel, *v, backward=b) for v in vectors for kernel in ("layernorm", "rmsnorm", "softmax") for b in both],
        [elementwise(kernel, *v) for v in vectors for kernel in ("gelu", "silu", "add", "mul")],
        [update(n, dtype) for n in parameters for dtype in ("bf16", "fp32")],
        [copy(n) for n in parameters + [2**20, 2**10]],
    ]


def kinds_of_serving():
    """The kernels of decoding, the most telling first."""
    if a.quick:
        layers, counts, heads, shapes = [(256, 128)], (1, 16), [(2, 4, 2, 64, 128)], [(4, 2, 128, 64)]
    else:
        layers = [(6144, 4096), (28672, 4096), (4096, 14336), (1024, 1024), (128256, 4096), (8192, 8192)]
        counts = (1, 8, 16, 32, 64, 128, 256)
        heads = [(b, 32, 8, 128, s) for b, s in ((32, 4096), (1, 32768), (8, 8192), (128, 2048), (1, 4096), (256, 512))]
        heads += [(64, 64, 8, 128, 4096), (64, 8, 1, 128, 8192), (16, 32, 32, 128, 2048), (8, 8, 1, 128, 131072)]
        shapes = [(64, 1, 768, 2048), (128, 4, 768, 2048), (8, 2, 14336, 4096), (32, 16, 2048, 4096), (128, 16, 1536, 4096)]
    return [
        [product(m, n, k) for n, k in layers for m in counts],
        [product_fp8(m, n, k, c) for n, k in layers for m in counts if m > 8 for c in (True, False)],
        [decode_attention(*shape) for shape in heads],
        [decode_attention(*shape, "cudnn") for shape in heads],
        [rows("rmsnorm", m, 4096) for m in counts] + [elementwise("silu", m, 14336) for m in counts],
        [grouped(*shape) for shape in shapes],
    ]


def serving(until):
    measure_in_turn("serving", Table("serving_kernels.csv", KERNELS), kinds_of_serving(), until)


def kernels(until):
    measure_in_turn("kernels", Table("kernels.csv", KERNELS), kinds_of_kernels(), until)


def measure_in_turn(part, table, kinds, until):
    # A kind at a time in turn: when the time is up, every kind has rows.
    for turn in range(max(map(len, kinds))):
        for kernel in (kind[turn] for kind in kinds if turn < len(kind)):
            if time.time() > until:
                return print(f"{part}: the time is up; --minutes gives more", file=sys.stderr)
            kernel.measure(table)


def copies(until):
    """Products, copies to the device and copies to the host: each alone, then together."""
    columns = "id,dataset,chip,ranks,nodes,group_intra,group_inter,gemm_m,gemm_n,gemm_k,dtype,gemm_alone_ms,collective,"
    columns += "collective_bytes,collective_alone_ms,h2d_bytes,h2d_alone_ms,d2h_bytes,d2h_alone_ms,measured_ms,std_ms,"
    table = Table("stream_contention.csv", columns + "timing,source")
    side, size = (512, 2**22) if a.quick else (4096, 2**28)
    x, y, out = rand(side, side), rand(side, side), torch.empty(side, side, device=dev, dtype=torch.bfloat16)
    on_host = [torch.empty(size, dtype=torch.uint8, pin_memory=GPU) for _ in range(2)]
    on_device = [torch.empty(size, dtype=torch.uint8, device=dev) for _ in range(2)]

    def repeated_product(times):
        for _ in range(times):
            torch.mm(x, y, out=out)

    streams = {
        "gemm": lambda: repeated_product(1),
        "h2d": lambda: on_device[0].copy_(on_host[0], non_blocking=True),
        "d2h": lambda: on_host[1].copy_(on_device[1], non_blocking=True),
    }
    queues = {name: torch.cuda.Stream() if GPU else None for name in streams}

    def together(names):
        if GPU:
            for name in names:
                with torch.cuda.stream(queues[name]):
                    streams[name]()
            return
        # PyTorch's calls run outside Python's lock.
        threads = [threading.Thread(target=streams[name]) for name in names]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    # As many products as take as long as a copy.
    one, _ = median_of(lambda: together(["gemm"]), 5)
    both, _ = median_of(lambda: together(["h2d"]), 5)
    count = max(1, round(both / one))
    streams["gemm"] = lambda: repeated_product(count)
    for names in (["gemm", "h2d"], ["gemm", "d2h"], ["h2d", "d2h"], ["gemm", "h2d", "d2h"]):
        if time.time() > until:
            return
        alone = {name: median_of(lambda: together([name]), 9)[0] * 1e3 for name in names}
        seconds, spread = median_of(lambda: together(names), 9)
        cells = {f"{name}_alone_ms": f"{ms:.5f}" for name, ms in alone.items()}
        cells.update({f"{name}_bytes": size for name in names if name != "gemm"})
        if "gemm" in names:
            cells.update(gemm_m=side, gemm_n=side, gemm_k=side)
        table.add(
            id=f"{a.chip}_{'_'.join(names)}",
            dataset="measured_here",
            chip=a.chip,
            ranks=1,
            nodes=1,
            dtype="bf16",
            measured_ms=f"{seconds * 1e3:.5f}",
            std_ms=f"{spread * seconds * 1e3:.5f}",
            timing="host",
            source=SOURCE + f", {count} products" * ("gemm" in names),
            **cells,
        )


def loss_and_gradient(logits, labels, tokens):
    """Summed loss of a chunk of tokens, and the gradient of the mean over all `tokens` with respect to its logits."""
    wide = logits.float()
    norm = wide.logsumexp(-1, keepdim=True)
    is_label = torch.arange(wide.shape[-1], device=wide.device) == labels[:, None]
    loss = (norm - torch.where(is_label, wide, 0).sum(-1, keepdim=True)).sum()
    return loss, (((wide - norm).exp() - is_label.float()) / tokens).to(logits.dtype)


class ChunkedLoss(torch.autograd.Function):
    """Head and cross-entropy over chunks of tokens: only one chunk has logits at a time, and both gradients are ready
    when the forward pass ends. A chunk's logits are about as many as the hidden states' numbers: tokens over the ratio
    of vocabulary to width, rounded up to a power of two. On a GPU a compiler fuses what lies between the products."""

    @staticmethod
    def forward(context, x, weight, labels):
        tokens, width = x.shape
        size = 2 ** math.ceil(math.log2(math.ceil(tokens / math.ceil(weight.shape[0] / width))))
        of_chunk = torch.compile(loss_and_gradient) if GPU else loss_and_gradient
        dx, dw, total = torch.empty_like(x), torch.zeros_like(weight), x.new_zeros((), dtype=torch.float32)
        for at in range(0, tokens, size):
            part = slice(at, min(at + size, tokens))
            loss, gradient = of_chunk(x[part] @ weight.t(), labels[part], float(tokens))
            total += loss
            torch.mm(gradient, weight, out=dx[part])
            dw.addmm_(gradient.t(), x[part])
        context.save_for_backward(dx, dw)
        return total / tokens

    @staticmethod
    def backward(context, scale):
        dx, dw = context.saved_tensors
        return dx * scale, dw * scale, None


class Norm(torch.nn.Module):
    """An RMS norm in single operations, as transformers' Llama has it."""

    def __init__(self, h):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(h))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Block(torch.nn.Module):
    """A layer in the operations of transformers' Llama."""

    def __init__(self, h, f, heads, kv):
        super().__init__()
        self.d, kv = h // heads, kv * (h // heads)
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.first, self.second = Norm(h), Norm(h)
        self.q, self.k, self.v, self.out = linear(h, h), linear(h, kv), linear(h, kv), linear(h, h)
        self.gate, self.up, self.down = linear(h, f), linear(h, f), linear(f, h)

    def forward(self, x, cos, sin):
        b, t, h = x.shape
        y = self.first(x)
        q, k, v = (part(y).view(b, t, -1, self.d).transpose(1, 2) for part in (self.q, self.k, self.v))
        half = self.d // 2
        turn = lambda y: y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin
        gqa = q.shape[1] != k.shape[1]
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=gqa)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, h))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(torch.nn.Module):
    def __init__(self, layers, h, f, heads, kv, vocab):
        super().__init__()
        self.d = h // heads
        self.embed = torch.nn.Embedding(vocab, h)
        self.blocks = torch.nn.ModuleList(Block(h, f, heads, kv) for _ in range(layers))
        self.norm, self.head = Norm(h), torch.nn.Linear(h, vocab, bias=False)

    def forward(self, ids, recompute, chunked):
        pace = torch.arange(self.d // 2, device=dev) * 2 / self.d
        angle = torch.arange(ids.shape[1], device=dev)[:, None] / 10000**pace
        cos, sin = (torch.cat((f(angle), f(angle)), -1).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if recompute else block(x, cos, sin)
        x, labels = self.norm(x), ids.flatten()
        if chunked:
            return ChunkedLoss.apply(x.view(-1, x.shape[-1]), self.head.weight, labels)
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels)


def library_of_causal_attention(heads, kv, d, s):
    """The library that PyTorch takes for causal attention, by its name in chips' files."""
    choose = getattr(torch, "_fused_sdp_choice", None) if GPU else None
    if choose is None:
        return "modelled"
    q, k = (torch.zeros(1, n, s, d, device=dev, dtype=torch.bfloat16) for n in (heads, kv))
    choice = choose(q, k, k, is_causal=True, enable_gqa=heads != kv)
    return {1: "flash_attention_2", 3: "cudnn"}.get(choice, "modelled")


def measure_step(model, optimizer, ids, recompute, chunked):
    """Median seconds of a step, and the allocator's peak in GiB (none on a CPU)."""

    def step():
        model(ids, recompute, chunked).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    seconds, _ = median_of(step, 3 if a.quick else 7)
    return f"{seconds:.6f}", f"{torch.cuda.max_memory_allocated() / 2**30:.3f}" if GPU else ""


def steps(until):
    columns = "id,dataset,model,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,gated_mlp,attention,chip,chips,"
    columns += "chips_per_node,fabric,tp,pp,dp,cp,ep,sequence_parallel,zero_stage,micro_batch,global_batch,recompute,"
    columns += "offload,precision,optimizer,iteration_s,peak_gib,fits,tied_embeddings,stack,stack_options,master_copy,"
    table = Table("training_runs.csv", columns + "allocator,confidence,source")
    if a.quick:
        models = {"tiny": (2, 128, 256, 4, 2, 1024)}
        runs = [("tiny", s, b, r, c) for s, b in ((128, 2), (64, 4)) for r in (0, 1) for c in (0, 1)]
    else:
        models = {"llama-1b": (16, 2048, 8192, 32, 8, 128256), "gpt-760m": (24, 1536, 4096, 16, 16, 50304)}
        models.update({"llama-3b": (28, 3072, 8192, 24, 8, 128256), "llama-8b": (32, 4096, 14336, 32, 8, 128256)})
        runs = [("llama-1b", 4096, 2, 0, 0), ("llama-1b", 4096, 2, 1, 0), ("llama-1b", 4096, 2, 0, 1)]
        runs += [("gpt-760m", 1024, 8, 0, 0), ("llama-1b", 16384, 1, 1, 0), ("llama-8b", 4096, 1, 1, 0)]
        runs += [("llama-3b", 4096, 2, 0, 0), ("gpt-760m", 2048, 4, 1, 0), ("llama-8b", 8192, 1, 1, 1)]
        runs += [("llama-1b", 1024, 8, 0, 0), ("llama-3b", 8192, 1, 1, 0), ("llama-1b", 8192, 1, 0, 0)]
        runs += [("llama-3b", 2048, 2, 0, 0), ("llama-8b", 8192, 1, 1, 0), ("llama-1b", 32768, 1, 1, 1)]
    for name, s, b, recompute, chunked in runs:
        if time.time() > until:
            return print("steps: the time is up; --minutes gives more", file=sys.stderr)
        layers, h, f, heads, kv, vocab = models[name]
        # As this file trains: for seconds, at the clock of a cool chip, without loading data; AdamW is fused, so it makes
        # no copies; a logit is there as log-probability (4 bytes), its gradient behind and before the softmax (8).
        options = "sustained.throttled=false sustained.tensor_fraction=1 launch.per_step_ms=0 "
        options += "memory.update_state_copies=0 memory.bytes_per_logit=12 "
        options += f"kernels.attention_library={library_of_causal_attention(heads, kv, h // heads, s)}"
        if chunked:
            options = options.replace("memory.bytes_per_logit=12", "kernels.loss=chunked")
        kind = "full" if recompute else "none"
        cells = dict(layers=layers, hidden=h, ffn_hidden=f, heads=heads, kv_heads=kv, head_dim=h // heads, vocab=vocab)
        cells.update(dict.fromkeys(("chips", "chips_per_node", "tp", "pp", "dp", "cp", "ep", "gated_mlp"), 1))
        cells.update(dict.fromkeys(("sequence_parallel", "zero_stage", "offload", "tied_embeddings", "master_copy"), 0))
        cells.update(
            id=f"{a.chip}_{name}_s{s}_b{b}_{kind}" + "_chunked" * chunked,
            dataset="measured_here",
            model=name,
            seq=s,
            attention="flash",
            chip=a.chip,
            micro_batch=b,
            global_batch=b,
            recompute=kind,
            precision="bf16",
            optimizer="adamw",
            stack="huggingface",
            stack_options=options,
            allocator="allocated",
            confidence="high",
            source=SOURCE + ", weights, gradients and moments in bf16",
        )
        model = optimizer = None
        try:
            with dev:
                model = Llama(layers, h, f, heads, kv, vocab).to(torch.bfloat16)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            ids = torch.randint(vocab, (b, s), device=dev)
            cells["iteration_s"], cells["peak_gib"] = measure_step(model, optimizer, ids, recompute, chunked)
            cells["fits"] = 1
        except torch.OutOfMemoryError:
            cells["fits"] = 0
        except Exception as why:
            print("skipped", cells["id"], named(why), file=sys.stderr)
            continue
        finally:
            model = optimizer = None
            free()
        table.add(**cells)


class ServedLayer:
    """A layer that computes new tokens of each sequence: their keys and values are written to the cache first. Queries
    and keys are not rotated. Every layer has weights and a cache of its own."""

    def __init__(self, h, f, heads, kv, batch, context):
        d = self.d = h // heads
        self.heads, self.kv, self.batch = heads, kv, batch
        self.norms = rand(h), rand(h)
        self.qkv, self.out = rand(h + 2 * kv * d, h) / h**0.5, rand(h, h) / h**0.5
        self.gate_up, self.down = rand(2 * f, h) / h**0.5, rand(h, f) / f**0.5
        self.cache = rand(2, batch, context, kv, d)

    def run(self, x):
        from torch.nn.attention.bias import causal_lower_right

        (rows, h), b = x.shape, self.batch
        new, context = rows // b, self.cache.shape[2]
        y = F.linear(F.rms_norm(x, (h,), self.norms[0]), self.qkv)
        q, made = y.split([h, 2 * self.kv * self.d], -1)
        self.cache[:, :, -new:] = made.view(b, new, 2, self.kv, self.d).permute(2, 0, 1, 3, 4)
        keys, values = self.cache.transpose(2, 3)
        query = q.view(b, new, self.heads, self.d).transpose(1, 2)
        sees = dict(is_causal=True) if new == context else dict(attn_mask=causal_lower_right(new, context))
        y = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True, **(sees if new > 1 else {}))
        x = torch.addmm(x, y.transpose(1, 2).reshape(rows, h), self.out.t())
        gate, up = F.linear(F.rms_norm(x, (h,), self.norms[1]), self.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate) * up, self.down.t())


def decode(until):
    """A pass as one CUDA graph: every layer, the head and the most likely token of each sequence. It decodes a token
    of each sequence, or computes the new tokens of a prompt behind others in the cache."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    columns = "id,dataset,chip,model,dtype,batch,new,context,library,measured_us,spread_pct,timing,source"
    table = Table("decode_passes.csv", columns)
    if a.quick:
        model, shape, runs = "tiny", (2, 128, 256, 4, 2, 1024), [(1, 1, 64), (4, 1, 128), (1, 64, 64), (1, 32, 96)]
    else:
        model, shape = "llama3.1-8b", (32, 4096, 14336, 32, 8, 128256)
        runs = [(1, 2048, 2048), (1, 1, 1024), (1, 2048, 34816), (32, 1, 1024), (1, 512, 8704), (1, 1, 32768)]
        runs += [(1, 8192, 8192), (128, 1, 1024), (1, 512, 512), (8, 1, 8192), (1, 2048, 10240), (32, 1, 8192)]
        runs += [(1, 128, 8320), (256, 1, 1024), (1, 512, 33280), (8, 1, 1024), (1, 128, 128), (8, 1, 32768)]
    layers, h, f, heads, kv, vocab = shape
    for batch, new, context in runs:
        if time.time() > until:
            return print("decode: the time is up; --minutes gives more", file=sys.stderr)
        try:
            with torch.no_grad(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
                stack = [ServedLayer(h, f, heads, kv, batch, context) for _ in range(layers)]
                embed, head, last = rand(vocab, h), rand(vocab, h), rand(h)
                ids = torch.zeros(batch * new, dtype=torch.int64, device=dev)
                likely = torch.zeros(batch, dtype=torch.int64, device=dev)

                def iteration():
                    x = F.embedding(ids, embed)
                    for layer in stack:
                        x = layer.run(x)
                    x = x.view(batch, new, h)[:, -1]
                    likely.copy_(F.linear(F.rms_norm(x, (h,), last), head).argmax(-1))

                us, spread = timed(lambda: iteration, 1e12, True)
        except Exception as why:
            print("skipped", batch, new, context, named(why), file=sys.stderr)
            continue
        finally:
            stack = iteration = None
            free()
        name = f"decode_{model}_b{batch}_s{context}" if new == 1 else f"prefill_{model}_b{batch}_n{new}_s{context}"
        table.add(
            id=f"{a.chip}_{name}",
            dataset="measured_here",
            chip=a.chip,
            model=model,
            dtype="bf16",
            batch=batch,
            new=new if new > 1 else "",
            context=context,
            library="flash_attention_2" if new > 1 else "",
            measured_us=f"{us:.2f}",
            spread_pct=f"{spread:.2f}",
            timing="device",
            source=SOURCE + ", SDPA flash",
        )


def adapters(until):
    """Steps and peaks of transformers' Llama with PEFT's adapters, or with all weights trained, in bf16."""
    import transformers, peft

    columns = "id,source,model,chip,gpus,technique,quantization,rank,micro_batch,seq,recompute,offload,peak,unit,"
    table = Table("finetuning_peaks.csv", columns + "instrument,step_or_total_s,tokens_per_s,fits,note")
    wide = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    if a.quick:
        models = {"tiny": (2, 128, 256, 4, 2, 1024)}
        runs = [("tiny", m, 4, t, 2, 64, r) for m, t, r in (("FULL", [], 0), ("LORA", wide, 1), ("DORA", wide[:1], 0))]
    else:
        models = {"llama3.2-1b": (16, 2048, 8192, 32, 8, 128256), "llama3.1-8b": (32, 4096, 14336, 32, 8, 128256)}
        narrow = ["q_proj", "v_proj"]
        runs = [
            ("llama3.1-8b", "LORA", 16, narrow, 1, 2048, 0),
            ("llama3.1-8b", "LORA", 16, wide, 2, 4096, 1),
            ("llama3.2-1b", "FULL", 0, [], 4, 2048, 0),
            ("llama3.2-1b", "DORA", 16, narrow, 4, 2048, 0),
            ("llama3.1-8b", "LORA", 64, wide, 1, 2048, 0),
            ("llama3.1-8b", "FULL", 0, [], 1, 2048, 1),
            ("llama3.2-1b", "LORA", 32, narrow, 8, 1024, 0),
            ("llama3.1-8b", "DORA", 16, wide, 1, 4096, 1),
        ]
    for name, method, rank, targets, b, s, recompute in runs:
        if time.time() > until:
            return print("adapters: the time is up; --minutes gives more", file=sys.stderr)
        layers, h, f, heads, kv, vocab = models[name]
        config = transformers.LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=h,
            intermediate_size=f,
            num_attention_heads=heads,
            num_key_value_heads=kv,
            vocab_size=vocab,
            max_position_embeddings=131072,
            tie_word_embeddings=name == "llama3.2-1b",
            attn_implementation="sdpa",
            use_cache=False,
        )
        kind = "full" if recompute else "none"
        model = optimizer = None
        try:
            with dev:
                torch.set_default_dtype(torch.bfloat16)
                model = transformers.LlamaForCausalLM(config)
            if method != "FULL":
                dora = method == "DORA"
                model = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=targets, use_dora=dora))
            if recompute:
                model.enable_input_require_grads()
                model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-4)
            ids = torch.randint(vocab, (b, s), device=dev)

            def step():
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            for _ in range(2):
                step()
            seconds, _ = median_of(step, 5)
            peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()] if GPU else [0, 0]
            kinds = {str(weight.dtype).split(".")[1] for weight in trained}
            note = f"trainable {sum(weight.numel() for weight in trained)}; dtype {'/'.join(sorted(kinds))}; "
            note += f"targets {targets}; transformers {transformers.__version__}, peft {peft.__version__}"
        except Exception as why:
            print("skipped", name, method, named(why), file=sys.stderr)
            continue
        finally:
            model = optimizer = trained = step = None
            torch.set_default_dtype(torch.float32)
            free()
            if GPU:
                torch.cuda.reset_peak_memory_stats()
        for peak, instrument in zip(peaks, ("allocated", "reserved")):
            table.add(
                id=f"{a.chip}_{name}_{method.lower()}{rank}_{len(targets)}_s{s}_b{b}_{kind}_{instrument}",
                source=SOURCE,
                model=name,
                chip=a.chip,
                gpus=1,
                technique=method,
                rank=rank or "",
                micro_batch=b,
                seq=s,
                recompute=kind,
                peak=f"{peak / 2**30:.3f}" if GPU else "",
                unit="GiB",
                instrument=f"max {instrument} over 7 steps",
                step_or_total_s=f"{seconds:.5f}",
                tokens_per_s=f"{b * s / seconds:.0f}",
                fits=1,
                note=note,
            )


def power(until):
    """Energy of a call of a kernel, from board power and time while it repeats; and the SM clock (NVML)."""
    import pynvml

    pynvml.nvmlInit()
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    table = Table("gpu_energy.csv", KERNELS + ",operands,power_w,energy_mj,sm_clock_mhz,limit_w")
    limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1e3

    def one(kernel, calls, operands="normal", seconds=2.5):
        if time.time() > until:
            return print("power: the time is up; --minutes gives more", file=sys.stderr)
        samples, stop = [], threading.Event()

        def sample():
            while not stop.is_set():
                watts = pynvml.nvmlDeviceGetPowerUsage(board) / 1e3
                samples.append((watts, pynvml.nvmlDeviceGetClockInfo(board, 1)))
                time.sleep(0.02)

        def repeat(seconds):
            """Calls until the time is up; returns how often."""
            begin, count = time.time(), 0
            while count == 0 or time.time() - begin < seconds:
                for i in range(12):
                    calls[i % len(calls)]()
                sync()
                count += 12
            return count

        repeat(0.4 * seconds)  # until clock and reading have settled
        settled = time.time()
        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        us = (repeat(0.6 * seconds), time.time() - settled)
        us = us[1] / us[0] * 1e6
        stop.set()
        thread.join()
        watts, clock = (sum(sample[i] for sample in samples) / max(len(samples), 1) for i in (0, 1))
        table.add(
            id=f"{kernel.id}_energy" + "_zeros" * (operands == "zeros"),
            dataset=kernel.dataset + "_zeros" * (operands == "zeros"),
            chip=a.chip,
            kernel=kernel.kernel,
            measured_us=f"{us:.3f}",
            timing="device",
            source=SOURCE,
            operands=operands,
            power_w=f"{watts:.1f}",
            energy_mj=f"{watts * us / 1e3:.3f}",
            sm_clock_mhz=f"{clock:.0f}",
            limit_w=f"{limit:.0f}",
            **kernel.shape,
        )

    n = 8192
    wide, narrow = product(n, n, n), product_fp8(n, n, n, converted=True)
    for operands, scale in (("normal", 1), ("zeros", 0)):
        x, y, s = rand(n, n) * scale, rand(n, n) * scale, torch.ones((), device=dev)
        one(wide, [lambda: torch.mm(x, y.t())], operands)
        x8, y8 = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn)
        one(narrow, [lambda: torch._scaled_mm(x8, y8.t(), s, s, out_dtype=torch.bfloat16)], operands)
    x = y = x8 = y8 = None
    for kernel in (copy(2**29), elementwise("gelu", 2**15, 2**14), product(2048, n, n), product(512, n, n)):
        one(kernel, [kernel.make()])
    for kernel in (product(64, n, n), decode_attention(64, 32, 8, 128, 4096)):
        one(kernel, [kernel.make() for _ in range(4)])
    for kernel in (attention(2, 32, 8, 128, 8192, False), attention(2, 32, 8, 128, 8192, True)):
        one(kernel, [kernel.make()])


PARTS = {part.__name__: part for part in (steps, copies, kernels, serving, decode, adapters, power)}
asked = a.parts.split(",")
for name in asked:
    if name not in PARTS:
        p.error(f"--parts: {name} is none of {', '.join(PARTS)}")
begin = time.time()
for name in asked:
    share = SHARE[name] / sum(SHARE[part] for part in asked)
    try:
        PARTS[name](time.time() + a.minutes * 60 * share)
    except Exception as why:
        print("stopped", name, repr(why)[:300], file=sys.stderr)
    free()
    print(name, "done after", round(time.time() - begin), "s", file=sys.stderr, flush=True)
