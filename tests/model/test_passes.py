"""Many capabilities at once: shared passes, failures that hit only their own task, cancelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from core.engine import WorkCancelledError
from core.engine.passes import Task, TaskState, run_alone, run_pass
from core.engine.scheduler import MAX_PER_PASS
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import (
    Answers,
    ChooseToken,
    Collect,
    DrawCodes,
    Emit,
    EncodeImages,
    LlmForward,
    Request,
    Steps,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.settings import LoadOptions
from tests.fakes.batching import at_once
from tests.model.decoder_requests import greedy_decisions
from tests.model.toy import Toy


@pytest.fixture(scope="module")
def executor(checkpoint: Path) -> Executor:
    options = LoadOptions(torch.device("cpu"), torch.float32, show_progress=False)
    return UnifiedModel.from_checkpoint(checkpoint, options).executor


class Watched:
    """An executor that writes down how many requests came together, and can be made to fail."""

    def __init__(self, executor: Executor) -> None:
        self.company: list[int] = []
        self.refuses_company = False
        self.fails_after_answering = False
        self._executor = executor

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        self.company.append(len(requests))
        if self.refuses_company and len(requests) > 1:
            raise RuntimeError("too many")
        answers = self._executor.submit(requests)()
        if self.fails_after_answering and len(requests) > 1:
            raise RuntimeError("too late")
        return answers


def count_up(executor: Executor, first: int, length: int) -> Steps[list[float]]:
    session = executor.open_session(f"s{first}", seed=1)
    found = []
    for token in range(first, first + length):
        output = yield LlmForward(session.kv, Rows((token,)))
        found.append(float(output.logits.max()))
        yield Emit(token)
    session.close()
    return found


def drive(executor: Answers, tasks: Sequence[Task[Any]]) -> Iterator[list[Any]]:
    """Run passes until every task has ended, yielding what was emitted in each."""
    while not all(task.has_ended for task in tasks):
        going = [task for task in tasks if not task.has_ended]
        run_pass(executor, going)
        yield [task.take() for task in going if task.state is TaskState.EMITTED]


def test_tasks_share_passes_and_get_what_they_get_alone(executor: Executor) -> None:
    watched = Watched(executor)
    lengths = (2, 5, 3)
    alone = [run_alone(count_up(executor, 10 * n, n), executor) for n in lengths]
    tasks = [Task(count_up(executor, 10 * n, n)) for n in lengths]
    emitted = [each for values in drive(watched, tasks) for each in values]
    assert sorted(emitted) == sorted(10 * n + i for n in lengths for i in range(n))
    assert max(watched.company) == 3 and sum(watched.company) == sum(lengths)
    for task, expected in zip(tasks, alone, strict=True):
        assert task.state is TaskState.RETURNED
        assert task.take() == pytest.approx(expected, abs=1e-5)


def test_a_pass_that_fails_before_it_changed_anything_is_repeated_one_by_one(
    executor: Executor,
) -> None:
    watched = Watched(executor)
    watched.refuses_company = True
    tasks = [Task(count_up(executor, 10 * n, 2)) for n in (1, 2)]
    for _ in drive(watched, tasks):
        pass
    assert all(task.state is TaskState.RETURNED for task in tasks)
    assert watched.company == [2, 1, 1, 2, 1, 1]


def test_a_pass_that_fails_afterwards_is_not_repeated(executor: Executor) -> None:
    """Otherwise a cache would hold the same tokens twice."""
    watched = Watched(executor)
    watched.fails_after_answering = True
    tasks = [Task(count_up(executor, 10 * n, 2)) for n in (1, 2)]
    run_pass(watched, tasks)
    run_pass(watched, tasks)
    assert all(task.state is TaskState.FAILED for task in tasks)
    assert watched.company == [2]


def ask(request: Request) -> Steps[Any]:
    answer = yield request
    return answer


def requests_of(kind: type, toy: Toy, executor: Executor) -> tuple[Request, Request]:
    """Return a request that is right and one of the same kind that is wrong."""
    if kind is EncodeStream:
        caches = [executor.open_session(str(n), seed=1).audio_input.cache for n in range(2)]
        right = EncodeStream(torch.zeros(80, 102), caches[0], True)
        return right, EncodeStream(torch.zeros(1, 1), caches[1], True)
    if kind is Vocode:
        streams = [toy.open_voice() for _ in range(2)]
        return Vocode(streams[0], (0,) * 28, False), Vocode(streams[1], (0,) * 3, False)
    decisions = greedy_decisions(toy, 2)
    logits = torch.zeros(toy.config.vocab_size)
    return ChooseToken(logits, decisions[0]), ChooseToken(torch.zeros(1), decisions[1])


@pytest.mark.parametrize("wrong_first", [True, False])
@pytest.mark.parametrize("kind", [EncodeStream, Vocode, ChooseToken])
def test_a_wrong_request_fails_its_own_session_alone(
    toy: Toy, kind: type, wrong_first: bool
) -> None:
    executor = toy.executor()
    alone = run_alone(ask(requests_of(kind, toy, executor)[0]), executor)
    right, wrong = (Task(ask(each)) for each in requests_of(kind, toy, executor))
    for _ in drive(executor, [wrong, right] if wrong_first else [right, wrong]):
        pass
    assert wrong.state is TaskState.FAILED and right.state is TaskState.RETURNED
    torch.testing.assert_close(right.take(), alone)


def test_an_end_that_fails_is_its_own_session_s_alone(executor: Executor) -> None:
    def defective() -> Steps[None]:
        session = executor.open_session("defective", seed=1)
        try:
            for _ in range(2):
                yield LlmForward(session.kv, Rows((1,)))
        finally:
            raise RuntimeError("the clean-up is wrong")

    def unmeasurable() -> Steps[None]:
        yield LlmForward(executor.open_session("u", seed=1).kv, cast(Any, (None,)))

    bystander = Task(count_up(executor, 10, 3))
    tasks: list[Task[Any]] = [Task(defective()), bystander]
    run_pass(executor, tasks)
    with pytest.raises(RuntimeError):
        tasks[0].close()
    tasks.append(Task(unmeasurable()))
    for _ in drive(executor, tasks):
        pass
    assert bystander.state is TaskState.RETURNED
    assert (tasks[0].state, tasks[2].state) == (TaskState.CANCELLED, TaskState.FAILED)


def test_only_the_one_whose_request_is_wrong_fails(executor: Executor) -> None:
    def overflow() -> Steps[None]:
        session = executor.open_session("full", seed=1)
        limit = executor.llm_store.shape.max_position_embeddings
        yield LlmForward(session.kv, Rows((1,) * (limit + 1)))

    tasks: list[Task[Any]] = [Task(overflow()), Task(count_up(executor, 10, 3))]
    for _ in drive(executor, tasks):
        pass
    assert tasks[0].state is TaskState.FAILED and tasks[1].state is TaskState.RETURNED


def test_a_cancelled_task_is_closed_between_two_passes(executor: Executor) -> None:
    closed = []

    def endless() -> Steps[None]:
        session = executor.open_session("e", seed=1)
        try:
            while True:
                yield LlmForward(session.kv, Rows((1,)))
        finally:
            closed.append(session.kv.length)

    task = Task(endless())
    for _ in range(3):
        run_pass(executor, [task])
    task.close()
    assert task.state is TaskState.CANCELLED and task.has_ended and closed == [3]
    with pytest.raises(WorkCancelledError):
        task.take()
    run_pass(executor, [task])
    task.close()
    assert task.state is TaskState.CANCELLED and closed == [3], "it has ended"


def feed(executor: Executor, ids: Sequence[int]) -> Steps[tuple[Tensor, Tensor]]:
    """Feed tokens at once; return their hidden states and the logits behind them."""
    session = executor.open_session("long", seed=1)
    output = yield LlmForward(session.kv, Rows(tuple(ids)))
    session.close()
    return output.hidden, output.logits


def test_a_long_input_among_others_is_fed_in_chunks_and_gives_the_same(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_PER_PASS, LlmForward, 5)
    ids = range(10, 27)
    hidden, logits = run_alone(feed(executor, ids), executor)
    long = Task(feed(executor, ids))
    short = [Task(count_up(executor, first, 4)) for first in (30, 40)]
    watched = Watched(executor)
    emitted = list(drive(watched, [long, *short]))
    assert long.state is TaskState.RETURNED
    torch.testing.assert_close(long.take(), (hidden, logits))
    assert watched.company[:2] == [2, 1], "a chunk follows the single tokens"
    assert emitted[:2] == [[30, 40], [31, 41]], "the short ones continue meanwhile"


def test_a_lone_long_input_is_fed_at_once(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_PER_PASS, LlmForward, 5)
    watched = Watched(executor)
    list(drive(watched, [Task(feed(executor, range(10, 27)))]))
    assert watched.company == [1]


def test_a_chunk_that_fails_ends_the_request(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_PER_PASS, LlmForward, 5)
    watched = Watched(executor)
    watched.fails_after_answering = True
    long, short = Task(feed(executor, range(10, 27))), Task(feed(executor, [3, 4]))
    list(drive(watched, [long, short]))
    assert long.state is TaskState.FAILED and short.state is TaskState.FAILED


def test_a_request_delayed_for_a_larger_batch_can_be_cancelled(executor: Executor) -> None:
    task = Task(feed(executor, [3]))
    assert task.advance(1.0) is not None and task.since_s == 1.0
    assert task.advance(2.0) is task.request and task.since_s == 1.0, "it still waits"
    task.close()
    assert task.advance(3.0) is None and task.state is TaskState.CANCELLED


def test_requests_that_follow_each_other_share_a_pass(executor: Executor) -> None:
    """A chosen token is fed at once; the device never idles because of what is delayed."""
    seen: list[list[str]] = []

    class Kinds:
        @at_once
        def submit(self, requests: Sequence[Request]) -> list[Any]:
            seen[-1].append(type(requests[0]).__name__)
            return [0] * len(requests)

    def steps(*requests: type) -> Steps[None]:
        for kind in requests:
            request: Any = object.__new__(kind)
            yield request

    unit = (EncodeStream, ChooseToken, DrawCodes, Vocode)
    tasks = [Task(steps(*unit)) for _ in range(2)]
    while not all(task.has_ended for task in tasks):
        seen.append([])
        run_pass(cast(Any, Kinds()), tasks)
    assert seen == [["EncodeStream"], ["ChooseToken", "DrawCodes", "Vocode"]]


def test_the_host_prepares_pictures_while_the_device_computes_tokens(executor: Executor) -> None:
    """Tokens are read back only once the next work is enqueued, and before what follows them."""
    seen: list[str] = []

    class Overlapping:
        def submit(self, requests: Sequence[Request]) -> Collect:
            kind = type(requests[0]).__name__
            seen.append(f"submit {kind}")

            def collect() -> list[Any]:
                seen.append(f"collect {kind}")
                return executor.submit(requests)() if kind == "LlmForward" else [[]]

            return collect

    kv = executor.llm_store.open()
    single = Task(ask(LlmForward(kv, Rows((3,)), wants_logits=False)))
    picture = Task(ask(EncodeImages((cast(Any, None),))))
    run_pass(Overlapping(), [single, picture])
    assert seen == [
        "submit LlmForward",
        "submit EncodeImages",
        "collect EncodeImages",
        "collect LlmForward",
    ]
    assert single.state is TaskState.RETURNED and picture.state is TaskState.RETURNED


def test_requests_whose_answers_fail_on_the_device_fail_alone() -> None:
    """Reading an answer fails after its conversations have grown, so nothing is repeated."""
    failing = RuntimeError("the device has failed")

    class Broken:
        submitted = 0

        def submit(self, requests: Sequence[Request]) -> Collect:
            self.submitted += 1
            for request in requests:
                cast(Any, request).kv.length += 1

            def collect() -> list[Any]:
                raise failing

            return collect

    broken = Broken()
    caches: list[Any] = [SimpleNamespace(length=0) for _ in range(2)]
    tasks = [Task(ask(LlmForward(kv, Rows((3,))))) for kv in caches]
    run_pass(broken, tasks)
    assert [task.state for task in tasks] == [TaskState.FAILED] * 2
    assert broken.submitted == 1
