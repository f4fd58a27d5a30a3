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
    """

    function: Callable[..., None] | None
    description: str


@lru_cache(maxsize=1)
def load_kernel() -> Kernel:
    """Compiles the kernel unless this machine has it already, and loads it."""
    try:
        found = shutil.which("c++") or shutil.which("g++")
        compiler = shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])
        if not compiler:
            return Kernel(None, "no C++ compiler")
        version = next(iter(_run(*compiler, "--version").splitlines()), shlex.join(compiler))
        function = ctypes.CDLL(str(_build(compiler, version))).budgetformer_head_attention
    except (OSError, ValueError, AttributeError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [str(error)]
        reason = next((line for line in lines if "error" in line), lines[-1])
        return Kernel(None, f"the kernel cannot be compiled or loaded: {reason}")
    function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_int64] * 6
    function.restype = None
    return Kernel(function, version)


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


def _new_folder() -> Path:
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
    more_K, more_D = -head_width % _TILE, -width % _TILE
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


@torch.library.impl("budgetformer::head_attention", "CPU")
def head_attention(x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None, *weights: Tensor) -> Tensor:
    """The attention of the active pairs, ``(B, T, D)``, in float32; without gradients.

    Args:
        x_BTD: the input.
        gates_BA: the gates; None is 1 everywhere.
        mask_BT: True at real tokens, of which each input has one; None is no padding.
        weights: the parts of :class:`PackedWeights`.
    """
    function = load_kernel().function
    assert function is not None
    packed = PackedWeights(*weights)
    x_BTD = x_BTD.contiguous()
    gates_BA = None if gates_BA is None else gates_BA.float().contiguous()
    mask_BT = None if mask_BT is None else mask_BT.contiguous()
    y_BTD = torch.empty_like(x_BTD)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in (x_BTD, gates_BA, mask_BT, *packed, y_BTD)]
    num_heads, _, head_width, _ = packed.out_weight.shape
    function(*pointers, *x_BTD.shape, num_heads, head_width, torch.get_num_threads())
    return y_BTD
