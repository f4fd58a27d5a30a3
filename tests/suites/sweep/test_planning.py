import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from budgetformer.adaptive import BudgetFormer
from budgetformer.encoder import EncoderSpec
from budgetformer.gates import AllHeads, Gates
from budgetformer.method import Method
from suites.definitions import registry
from suites.definitions.catalog import SUITES, find_suite
from suites.definitions.suite import Sizes
from suites.records.record import Record, Status, Timed, question_id
from suites.sweep.planning import Options, Rerun, circumstance_of, is_stale, make_plan, todo

SUITE = find_suite("smoke")
NOW: dict[str, Any] = {"versions": {"torch": "2"}, "kernel": "a compiler"}
(TRIAL,) = make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"]))


def test_a_plan_is_every_task_seed_and_method() -> None:
    plan = make_plan(SUITE, Options(seeds=(0, 3)))
    assert len(plan) == 2 * 2 * len(SUITE.methods)
    assert len({question_id(trial.question()) for trial in plan}) == len(plan)


def test_options_narrow_a_plan() -> None:
    plan = make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"], seeds=(7,)))
    assert [trial.title for trial in plan] == ["bbc-topics, random-k, seed 7"]


@dataclass(frozen=True, kw_only=True)
class Outside(Method):
    """Somebody else's."""

    name: ClassVar[str] = "outside"


def test_methods_of_plugins_run_beside_the_suites_own_unless_methods_are_named() -> None:
    def names(methods: Sequence[str] = ()) -> list[str]:
        plan = make_plan(SUITE, Options(methods=methods, plugins=[Outside], tasks=["bbc-topics"]))
        return [trial.method.name for trial in plan]

    assert names() == [*(method.name for method in SUITE.methods), "outside"]
    assert names(["full-mha"]) == ["full-mha"]


def test_repeated_seeds_and_methods_are_one() -> None:
    assert len(make_plan(SUITE, Options(methods=["full-mha", "full-mha"], seeds=(1, 1)))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(methods=["random"]), "unknown method 'random'; did you mean random-k"),
        (Options(tasks=["snli"]), "has no task 'snli'. It has: bbc-topics, tweet-sentiment"),
        (Options(seeds=(-1,)), "must not be negative, not -1"),
        (Options(execution="sliced"), "--execution sliced is not for random-k: layer 0 chooses heads per input"),
        (Options(execution="fast"), "unknown execution 'fast'. Known: auto"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(SUITE, options)


def test_the_source_is_in_the_question_of_methods_from_outside_alone() -> None:
    ours, theirs = make_plan(SUITE, Options(plugins=[Outside], tasks=["bbc-topics"]))[-2:]
    assert ours.question()["method"].keys() == {"name", "label", "place", "params"}
    source = theirs.question()["method"]["source"]
    assert source == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    edited = replace(theirs, source="0" * 16)
    assert question_id(edited.question()) != question_id(theirs.question())


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean smoke"):
        find_suite("smok")


@pytest.mark.parametrize("name", SUITES)
def test_suites_are_what_their_name_says(name: str) -> None:
    suite = find_suite(name)
    assert suite.name == name
    labels = [method.label for method in suite.methods]
    assert labels[0] == "full-mha"
    assert len(set(labels)) == len(labels)


def test_quick_has_the_size_it_promises() -> None:
    suite = find_suite("quick")
    assert (suite.sizes.num_layers, suite.sizes.num_heads, suite.sizes.width) == (2, 8, 128)
    assert [(task.name, task.max_length, task.train_limit) for task in suite.tasks] == [
        ("bbc-topics", 128, None),
        ("tweet-sentiment", 32, 10_000),
    ]
    assert len(suite.seeds) == 3
    assert {method.params.get("s", 0.25) for method in suite.methods} == {0.25}


def test_the_question_changes_with_all_that_changes_the_answer() -> None:
    (first,) = make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"]))
    others = [
        *make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"], seeds=(1,))),
        *make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"], execution="masked")),
        *make_plan(SUITE, Options(methods=["random-k"], tasks=["bbc-topics"], deterministic=True)),
        *make_plan(SUITE, Options(methods=["static-pruning"], tasks=["bbc-topics"])),
    ]
    ids = [question_id(trial.question()) for trial in (first, *others)]
    assert len(set(ids)) == len(ids)
    assert first.question()["task"]["fingerprint"]


@pytest.mark.parametrize(
    ("status", "changed", "runs_under"),
    [
        (None, {}, {"never", "failed", "stale", "always"}),
        ("failed", {}, {"failed", "stale", "always"}),
        ("done", {}, {"always"}),
        ("done", {"code_fingerprint": "then"}, {"stale", "always"}),
        ("done", {"versions": {"torch": "1"}}, {"stale", "always"}),
        ("done", {"kernel": "another compiler"}, {"stale", "always"}),
    ],
)
def test_what_is_run_again(status: Status | None, changed: dict[str, Any], runs_under: set[str]) -> None:
    known = {}
    if status:
        circumstance = circumstance_of(TRIAL, NOW) | changed
        known[TRIAL.id] = Record(question=TRIAL.question(), status=status, circumstance=circumstance)
        assert is_stale(known[TRIAL.id], circumstance_of(TRIAL, NOW)) is bool(changed)
    reruns: tuple[Rerun, ...] = ("never", "failed", "stale", "always")
    for rerun in reruns:
        assert todo(TRIAL, known, rerun, NOW) is (rerun in runs_under)


def test_what_was_measured_again_elsewhere_is_not_stale() -> None:
    now = circumstance_of(TRIAL, NOW)
    record = Record(question=TRIAL.question(), status="done", circumstance=now)
    again = replace(record, timed=Timed(circumstance=now | {"kernel": "another compiler", "versions": {"torch": "3"}}))
    assert [is_stale(each, now) for each in (record, again)] == [False, False]


def test_a_method_refuses_the_encoder_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Crowded(BudgetFormer):
        name: ClassVar[str] = "crowded"
        min_heads: int = 9

    monkeypatch.setitem(registry.METHODS, "crowded", Crowded)
    with pytest.raises(ValueError, match="min_heads 9 is more than the 8 heads"):
        make_plan(SUITE, Options(methods=["crowded"]))
    assert Sizes().num_heads == 8


def test_the_label_is_not_part_of_the_question() -> None:
    question = {"task": {"name": "t"}, "method": {"name": "m", "params": {"s": 1}, "label": "m"}, "seed": 0}
    renamed = question | {"method": {"name": "m", "params": {"s": 1}, "label": "m(s=1)"}}
    changed = question | {"method": {"name": "m", "params": {"s": 2}, "label": "m"}}
    assert question_id(question) == question_id(renamed) != question_id(changed)


class Faulty(nn.Module):
    """Gates that are not what they should be."""

    def __init__(self, gates_1H: list[float]) -> None:
        super().__init__()
        self.gates_1H = torch.tensor([gates_1H])

    def forward(self, *_: object) -> Gates:
        return Gates(self.gates_1H)


class FaultyLater(Faulty):
    """The mistake shows at inference alone."""

    def forward(self, *_: object) -> Gates:
        return Gates(torch.ones_like(self.gates_1H) if self.training else self.gates_1H)


@dataclass(frozen=True, kw_only=True)
class Mistaken(Method):
    """A method of a user, with a mistake in it."""

    name: ClassVar[str] = "mistaken"
    fault: Any = "raises"

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        if self.fault == "exits":
            raise SystemExit(0)
        if isinstance(self.fault, list):
            return nn.ModuleList(Faulty(self.fault) for _ in range(spec.num_layers))
        if self.fault == "later":
            return nn.ModuleList(FaultyLater([-1.0] * spec.num_heads) for _ in range(spec.num_layers))
        if self.fault == "one layer":
            return nn.ModuleList([AllHeads()])
        raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "KeyError: 'no such thing'"),
        ("exits", "SystemExit: 0"),
        ("later", "a gate is negative or not a finite number"),
        ("one layer", "1 gate modules for 2 layers"),
        ([1.0], r"gates must be of shape \(batch, heads\) = \(1, 8\), not \(1, 1\)"),
        ([-1.0] * 8, "a gate is negative or not a finite number"),
        ([1e300] * 8, "a gate is negative or not a finite number"),
        (float("nan"), "not JSON compliant"),
        (object(), "is not JSON serializable"),
    ],
)
def test_a_faulty_method_is_refused_by_name_before_anything_runs(fault: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^method mistaken.* cannot be run: .*{message}"):
        make_plan(replace(find_suite("smoke"), methods=(Mistaken(fault=fault),)), Options())
