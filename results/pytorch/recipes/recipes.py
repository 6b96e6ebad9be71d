"""P data-parallel ranks on one GPU: which way of exchanging what the optimizer changed learns as dense AdamW does?
recipes.py JOB ...   a JOB is name,key=value,...; each appends one JSON line to $OUT/recipes.jsonl
Same model, text and hyperparameters as adam_recipes.py; forward and backward are captured in a CUDA graph."""
import glob, json, math, os, sys, sysconfig, time
import torch
from torch import nn
from torch.nn import functional as F
CUDA = torch.cuda.is_available()
DEV = torch.device("cuda" if CUDA else "cpu")
torch.backends.cuda.matmul.allow_tf32 = True
torch._dynamo.config.recompile_limit = 100
COMPILE = os.environ.get("COMPILE", "1" if CUDA else "0") == "1"
DEADLINE = time.time() + float(os.environ.get("SECONDS_LEFT", "100000"))
OUT = os.environ.get("OUT", "/tmp")

def text(megabytes=16):
    names = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**/*.py"), recursive=True))
    content = bytearray()
    for n in names:
        if "-packages" in n: continue
        content += open(n, "rb").read()
        if len(content) >= megabytes << 20: break
    e = torch.frombuffer(content, dtype=torch.uint8)
    cut = len(e) * 19 // 20
    return e[:cut].to(DEV), e[cut:].to(DEV)

class Block(nn.Module):
    def __init__(s, w):
        super().__init__(); s.heads = w // 64
        s.norm1, s.norm2 = nn.LayerNorm(w), nn.LayerNorm(w)
        s.qkv, s.out = nn.Linear(w, 3*w), nn.Linear(w, w)
        s.up, s.down = nn.Linear(w, 4*w), nn.Linear(4*w, w)
    def forward(s, x):
        B, L, W = x.shape
        q, k, v = (p.view(B, L, s.heads, -1).transpose(1, 2) for p in s.qkv(s.norm1(x)).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + s.out(a.transpose(1, 2).reshape(B, L, W))
        return x + s.down(F.gelu(s.up(s.norm2(x))))

class Net(nn.Module):
    def __init__(s, layers, w, ctx):
        super().__init__()
        s.byte, s.place = nn.Embedding(256, w), nn.Embedding(ctx, w)
        s.blocks = nn.ModuleList(Block(w) for _ in range(layers))
        s.norm, s.head = nn.LayerNorm(w), nn.Linear(w, 256)
        for n, p in s.named_parameters():
            if p.dim() > 1: nn.init.normal_(p, std=0.02 / ((2*layers)**0.5 if "out." in n or "down." in n else 1))
    def forward(s, x, t):
        x = s.byte(x) + s.place(torch.arange(x.shape[1], device=x.device))
        for b in s.blocks: x = b(x)
        return F.cross_entropy(s.head(s.norm(x)).float().flatten(0, 1), t.flatten())

class Machine:
    """A model whose weights and gradients are flat vectors, and a graph of its forward and backward pass."""
    def __init__(s, layers, width, ctx, batch):
        s.key = (layers, width, ctx, batch); s.ctx, s.batch = ctx, batch
        with DEV: s.net = Net(layers, width, ctx)
        ps = list(s.net.parameters()); s.shapes = [p.shape for p in ps]
        s.n = sum(p.numel() for p in ps)
        s.w = torch.zeros(s.n, device=DEV); s.g = torch.zeros_like(s.w); s.spans, o = [], 0
        for p in ps:
            c = p.numel(); p.data = s.w[o:o+c].view_as(p); p.grad = s.g[o:o+c].view_as(p); s.spans.append((o, o+c)); o += c
        if COMPILE:
            for b in s.net.blocks: b.compile(dynamic=False)
        s.x = torch.zeros(batch, ctx, dtype=torch.long, device=DEV); s.y = torch.zeros_like(s.x)
        s.loss = torch.zeros((), device=DEV)
        s.graph = None
        if CUDA:
            side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3): s.body()
            torch.cuda.current_stream().wait_stream(side); torch.cuda.synchronize()
            s.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(s.graph): s.body()
    def body(s):
        s.g.zero_()
        with torch.autocast(DEV.type, torch.bfloat16, cache_enabled=False): loss = s.net(s.x, s.y)
        loss.backward(); s.loss.copy_(loss.detach())
    def start(s, seed, layers, width, ctx):
        torch.manual_seed(seed)
        with DEV: net = Net(layers, width, ctx)
        s.w.copy_(torch.cat([p.detach().flatten() for p in net.parameters()]))
    def draw(s, content, seed):
        g = torch.Generator().manual_seed(seed)
        p = torch.randint(len(content) - s.ctx, (s.batch, 1), generator=g)
        if CUDA: p = p.pin_memory().to(DEV, non_blocking=True)
        b = content[p + torch.arange(s.ctx + 1, device=DEV)].long()
        s.x.copy_(b[:, :-1]); s.y.copy_(b[:, 1:])
    def grad(s, content, seed):
        s.draw(content, seed)
        s.graph.replay() if s.graph else s.body()
        return s.loss.clone()
    @torch.no_grad()
    def test_old(s, held):  # as adam_recipes.py
        total = []
        with torch.compiler.set_stance("force_eager"):
            for i in range(16):
                p = torch.randint(len(held) - s.ctx, (32, 1), generator=torch.Generator().manual_seed(i))
                b = held[(p + torch.arange(s.ctx + 1)).to(DEV)].long()
                with torch.autocast(DEV.type, torch.bfloat16, cache_enabled=False): total.append(s.net(b[:, :-1], b[:, 1:]))
        return torch.stack(total).mean().item()
    @torch.no_grad()
    def test(s, held):
        with torch.compiler.set_stance("force_eager"): return s.loss_of(held)
    def loss_of(s, held):
        total = []
        for i in range(max(1, 512 // s.batch)):
            s.draw(held, 7 * i + 1)
            with torch.autocast(DEV.type, torch.bfloat16, cache_enabled=False): total.append(s.net(s.x, s.y))
        return torch.stack(total).mean().item()

# ---- passes over all weights, each one kernel when compiled
def f_moment(g, m, b1: float): m.lerp_(g, 1 - b1)
def f_dense(w, g, m, v, s, b1: float, b2: float):
    m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).add_(g * g, alpha=1 - b2)
    w.sub_(s[0] * ((m / s[1]) / ((v / s[2]).sqrt() + 1e-8) + 0.1 * w))
def f_own(w, g, m, v, acc, s, b1: float, b2: float, corr: float):
    m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).add_(g * g, alpha=1 - b2)
    mh, vh = m / s[1], v / s[2]
    vh = vh - corr * (vh - mh * mh).clamp_min(0)
    acc.add_(s[0] * (mh / (vh.sqrt() + 1e-8) + 0.1 * w))
def f_local(wl, g, m, v, s, b1: float, b2: float, corr: float):
    m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).add_(g * g, alpha=1 - b2)
    mh, vh = m / s[1], v / s[2]
    vh = vh - corr * (vh - mh * mh).clamp_min(0)
    wl.sub_(s[0] * (mh / (vh.sqrt() + 1e-8) + 0.1 * wl))
def f_shared(w, g, m, v, ve, acc, s, b1: float, b2: float):
    m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).add_(g * g, alpha=1 - b2)
    acc.add_(s[0] * ((m / s[1]) / (ve.sqrt() + 1e-8) + 0.1 * w))
def f_corrected(m, v, s, out, corr: float, share: float):
    mh, vh = m / s[1], v / s[2]
    out.add_(share * (vh - corr * (vh - mh * mh).clamp_min(0)))
def f_offer(acc, thr, total): total.add_(torch.where(acc.abs() > thr, acc, 0.0))
def f_leave(acc, thr, total, T): acc.copy_(torch.where((acc.abs() > thr) & (total.abs() > T), 0.0, acc))
def f_mask(acc, thr, total, T, m): m.copy_(torch.where((acc.abs() > thr) & (total.abs() > T), 0.0, m))
def f_ef(g, m, v, u, acc, s, b1: float, b2: float, corr: float):
    m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).add_(g * g, alpha=1 - b2)
    mh, vh = m / s[1], v / s[2]
    vh = vh - corr * (vh - mh * mh).clamp_min(0)
    new = mh / (vh.sqrt() + 1e-8)
    acc.add_(new - u); u.copy_(new)
def f_ef_apply(w, h, total, T, s, share: float):
    h.add_(share * torch.where(total.abs() > T, total, 0.0))
    w.sub_(s[0] * (h + 0.1 * w))
def f_apply(w, total, T, share: float): w.sub_(share * torch.where(total.abs() > T, total, 0.0))
if COMPILE:
    for name in [n for n in list(globals()) if n.startswith("f_")]: globals()[name] = torch.compile(globals()[name], dynamic=False)

def kth(v, k, n):
    stride = max(1, n // (1 << (20 if n > 50e6 else 18)))
    s = v[int(torch.randint(stride, (1,))) if stride > 1 else 0::stride].abs()
    return torch.topk(s, max(1, round(k * len(s) / n)), sorted=False).values.min()

machines = {}
def machine(*key):
    if key not in machines:
        machines.clear()
        t = time.time(); machines[key] = Machine(*key); print("machine", key, "%.1f s" % (time.time() - t), flush=True)
    return machines[key]

@torch.no_grad()
def orth(p):  # Gram-Schmidt of a few columns
    for i in range(p.shape[1]):
        c = p[:, i:i+1]; c /= c.norm() + 1e-8
        if i + 1 < p.shape[1]: rest = p[:, i+1:]; rest -= c * (c * rest).sum(0)
    return p

def train(learn, held, name, way="upd", steps=1000, P=4, total=64, d=0.01, lr=6e-4, seed=1, b1=0.9, b2=0.95, corr=0.0, v="own", R=100, flush=0,
          layers=12, width=768, ctx=512, H=1, edecay=1.0, warm=0, rank=4, b3=0.0, outer=1.0, stop=0, dfirst=0, view=0.0, mu=0.0, sl=0, p=0.0, Rs=20, dct=0, mask=0, ef=0, sweep=0, rule=0):
    batch = total // P
    M = machine(layers, width, ctx, batch); n = M.n; w, g = M.w, M.g
    M.start(seed, layers, width, ctx)
    torch.manual_seed(seed)
    new = lambda: torch.zeros(n, device=DEV)
    scal = torch.tensor([[lr * min((t+1)/30, 1 - 0.9*t/steps), 1 - b1**(t+1), 1 - b2**(t+1), 0.0] for t in range(steps)], device=DEV)
    t0, losses, words = time.time(), [], 0.0
    dense_words = 2 * n * (P - 1) / P
    dense_like = way in ("dense", "bf16", "powersgd", "gradient")
    m, vv = (new(), new()) if dense_like else (None, None)
    if not dense_like: ms, vs = [new() for _ in range(P)], [new() for _ in range(P)]
    acc = [new() for _ in range(P)] if way in ("upd", "gradient", "powersgd", "local") else None
    tot = new(); k = int(n * d); sent = []
    if v in ("oracle", "stale"): ve = new()
    if v == "oracle": gs = [new() for _ in range(P)]; vt = new()
    if ef: us, hh = [new() for _ in range(P)], new()
    if way in ("local", "stream"): wl = [w.clone() for _ in range(P)]
    if way == "powersgd":
        mats = [(a, b, sh[0], math.prod(sh[1:])) for (a, b), sh in zip(M.spans, M.shapes) if len(sh) > 1]
        qs = [torch.randn(c, rank, device=DEV) for _, _, _, c in mats]
        rest = torch.ones(n, dtype=torch.bool, device=DEV)
        for a, b, _, _ in mats: rest[a:b] = False
        vectors = int(rest.sum())  # sent as they are
    mom = None
    def exchange(kk):
        nonlocal words
        tot.zero_(); thr = []
        for a in acc:
            if edecay != 1: a.mul_(edecay)
            if p: a.mul_(sc)
            if dct: turn(a)
            thr.append(kth(a, kk, n)); f_offer(a, thr[-1], tot)
        if rule:  # topkA: all that is offered is the result
            for a, t in zip(acc, thr): f_leave(a, t, tot, torch.full((), -1.0, device=DEV))
            words += 2 * kk * (P - 1)
            if p or dct: back(torch.zeros((), device=DEV))
            return torch.full((), 0.0, device=DEV)
        T = torch.where((tot[::16] != 0).float().mean() > kk / n, kth(tot, kk, n), torch.zeros((), device=DEV))
        if mask:
            for a, t, mm in zip(acc, thr, ms): f_mask(a, t, tot, T, mm)
        for a, t in zip(acc, thr): f_leave(a, t, tot, T)
        words += 2 * kk * (P - 1) / P + 2 * kk * (P - 1) / P  # offered to the owners of parts; the result gathered
        if p or dct: back(T); T = torch.zeros((), device=DEV)
        return T
    def back(T):
        tot.copy_(torch.where(tot.abs() > T, tot, 0.0))
        if dct:
            for a in (*acc, tot): turn(a, True)
        if p:
            for a in (*acc, tot): a.div_(sc)
    if dct:
        j = torch.arange(64, device=DEV, dtype=torch.float64)
        C = torch.cos(math.pi / 64 * (j + 0.5) * j[:, None]) * math.sqrt(2 / 64); C[0] /= math.sqrt(2); C = C.float()
    def turn(x, inverse=False):
        K = C.T if inverse else C
        for (a, b), sh in zip(M.spans, M.shapes):
            if len(sh) == 2 and sh[0] % 64 == 0 and sh[1] % 64 == 0:
                v4 = x[a:b].view(sh[0] // 64, 64, sh[1] // 64, 64)
                v4.copy_(torch.einsum("ij,ajbk,lk->aibl", K, v4, K))
    sc = None
    def all_of_it():  # a dense exchange of the residuals
        nonlocal words
        tot.zero_()
        for a in acc: tot.add_(a); a.zero_()
        words += dense_words
        return torch.zeros((), device=DEV)
    refresh = 10
    for t in range(steps):
        if t % 100 == 99 and time.time() > DEADLINE: print("deadline:", name, t, flush=True); return
        s, ls = scal[t], []
        seeds = [(seed*100000 + t)*P + r for r in range(P)]
        if dense_like:
            if way == "gradient":
                for r in range(P): ls.append(M.grad(learn, seeds[r])); acc[r].add_(g)
                T = all_of_it() if t < warm else exchange(k)
                tot.copy_(torch.where(tot.abs() > T, tot, 0.0) / P)
            elif way == "powersgd" and t >= warm:
                tot.zero_()
                for r in range(P): ls.append(M.grad(learn, seeds[r])); tot.add_(g, alpha=1/P); acc[r].add_(g)
                for i, (a, b, rows, cols) in enumerate(mats):
                    each = [e[a:b].view(rows, cols) for e in acc]
                    po = orth(sum(e @ qs[i] for e in each) / P); qs[i] = sum(e.T @ po for e in each) / P
                    approx = po @ qs[i].T; tot[a:b].copy_(approx.flatten())
                    for e in each: e -= approx
                    words += 2 * (P - 1) / P * rank * (rows + cols)
                words += 2 * (P - 1) / P * vectors
                for e in acc: e.masked_fill_(rest, 0)
            else:
                tot.zero_()
                for r in range(P):
                    ls.append(M.grad(learn, seeds[r]))
                    tot.add_((g / P).bfloat16().float() if way == "bf16" else g / P)
                words += dense_words * (0.5 if way == "bf16" else 1)
            f_dense(w, tot, m, vv, s, b1, b2)
        elif way in ("local", "stream"):  # every H steps an exchange of what changed
            for r in range(P):
                keep = w if r == 0 else None
                if r == 0: base = w.clone() if t % H == 0 or t == 0 or way == "stream" else base
                w.copy_(wl[r]); ls.append(M.grad(learn, seeds[r]))
                f_local(wl[r], g, ms[r], vs[r], s, b1, b2, corr)
            w.copy_(base)
            if way == "local" and ((t + 1) % H == 0 or t + 1 == steps):
                for r in range(P): acc[r].mul_(1 - view).add_(w).sub_(wl[r])
                T = all_of_it() if d >= 1 else exchange(k)
                if mu:  # Nesterov, as DiLoCo
                    if mom is None: mom = new()
                    tot.copy_(torch.where(tot.abs() > T, tot, 0.0)).div_(P)
                    mom.mul_(mu).add_(tot); w.sub_(tot + mu * mom, alpha=outer)
                else: f_apply(w, tot, T, outer / P)
                for x, a in zip(wl, acc): torch.sub(w, a, alpha=view, out=x)
            if way == "stream":  # a slice of all weights is averaged in each step
                a, b = (t % sl) * n // sl, (t % sl + 1) * n // sl
                mean = sum(x[a:b] for x in wl) / P
                for x in wl: x[a:b] = mean
                w[a:b] = mean
                words += (b - a) * 2 * (P - 1) / P
        else:
            if v == "oracle":
                tot.zero_()
                for r in range(P): ls.append(M.grad(learn, seeds[r])); gs[r].copy_(g); tot.add_(g, alpha=1/P)
                vt.mul_(b2).addcmul_(tot, tot, value=1-b2); torch.div(vt, s[2], out=ve)
                for r in range(P): f_shared(w, gs[r], ms[r], vs[r], ve, acc[r], s, b1, b2)
            else:
                stale = v == "stale" and refresh > 10
                if view: base = w.clone()
                for r in range(P):
                    if view: torch.sub(base, acc[r], alpha=view, out=w)
                    ls.append(M.grad(learn, seeds[r]))
                    if view: w.copy_(base)
                    if ef: f_ef(g, ms[r], vs[r], us[r], acc[r], s, b1, b2, corr); continue
                    if stale: f_shared(w, g, ms[r], vs[r], ve, acc[r], s, b1, b2)
                    else: f_own(w, g, ms[r], vs[r], acc[r], s, b1, b2, corr)
                if v == "stale" and t + 1 == refresh:  # 10, 20, 40, ... and from R on every R steps
                    ve.zero_()
                    for r in range(P): f_corrected(ms[r], vs[r], s, ve, 1 - 1/P, 1/P)
                    words += dense_words; refresh += min(refresh, R)
            if p and (sc is None or t % Rs == 0):
                sc = (sum(vs) / P / s[2] + 1e-20).pow(p / 2)
                sc = sc.clamp_min(sc.mean() * 1e-3)
            flushing = d >= 1 or t < dfirst or (flush and (t + 1) % flush == 0)
            T = all_of_it() if flushing else exchange(k)
            if ef: f_ef_apply(w, hh, tot, T, s, 1 / P)
            else: f_apply(w, tot, T, outer / P)
            if sweep:  # a part of the residual in each step, all of it
                a, b = (t % sweep) * n // sweep, (t % sweep + 1) * n // sweep
                for e in acc: w[a:b].sub_(e[a:b], alpha=1 / P); e[a:b].zero_()
                words += (b - a) * 2 * (P - 1) / P
        losses.append(torch.stack(ls).mean())
        if stop and t + 1 == stop: break
    result = M.test_old(held) if width == 768 else M.test(held); flushed = None
    if way in ("upd",) and d < 1:
        all_of_it(); f_apply(w, tot, torch.zeros((), device=DEV), 1 / P); words -= dense_words; flushed = round(M.test_old(held) if width == 768 else M.test(held), 4)
    if way == "stream" or (way == "local" and d < 1):
        w.copy_(sum(wl) / P); flushed = round(M.test_old(held) if width == 768 else M.test(held), 4)
    ls = torch.stack(losses).tolist()
    row = dict(name=name, way=way, steps=steps, P=P, d=d, lr=lr, seed=seed, b1=b1, b2=b2, corr=corr, v=v, R=R, flush=flush, H=H, edecay=edecay, view=view, mu=mu, sl=sl, p=p, dct=dct, Rs=Rs, mask=mask, ef=ef, sweep=sweep, rule=rule, outer=outer, dfirst=dfirst,
               layers=layers, width=width, total=total, weights=n, loss=round(sum(ls[-20:])/len(ls[-20:]), 4), held=round(result, 4), flushed=flushed,
               fewer=round(dense_words * len(losses) / max(words, 1), 1), s=round(time.time()-t0, 1))
    print("%-24s loss %.4f held %.4f flushed %s fewer %.1f  %.1f s" % (name, row["loss"], result, flushed, row["fewer"], row["s"]), flush=True)
    with open(OUT + "/recipes.jsonl", "a") as f: f.write(json.dumps(dict(row, curve=[round(x, 4) for x in ls[::20]])) + "\n")

if __name__ == "__main__":
    learn, held = text()
    print(len(learn), torch.__version__, "compile", COMPILE, flush=True)
    common = {}
    jobs = []
    for a in sys.argv[1:]:
        name, *kv = a.split(",")
        o = {}
        for x in kv:
            key, val = x.split("=")
            try: o[key] = int(val)
            except ValueError:
                try: o[key] = float(val)
                except ValueError: o[key] = val
        if name == "all": common = o
        else: jobs.append((name, dict(common, **o)))
    for name, o in jobs:
        if time.time() > DEADLINE - 3: print("no time for", name, flush=True); continue
        try: train(learn, held, name, **o)
        except Exception as e:
            print("FAILED", name, repr(e)[:500], flush=True)
            machines.clear()
        if CUDA: torch.cuda.empty_cache()
