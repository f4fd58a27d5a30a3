"""The CPU kernel ``head_attention.cpp``: compiled when it is first needed, and an operator of torch from then on.

It needs a C++ compiler (``CXX``, or ``c++`` on the path) and compiles in a few seconds; the result is kept under
``$XDG_CACHE_HOME/budgetformer``. Without a compiler everything runs in plain PyTorch (:mod:`budgetformer.execution`).

Shapes: B batch, T tokens, D width, A heads of the layer, K head width, N columns of a tile; Kp and Dp are K and D
rounded up to multiples of N, and C is 3 Kp.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SOURCE = Path(__file__).with_name("head_attention.cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-fopenmp")
_TILE = 16  # N of head_attention.cpp


class Kernel(NamedTuple):
    """What became of the kernel on this machine.

    Attributes:
        function: the compiled function; None where there is none.
        description: the compiler, or why there is no kernel.
        scratch_floats: says how many floats a call needs beside its input and output.
    """

    function: Callable[..., int] | None
    description: str
    scratch_floats: Callable[..., int] | None = None


@lru_cache(maxsize=1)
def load_kernel() -> Kernel:
    """Compiles the kernel unless this machine has it already, and loads it."""
    try:
        found = shutil.which("c++") or shutil.which("g++")
        compiler = shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])
        if not compiler:
            return Kernel(None, "no C++ compiler")
        version = next(iter(_run(*compiler, "--version").splitlines()), shlex.join(compiler))
        library = ctypes.CDLL(str(_build(compiler, version)))
        function, scratch_floats = library.budgetformer_head_attention, library.budgetformer_scratch_floats
    except (OSError, ValueError, AttributeError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [str(error)]
        reason = next((line for line in lines if "error" in line), lines[-1])
        return Kernel(None, f"the kernel cannot be compiled or loaded: {reason}")
    function.argtypes = [ctypes.c_void_p] * 9 + [ctypes.c_int64] * 6
    scratch_floats.argtypes = [ctypes.c_void_p] + [ctypes.c_int64] * 5
    function.restype = scratch_floats.restype = ctypes.c_int64
    return Kernel(function, version, scratch_floats)


def _build(compiler: list[str], version: str) -> Path:
    """Where the compiled kernel is; two processes that compile it at once do each other no harm."""
    recipe = "\n".join((_SOURCE.read_text(), *compiler[1:], version, *_FLAGS, _processor()))
    built = cache_folder() / f"head_attention-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    if built.exists():
        return built
    if not os.access(built.parent, os.W_OK):
        built = _new_folder() / built.name
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        compiled, linked = Path(scratch, "kernel.o"), Path(scratch, "kernel.so")
        _run(*compiler, *_FLAGS, "-c", str(_SOURCE), "-o", str(compiled))
        # Linked without OpenMP: its symbols are found in the one that torch has loaded, so both share its threads.
        _run(*compiler, "-shared", str(compiled), "-o", str(linked))
        linked.replace(built)
    return built


def cache_folder() -> Path:
    """Where this project keeps what it made once; a new folder for temporary files where there is no such place."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "budgetformer"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return _new_folder()
    return folder


@lru_cache(maxsize=1)
def _new_folder() -> Path:
    """One for this process."""
    return Path(tempfile.mkdtemp(prefix="budgetformer-"))


def _processor() -> str:
    """What ``-march=native`` looks at: a home folder may be shared by machines with different instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = (line for line in lines if line.startswith(("flags", "Features")))
    return platform.machine() + next(flags, platform.processor())


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout


class PackedWeights(NamedTuple):
    """A layer's weights as the kernel reads them, panel by panel of N columns."""

    qkv_weight: Tensor
    """``(A, C / N, D, N)``."""
    qkv_bias: Tensor
    """``(A, C)``."""
    out_weight: Tensor
    """``(A, Dp / N, K, N)``."""
    out_bias: Tensor
    """``(Dp,)``."""


def pack(qkv: nn.Linear, out: nn.Linear, head_width: int) -> PackedWeights:
    """Lays the weights of a layer out for the kernel.

    Args:
        qkv: its query, key and value projections, head by head.
        out: its output projection.
        head_width: K.
    """
    width = out.out_features
    num_heads = out.in_features // head_width
    more_K, more_D = _up(head_width) - head_width, _up(width) - width
    weight_AQKD = qkv.weight.view(num_heads, 3, head_width, width)
    weight_ACD = F.pad(weight_AQKD, (0, 0, 0, more_K)).flatten(1, 2)
    bias_AC = F.pad(qkv.bias.view(num_heads, 3, head_width), (0, more_K)).flatten(1)
    out_AKD = F.pad(out.weight.view(width, num_heads, head_width).permute(1, 2, 0), (0, more_D))
    return PackedWeights(
        weight_ACD.reshape(num_heads, -1, _TILE, width).transpose(2, 3).contiguous(),
        bias_AC.contiguous(),
        out_AKD.reshape(num_heads, head_width, -1, _TILE).transpose(1, 2).contiguous(),
        F.pad(out.bias, (0, more_D)).contiguous(),
    )


torch.library.define(
    "budgetformer::head_attention",
    "(Tensor x, Tensor? gates, Tensor? mask, Tensor qkv_weight, Tensor qkv_bias, Tensor out_weight, Tensor out_bias)"
    " -> Tensor",
)


def head_attention(x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None, *weights: Tensor) -> Tensor:
    """The attention of the active pairs, ``(B, T, D)``, in float32; without gradients.

    Args:
        x_BTD: the input.
        gates_BA: the gates, >= 0; None is 1 everywhere.
        mask_BT: True at real tokens, of which each input has one; None is no padding.
        weights: the parts of :class:`PackedWeights`.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit each other, or there is no kernel here.
        RuntimeError: if there is too little memory.
    """
    packed = PackedWeights(*weights)
    _check(x_BTD, gates_BA, mask_BT, packed)
    function, description, scratch_floats = load_kernel()
    if function is None or scratch_floats is None:
        raise ValueError(f"there is no kernel here: {description}")
    x_BTD = x_BTD.contiguous()
    gates_BA = None if gates_BA is None else gates_BA.contiguous()
    mask_BT = None if mask_BT is None else mask_BT.contiguous()
    packed = PackedWeights(*(weight.contiguous() for weight in packed))
    batch, tokens, width = x_BTD.shape
    num_heads, _, head_width, _ = packed.out_weight.shape
    threads = torch.get_num_threads()
    y_BTD = torch.empty_like(x_BTD)
    gates_at = None if gates_BA is None else gates_BA.data_ptr()
    num_floats = scratch_floats(gates_at, batch, tokens, num_heads, head_width, threads)
    scratch = x_BTD.new_empty(max(num_floats, 0))  # torch's allocation: where memory is short it raises
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in (x_BTD, gates_BA, mask_BT, *packed, y_BTD)]
    if num_floats < 0 or function(*pointers, scratch.data_ptr(), batch, tokens, width, num_heads, head_width, threads):
        raise RuntimeError("not enough memory for the kernel to plan its work")
    return y_BTD


def _like_the_input(x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None, *weights: Tensor) -> Tensor:
    return torch.empty_like(x_BTD)


torch.library.impl("budgetformer::head_attention", "CPU", head_attention)
torch.library.register_fake("budgetformer::head_attention", _like_the_input)


def _check(x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None, packed: PackedWeights) -> None:
    """Refuses what would be read out of bounds, or as something that it is not.

    Raises:
        ValueError: if so.
    """
    sizes = [tuple(tensor.shape) for tensor in (x_BTD, *packed)]
    if [len(size) for size in sizes] != [3, 4, 2, 4, 1]:
        raise ValueError(f"input and packed weights of shapes {sizes} do not have 3, 4, 2, 4 and 1 dimensions")
    (batch, tokens, width), (num_heads, *_), _, (_, _, head_width, _), _ = sizes
    rows, columns = 3 * _up(head_width), _up(width)
    expected = [
        sizes[0],
        (num_heads, rows // _TILE, width, _TILE),
        (num_heads, rows),
        (num_heads, columns // _TILE, head_width, _TILE),
        (columns,),
    ]
    if sizes != expected:
        raise ValueError(f"input and packed weights of shapes {sizes} do not fit each other; expected {expected}")
    if gates_BA is not None and gates_BA.shape != (batch, num_heads):
        raise ValueError(f"gates must be of shape {(batch, num_heads)}, not {tuple(gates_BA.shape)}")
    if mask_BT is not None and (mask_BT.shape != (batch, tokens) or mask_BT.dtype != torch.bool):
        raise ValueError(
            f"the mask must be torch.bool of shape {(batch, tokens)}, not {mask_BT.dtype} of {tuple(mask_BT.shape)}"
        )
    floats = [tensor for tensor in (x_BTD, gates_BA, *packed) if tensor is not None]
    if any(tensor.dtype != torch.float32 for tensor in floats):
        raise ValueError(f"the kernel takes float32, not {', '.join(sorted({str(tensor.dtype) for tensor in floats}))}")
    if any(tensor is not None and tensor.device.type != "cpu" for tensor in (*floats, mask_BT)):
        raise ValueError("the kernel takes tensors of the CPU alone")


def _up(size: int) -> int:
    """Rounded up to whole tiles."""
    return -(-size // _TILE) * _TILE
