import copy
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from budgetformer.attention import HeadGatedAttention
from budgetformer.kernel import PackedWeights, _new_folder, load_kernel, pack

B, T, D, H, K = 6, 21, 20, 4, 5
needs_kernel = pytest.mark.skipif(load_kernel().function is None, reason=load_kernel().description)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_layer(width: int = D, num_heads: int = H, head_width: int | None = None) -> HeadGatedAttention:
    layer = HeadGatedAttention(width, num_heads, head_width=head_width).requires_grad_(False).eval()
    vector_to_parameters(draw(parameters_to_vector(layer.parameters()).numel()) / width**0.5, layer.parameters())
    return layer


X = draw(B, T, D, seed=1)
GATES = draw(B, H, seed=2).relu()
MASK = torch.arange(T) < torch.tensor([21, 1, 7, 16, 0, 20])[:, None]


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_kernel
@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize(("batch", "tokens"), [(1, 16), (1, 200), (3, 33), (40, 65)])
def test_the_number_of_threads_changes_no_bit(batch: int, tokens: int) -> None:
    layer = make_layer(64, 8)
    x_BTD, gates_BH = draw(batch, tokens, 64), draw(batch, 8).relu()
    mask_BT = draw(batch, tokens, seed=1) > -1
    outputs = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        outputs.append(layer(x_BTD, gates_BH, mask_BT, "compiled"))
    assert all(torch.equal(out_BTD, outputs[0]) for out_BTD in outputs)


@needs_kernel
def test_company_changes_no_bit() -> None:
    layer = make_layer()
    out_BTD = layer(X, GATES, MASK, "compiled")
    alone = [layer(X[i : i + 1], GATES[i : i + 1], MASK[i : i + 1], "compiled") for i in range(B)]
    assert torch.equal(out_BTD, torch.cat(alone))
    assert torch.equal(out_BTD.flip(0), layer(X.flip(0), GATES.flip(0), MASK.flip(0), "compiled"))


@needs_kernel
@pytest.mark.parametrize("i", [0, 1, 2, 3, 5])
def test_padding_changes_no_bit(i: int) -> None:
    layer, length = make_layer(), int(MASK[i].sum())
    expected = layer(X[i : i + 1, :length], GATES[i : i + 1], None, "compiled")
    assert torch.equal(layer(X, GATES, MASK, "compiled")[i, :length], expected[0])


@needs_kernel
@pytest.mark.usefixtures("restored_threads")
def test_calls_from_several_threads_at_once_do_not_disturb_each_other() -> None:
    torch.set_num_threads(2)
    layer = make_layer()
    expected = layer(X, GATES, MASK, "compiled")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: layer(X, GATES, MASK, "compiled"), range(40)))
    assert all(torch.equal(out_BTD, expected) for out_BTD in found)


def make_softmax(size: int) -> HeadGatedAttention:
    """For the identity as its input this gives softmax(S) where S^T are its query weights."""
    layer = HeadGatedAttention(size, 1).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.zero_()
    layer.qkv.weight.copy_(torch.eye(size).repeat(3, 1))
    layer.out.weight.copy_(torch.eye(size))
    return layer


@needs_kernel
@pytest.mark.parametrize(("scale", "lowest"), [(0.125, -64), (0.015625, -8)])
def test_attention_weights_are_those_of_softmax_to_a_millionth_of_each(scale: float, lowest: float) -> None:
    layer = make_softmax(64)
    scores_TT = lowest + scale * torch.randint(0, 513, (64, 64), generator=torch.Generator().manual_seed(0))
    layer.qkv.weight[:64] = 8 * scores_TT.t()  # 8 = sqrt(K): no score is rounded on its way
    found = layer(torch.eye(64)[None], None, None, "compiled")[0]
    torch.testing.assert_close(found.double(), scores_TT.double().softmax(dim=1), rtol=1e-6, atol=0)


@needs_kernel
def test_the_weight_of_a_score_that_is_far_lower_is_next_to_nothing() -> None:
    layer = make_softmax(64)
    layer.qkv.weight[:64] = -800 * torch.arange(64)[:, None]
    found = layer(torch.eye(64)[None], None, None, "compiled")[0]
    assert (found[:, 0] == 1).all()
    assert ((found[:, 1:] >= 0) & (found[:, 1:] < 2e-38)).all()


@needs_kernel
@pytest.mark.parametrize("rows", [slice(0, 5), slice(5, 10), slice(10, 15)], ids=["query", "key", "value"])
def test_weights_that_are_not_finite_show(rows: slice) -> None:
    layer = make_layer()
    layer.qkv.weight[rows] = torch.nan
    assert layer(X, GATES * 0 + 1, MASK, "compiled").isnan().all()


@needs_kernel
@pytest.mark.parametrize("execution", ["compiled", "masked"])
def test_scores_that_overflow_show(execution: str) -> None:
    layer = make_softmax(4)
    layer.qkv.weight[:8] *= 1e25
    assert layer(torch.ones(1, 3, 4), None, None, execution).isnan().all()


@pytest.mark.parametrize(("width", "num_heads", "head_width"), [(16, 2, 16), (5, 3, 1), (33, 2, 17), (20, 4, 5)])
def test_packed_weights_lie_in_panels_of_sixteen_columns(width: int, num_heads: int, head_width: int) -> None:
    layer = make_layer(width, num_heads, head_width)
    packed = pack(layer.qkv, layer.out, head_width)
    more_K, more_D = -head_width % 16, -width % 16
    columns = 3 * (head_width + more_K)
    assert packed.qkv_weight.shape == (num_heads, columns // 16, width, 16)
    assert packed.out_weight.shape == (num_heads, (width + more_D) // 16, head_width, 16)
    assert all(part.is_contiguous() for part in packed)
    qkv = packed.qkv_weight.transpose(2, 3).reshape(num_heads, 3, -1, width)
    bias = packed.qkv_bias.view(num_heads, 3, -1)
    out = packed.out_weight.transpose(1, 2).reshape(num_heads, head_width, -1)
    assert torch.equal(qkv[:, :, :head_width].flatten(0, 2), layer.qkv.weight)
    assert torch.equal(bias[:, :, :head_width].flatten(), layer.qkv.bias)
    assert torch.equal(out[:, :, :width].flatten(0, 1).t(), layer.out.weight)
    assert torch.equal(packed.out_bias[:width], layer.out.bias)
    padding = (qkv[:, :, head_width:], bias[:, :, head_width:], out[:, :, width:], packed.out_bias[width:])
    assert not any(part.any() for part in padding)


def is_up_to_date(layer: HeadGatedAttention) -> bool:
    packed = layer.packed_weights()
    return all(map(torch.equal, packed, pack(layer.qkv, layer.out, layer.head_width)))


def step(layer: HeadGatedAttention) -> None:
    layer.requires_grad_(True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(X).square().sum().backward()
    optimizer.step()
    layer.requires_grad_(False)


def replace(layer: HeadGatedAttention) -> None:
    layer.out.weight = nn.Parameter(draw(D, H * K, seed=3), requires_grad=False)


def rewrite(layer: HeadGatedAttention) -> None:
    numbers = draw(parameters_to_vector(layer.parameters()).numel(), seed=3)
    vector_to_parameters(numbers / D**0.5, layer.parameters())


def transpose(layer: HeadGatedAttention) -> None:
    layer.out.weight.data = layer.out.weight.data.t()  # the same memory, read otherwise


def fill_bias(layer: HeadGatedAttention) -> None:
    layer.out.bias.fill_(7)


def replace_by_alias(layer: HeadGatedAttention) -> None:
    version = layer.out.bias._version
    assert version > 0
    layer.out.bias = nn.Parameter(layer.out.bias.data, requires_grad=False)  # the same memory, and a count of its own
    while layer.out.bias._version < version:
        fill_bias(layer)


def run_as_another(layer: HeadGatedAttention) -> None:
    other = {name: value * 2 for name, value in layer.named_parameters()}
    found = torch.func.functional_call(layer, other, (X, GATES, MASK, "auto"))
    torch.testing.assert_close(found, torch.func.functional_call(layer, other, (X, GATES, MASK, "masked")))


def moved(layer: HeadGatedAttention) -> dict[str, Tensor]:
    """Its state with other weights."""
    return {name: value + 1 if value.is_floating_point() else value for name, value in layer.state_dict().items()}


CHANGES: dict[str, Callable[[HeadGatedAttention], object]] = {
    "nothing": lambda layer: None,
    "optimizer step": step,
    "in place": fill_bias,
    "load_state_dict": lambda layer: layer.load_state_dict(moved(layer)),
    "assigned state": lambda layer: layer.load_state_dict(moved(layer), assign=True),
    "double and float": lambda layer: layer.double().float(),
    "bfloat16 and float": lambda layer: layer.bfloat16().float(),
    "keep": lambda layer: layer.keep([1, 3], torch.tensor([0, 2.0, 0, 0.5])),
    "new parameter": replace,
    "new parameter in the same memory": replace_by_alias,
    "new data": rewrite,
    "transposed data": transpose,
    "another's weights for one call": run_as_another,
    "share_memory": lambda layer: layer.share_memory(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_packed_weights_follow_the_weights(change: Callable[[HeadGatedAttention], object]) -> None:
    layer = make_layer()
    assert is_up_to_date(layer)
    change(layer)
    assert is_up_to_date(layer)
    torch.testing.assert_close(layer(X, GATES, MASK), layer(X, GATES, MASK, "masked"))


@pytest.mark.parametrize("change", [replace, rewrite])
def test_weights_that_come_to_lie_where_others_lay_do_not_pass_for_them(
    change: Callable[[HeadGatedAttention], object],
) -> None:
    layer = make_layer()
    for _ in range(20):
        fill_bias(layer)
        assert is_up_to_date(layer)
        change(layer)
        change(layer)  # frees what was packed, and may well be given its memory
        assert is_up_to_date(layer)


def test_packed_weights_are_made_once_while_nothing_changes() -> None:
    layer = make_layer()
    packed = layer.packed_weights()
    layer(X, GATES, MASK)
    with torch.inference_mode():
        layer(X)
    layer.train().eval()
    layer.requires_grad_(True).requires_grad_(False)
    assert layer.packed_weights() is packed
    fill_bias(layer)
    assert layer.packed_weights() is not packed
    assert layer.packed_weights() is layer.packed_weights()


def test_packed_weights_of_a_layer_that_learns_are_made_anew() -> None:
    layer = make_layer().requires_grad_(True)
    with torch.no_grad():
        assert layer.packed_weights() is not layer.packed_weights()
        layer.qkv.weight.data.mul_(2)  # the way of some optimizers: autograd does not see it
        assert is_up_to_date(layer)


def saved_and_loaded(layer: HeadGatedAttention) -> HeadGatedAttention:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, HeadGatedAttention)
    return loaded


@pytest.mark.parametrize("make_copy", [copy.deepcopy, saved_and_loaded])
def test_a_copy_has_its_own_packed_weights(make_copy: Callable[[HeadGatedAttention], HeadGatedAttention]) -> None:
    layer = make_layer()
    expected = layer(X, GATES, MASK)
    copied = make_copy(layer)
    assert torch.equal(copied(X, GATES, MASK), expected)
    fill_bias(copied)
    assert is_up_to_date(copied)
    assert is_up_to_date(layer)
    assert torch.equal(layer(X, GATES, MASK), expected)


def test_packed_weights_are_no_part_of_what_is_saved() -> None:
    fresh, used = io.BytesIO(), io.BytesIO()
    layer = make_layer()
    torch.save(layer, fresh)
    layer(X)
    torch.save(layer, used)
    assert len(used.getvalue()) == len(fresh.getvalue())
    assert set(layer.state_dict()) == {"qkv.weight", "qkv.bias", "out.weight", "out.bias", "head_numbers"}


@needs_kernel
def test_the_operator_has_the_shape_of_its_input() -> None:
    layer = make_layer()
    packed = PackedWeights(*layer.packed_weights())
    out_BTD = torch.ops.budgetformer.head_attention(X.transpose(0, 1).contiguous().transpose(0, 1), None, None, *packed)
    assert out_BTD.shape == X.shape
    assert out_BTD.is_contiguous()
    torch.testing.assert_close(out_BTD, layer(X, execution="masked"))


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a new process of a user who has never run the kernel; gives the folder of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    load_kernel.cache_clear()
    _new_folder.cache_clear()
    yield tmp_path / "cache" / "budgetformer"
    load_kernel.cache_clear()
    _new_folder.cache_clear()


def make_compiler(folder: Path, script: str) -> str:
    """A program that stands in for a compiler, as ``CXX``; ``$out`` is what it is asked to write."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\nfor out; do :; done\n{script}\n")
    path.chmod(0o755)
    return str(path)


def assert_plain_pytorch_runs(reason: str) -> None:
    layer = make_layer()
    assert load_kernel().function is None
    assert load_kernel().description == reason
    torch.testing.assert_close(layer(X, GATES, MASK), layer(X, GATES, MASK, "masked"))
    with pytest.raises(ValueError, match=r"needs float32 on a CPU.*and a C\+\+ compiler") as error:
        layer(X, GATES, MASK, "compiled")
    assert f"(here: {reason})" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_a_compiler_auto_runs_and_compiled_says_why_not(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nothing_loaded))
    assert_plain_pytorch_runs("no C++ compiler")


FAILURES = {
    "exit 1": "Command '('{compiler}', '--version')' returned non-zero exit status 1.",
    "echo ' ' >&2; exit 1": "Command '('{compiler}', '--version')' returned non-zero exit status 1.",
    "echo no licence >&2; exit 3": "no licence",
    "[ $1 = --version ] && echo 1.0 && exit\necho 'k.cpp:1: error: bad' >&2; echo '  |  ^' >&2; exit 1": (
        "k.cpp:1: error: bad"
    ),
    "[ $1 = --version ] && echo 1.0 && exit\nprintf 'caf\\351\\n' >&2; exit 1": "caf\ufffd",
}


@pytest.mark.parametrize(("script", "reason"), FAILURES.items(), ids=range(len(FAILURES)))
def test_of_a_compiler_that_fails_one_line_is_told(
    script: str, reason: str, nothing_loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make_compiler(tmp_path, script)
    monkeypatch.setenv("CXX", compiler)
    assert_plain_pytorch_runs(f"the kernel cannot be compiled or loaded: {reason.format(compiler=compiler)}")
    assert not list(nothing_loaded.glob("*"))


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "/", "'unbalanced"])
def test_a_compiler_that_is_none_is_named(compiler: str, nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    description = load_kernel().description
    assert description.startswith("the kernel cannot be compiled or loaded: ")
    assert (compiler in description) or "quotation" in description
    assert_plain_pytorch_runs(description)


@pytest.mark.parametrize("script", [":", "[ $1 = --version ] || : > $out", "[ $1 = --version ] || echo junk > $out"])
def test_a_compiler_that_makes_no_library_does_no_harm(
    script: str, nothing_loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", make_compiler(tmp_path, script))
    assert str(nothing_loaded) in load_kernel().description
    assert_plain_pytorch_runs(load_kernel().description)


def assert_kernel_runs() -> None:
    assert load_kernel().function is not None, load_kernel().description
    layer = make_layer()
    torch.testing.assert_close(layer(X, GATES, MASK, "compiled"), layer(X, GATES, MASK, "masked"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compiler of this machine makes."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        load_kernel.cache_clear()
        assert_kernel_runs()
        load_kernel.cache_clear()
    (built,) = folder.glob("budgetformer/*")
    return built


@pytest.fixture
def quick_compiler(library: Path, tmp_path: Path, nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A compiler that knows what comes of it."""
    compiler = make_compiler(tmp_path, f"[ $out = --version ] && echo 1.0 || cp '{library}' $out")
    monkeypatch.setenv("CXX", compiler)
    return compiler


@needs_kernel
@pytest.mark.usefixtures("quick_compiler")
def test_the_kernel_is_compiled_once_and_its_library_kept_alone(nothing_loaded: Path) -> None:
    assert_kernel_runs()
    assert load_kernel().description == "1.0"
    (built,) = nothing_loaded.iterdir()
    assert built.name.startswith("head_attention-")
    before = built.stat()
    load_kernel.cache_clear()
    assert_kernel_runs()
    assert built.stat() == before


@needs_kernel
@pytest.mark.parametrize("other", ["-DOTHER", "an 'other flag'"])
def test_a_compiler_may_come_with_flags_and_each_set_of_them_has_its_library(
    other: str, quick_compiler: str, nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_kernel_runs()
    monkeypatch.setenv("CXX", f"{quick_compiler} {other}")
    load_kernel.cache_clear()
    assert_kernel_runs()
    assert len(list(nothing_loaded.iterdir())) == 2


@needs_kernel
@pytest.mark.usefixtures("quick_compiler")
def test_a_library_that_has_gone_bad_is_no_kernel_and_no_crash(
    nothing_loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_kernel_runs()
    (built,) = nothing_loaded.iterdir()
    bad = tmp_path / "other" / "budgetformer" / built.name
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"junk")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    load_kernel.cache_clear()
    assert str(bad) in load_kernel().description  # so that it can be found and deleted
    assert_plain_pytorch_runs(load_kernel().description)


@needs_kernel
@pytest.mark.usefixtures("quick_compiler")
def test_a_cache_that_cannot_be_made_is_done_without(nothing_loaded: Path, tmp_path: Path) -> None:
    nothing_loaded.parent.write_text("a file where the folder should be")
    assert_kernel_runs()
    assert len(list(tmp_path.glob("budgetformer-*/head_attention-*.so"))) == 1


@needs_kernel
@pytest.mark.usefixtures("quick_compiler")
def test_a_cache_that_cannot_be_written_is_read(
    nothing_loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_loaded.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != nothing_loaded)
    assert_kernel_runs()
    (built,) = tmp_path.glob("budgetformer-*/head_attention-*.so")
    built.rename(nothing_loaded / built.name)
    load_kernel.cache_clear()
    assert_kernel_runs()
    assert not list(tmp_path.glob("budgetformer-*/*"))


@needs_kernel
@pytest.mark.usefixtures("quick_compiler")
def test_a_user_without_a_home_has_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert_kernel_runs()
    assert len(list(tmp_path.glob("budgetformer-*/head_attention-*.so"))) == 1


PROGRAM = """
import sys, torch
from budgetformer.attention import HeadGatedAttention
from budgetformer.kernel import load_kernel
layer = HeadGatedAttention(8, 2).requires_grad_(False)
print("ready", flush=True)
sys.stdin.readline()
x = torch.randn(2, 3, 8)
torch.testing.assert_close(layer(x, execution="compiled"), layer(x, execution="masked"))
"""


@pytest.mark.integration
@needs_kernel
def test_processes_that_compile_at_once_do_each_other_no_harm(nothing_loaded: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    (library,) = nothing_loaded.iterdir()
    assert library.suffix == ".so"
