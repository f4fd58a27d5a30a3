"""What skipping heads saves: the executions of one layer over a grid, whole encoders, peers, and memory.

``python -m suites execution`` runs it; ``python -m reports execution`` makes tables and a figure of what it wrote. All
times are of interleaved rounds in one process, and only their ratios are told.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import cycle, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.full_mha import FullMHA
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.execution import masked, plain
from budgetformer.method import Method
from budgetformer.selection import whole_heads
from suites.data.encoded import EncodedTask
from suites.data.tokenizing import encode_task
from suites.definitions.catalog import find_suite
from suites.definitions.suite import TaskUse
from suites.executions.grid import KINDS, SHAPES, Cell, cells, measure, prepare
from suites.executions.peers import Peer, peer_blocks
from suites.measuring.latency import BATCH_SIZE, inference_call, spread_batches
from suites.measuring.memory import in_fresh_process, peak_extra_bytes
from suites.measuring.timing import Call, interleave, percentile, ratio
from suites.training.model import build_model
from suites.training.seeding import Streams

NUM_LAYERS = 4
NUM_HEADS = {128: 8, 256: 8, 768: 12}
"""By width of the whole encoders."""
SHARES = (0.25, 0.5)
NUM_BATCHES = 3
"""Real batches, of short, middling and long inputs."""
SECONDS = 30.0
"""About the longest that the rounds of one measurement of whole encoders take."""

Row = dict[str, Any]
Part = Callable[[], list[Row]]


PARTS = ("grid", "encoders", "peers", "memory")


def parts_to_measure(device: str, rounds: int, quick: bool) -> list[tuple[str, str, Part]]:
    """What is measured: the part, a title and a function that returns rows."""
    shapes = SHAPES[:2] if quick else SHAPES
    kinds = KINDS[:1] if quick else KINDS
    bbc, tweets = sorted(find_suite("quick").tasks, key=lambda task: task.name)
    middling = list(NUM_HEADS)[1]
    encoders = [(tweets, middling)] if quick else [*product((tweets, bbc), NUM_HEADS)]
    peers = [(tweets, middling)] if quick else [(tweets, 256), (bbc, 256), (tweets, 768)]
    parts: list[tuple[str, str, Part]] = []
    for cell in cells(shapes, kinds):
        title = f"layer {tuple(cell.shape)}, s = {cell.s}, {cell.kind}"
        parts.append(("grid", title, partial(_one, measure, cell, device=device, rounds=rounds)))
    for task, width in encoders:
        title = f"encoders on {task.name}, D = {width}"
        parts.append(("encoders", title, partial(measure_encoders, task, width, device=device, rounds=rounds)))
    for task, width in peers:
        title = f"peers on {task.name}, D = {width}"
        parts.append(("peers", title, partial(_one, measure_peers, task, width, device=device, rounds=rounds)))
    for shape, s in product((shape for shape in shapes if shape.batch > 1), SHARES):
        title = f"memory of layer {tuple(shape)}, s = {s}"
        cell = Cell(shape, s, "random")
        parts.append(("memory", title, partial(_one, in_fresh_process, measure_memory, cell, device)))
    return parts


def _one(function: Callable[..., Row], *args: object, **kwargs: object) -> list[Row]:
    return [function(*args, **kwargs)]


def headline(row: Mapping[str, Any]) -> str:
    """The ratios of a row, in a line."""
    return ", ".join(f"{name} {value:.2f}" for name, value in row["ratios"].items() if value is not None)


def _spec(data: EncodedTask, task: TaskUse, width: int) -> EncoderSpec:
    return EncoderSpec(
        vocab_size=data.vocab_size,
        num_classes=data.num_classes,
        max_length=task.max_length,
        width=width,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS[width],
    )


def _load(task: TaskUse) -> EncodedTask:
    return encode_task(task.name, task.max_length, task.vocab_size, task.train_limit, task.test_limit)


def measure_encoders(task: TaskUse, width: int, *, device: str, rounds: int) -> list[Row]:
    """Times whole encoders whose inputs use some of the heads, on real test inputs.

    By Amdahl's law the most that can be saved is ``(1 - k / H)`` of the attention's share of the time, which is what
    the encoder without attention saves.

    Returns:
        A row of plain values for each of ``SHARES``; ``ratios``: ``given / full`` (the heads of ``random-k``, chosen
        beforehand), ``heads / full`` (with the choosing), ``no attention / full``, ``full again / full``, and ``saved /
        allowed``, the share of the possible saving that was had, for both.
    """
    data = _load(task)
    spec = _spec(data, task, width)

    def model(method: Method) -> Encoder:
        return method.for_inference(build_model(spec, method, Streams(task.name, 0), device))

    models = {"full": model(FullMHA()), "no attention": model(NoAttention())}
    models["full again"] = models["full"]
    models |= {f"heads {s}": model(RandomK(s=s)) for s in SHARES}
    batches = spread_batches(data.test, BATCH_SIZE, NUM_BATCHES, device)
    timed = {name: inference_call(each, batches) for name, each in models.items()}
    for s in SHARES:
        with torch.inference_mode():
            chosen = [models[f"heads {s}"](*batch).gates_BLH for batch in batches]
        given = [(*batch, gates_BLH) for batch, gates_BLH in zip(batches, chosen, strict=True)]
        timed[f"given {s}"] = inference_call(models[f"heads {s}"], given)
    samples = _interleave(timed, device, rounds)
    to_full = {name: ratio(values, samples["full"]) for name, values in samples.items()}
    rows = []
    for s in SHARES:
        share = whole_heads(s, spec.num_heads) / spec.num_heads
        ratios = {f"{name} / full": to_full[name] for name in ("no attention", "full again")}
        allowed = (1 - to_full["no attention"]) * (1 - share)
        for name, key in (("given", "saved / allowed"), ("heads", "saved / allowed, with choosing")):
            ratios[f"{name} / full"] = to_full[f"{name} {s}"]
            ratios[key] = (1 - to_full[f"{name} {s}"]) / allowed
        row: Row = {"task": task.name, "width": width, "num_layers": NUM_LAYERS, "num_heads": NUM_HEADS[width]}
        row |= {"s": s, "share": share, "attention_share": 1 - to_full["no attention"], "ratios": ratios}
        rows.append(row | {"seconds": {name: percentile(values, 50) for name, values in samples.items()}})
    return rows


def measure_peers(task: TaskUse, width: int, *, device: str, rounds: int) -> Row:
    """Times our full attention against other libraries' encoders of the same sizes, on real inputs.

    Returns:
        Plain values; ``ratios``: our time over theirs, by peer, and over our own, for ``inference`` on padded batches,
        ``inference, no padding``, and ``training`` (a step on padded batches: forward, backward, AdamW).
    """
    data = _load(task)
    spec = _spec(data, task, width)
    ours = build_model(spec, FullMHA(), Streams(task.name, 0), device)
    models: dict[str, nn.Module] = {"ours": ours, "ours again": ours}
    models |= {name: Peer(spec, blocks).to(device) for name, blocks in peer_blocks().items()}
    plain_ours = FullMHA().for_inference(ours, "masked")
    ragged = spread_batches(data.test, BATCH_SIZE, NUM_BATCHES, device)
    whole = [(tokens_BT.clamp(min=1), torch.ones_like(mask_BT)) for tokens_BT, mask_BT in ragged]
    samples: dict[str, list[float]] = {}
    final: dict[str, nn.Module] = {
        name: FullMHA().for_inference(ours) if model is ours else model.eval() for name, model in models.items()
    }
    for kind, batches in (("inference", ragged), ("inference, no padding", whole)):
        timed = {f"{kind}: {name}": inference_call(model, batches) for name, model in final.items()}
        timed[f"{kind}: ours without the kernel"] = inference_call(plain_ours, batches)
        samples |= _interleave(timed, device, rounds)
    steps = {f"training: {name}": _training_call(model.train(), ragged) for name, model in models.items()}
    samples |= _interleave(steps, device, rounds)
    ratios = {
        f"{kind}: ours / {name}": ratio(samples[f"{kind}: ours"], samples[f"{kind}: {name}"])
        for kind, name in (key.split(": ") for key in samples)
        if name != "ours"
    }
    return {
        "task": task.name,
        "width": width,
        "num_layers": NUM_LAYERS,
        "num_heads": NUM_HEADS[width],
        "seconds": {name: percentile(values, 50) for name, values in samples.items()},
        "ratios": ratios,
    }


def _interleave(timed: dict[str, Call], device: str, rounds: int) -> dict[str, list[float]]:
    """Times calls that each walk over ``NUM_BATCHES`` batches: fewer rounds than asked for where they would take long.

    Returns:
        Seconds for all batches together, by name, a number per round.
    """
    start = time.perf_counter()
    for call in timed.values():
        for _ in range(NUM_BATCHES):  # a length that is new to the machine costs more
            call()
    affordable = int(SECONDS / (time.perf_counter() - start))
    rounds = max(2, min(rounds, affordable))
    samples = interleave(timed, device=device, rounds=NUM_BATCHES * rounds, warmup_s=0)
    return {
        name: [sum(values[i : i + NUM_BATCHES]) for i in range(0, len(values), NUM_BATCHES)]
        for name, values in samples.items()
    }


def _training_call(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Call:
    """A training step on the next batch each time, with the labels all 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    turns = cycle(batches)

    def step() -> None:
        tokens_BT, mask_BT = next(turns)
        output = model(tokens_BT, mask_BT)
        logits_BC = output if isinstance(output, Tensor) else output.logits_BC
        loss = F.cross_entropy(logits_BC, torch.zeros(len(logits_BC), dtype=torch.long, device=logits_BC.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
        optimizer.step()

    return step


def measure_memory(cell: Cell, device: str) -> Row:
    """How much memory each execution of a cell needs at its peak, beside the input and the layer; for a fresh process.

    Returns:
        Plain values; ``ratios``: ``auto / full``, by the kernel where there is one, and ``plain / plain full``, in
        PyTorch's operators alone; None where the peak is not known.
    """
    bench = prepare(cell, device)
    layer, x_BTD, gates_BH, *_ = bench
    timed: dict[str, Call] = {
        "auto": lambda: layer(x_BTD, gates_BH),
        "full": lambda: layer(x_BTD),
        "plain": lambda: plain(layer, x_BTD, gates_BH, None),
        "plain full": lambda: masked(layer, x_BTD, None, None),
    }
    peaks: dict[str, int | None] = {}
    with torch.inference_mode():
        for name, call in timed.items():
            call()  # what is made once and kept is no peak
            peaks[name] = peak_extra_bytes(call, device)
    return {
        **asdict(cell),
        "shape": cell.shape._asdict(),
        "share": bench.share,
        "bytes": peaks,
        "ratios": {
            f"{ours} / {theirs}": _over(peaks[ours], peaks[theirs])
            for ours, theirs in (("auto", "full"), ("auto", "plain full"), ("plain", "plain full"))
        },
    }


def _over(ours: int | None, theirs: int | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None
