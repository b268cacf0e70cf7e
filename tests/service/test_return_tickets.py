"""Who waits while the gateway is killed comes back to the same place, over every kind of socket."""

from __future__ import annotations

import json
from urllib.parse import quote

from gateway_modules.queue.worker_pool import TICKET_FILE
from tests.fakes.gateway_stage import HURRY, Stage, on_stage, until
from tests.service.callers import GRACE_S, Caller, Raw, prepare

LONG_S = 60.0  # the tests end it themselves
PATHS = ("/ws/duplex/adx_one", "/v1/realtime", "/ws/streaming/s_two", "/v1/live/sessions")
resumable = on_stage(
    limits={"resume_grace_s": GRACE_S},
    service={"gathering_s": LONG_S},
    openai={"max_wait_s": 3_600},
)
PREFILL = {"messages": [{"role": "user", "content": "Hi"}]}


async def wait_in_line(caller: Caller) -> str:
    """Come in and wait; return the ticket."""
    if "streaming" in caller.path:
        await caller.dial("")
        await caller.say("prefill", **PREFILL)
    else:
        await caller.open()
    return await ticket_of(caller)


async def ticket_of(caller: Caller) -> str:
    while True:
        message = await caller.hear("queued", "queue_update", "session_resumable")
        if ticket := message.get("return_ticket"):
            return str(ticket)


async def come_back(caller: Caller, ticket: str) -> Raw:
    """Take the place again; return what tells so."""
    query = f"ticket={quote(ticket)}&session_id={caller.session_id}"
    if caller.token:
        query += f"&resume_token={caller.token}&last_seq=0"
    await caller.dial(query)
    if "streaming" in caller.path:
        await caller.say("prefill", **PREFILL)
    await ticket_of(caller)
    return caller.heard[-1]


def killed(stage: Stage) -> None:
    """End the gateway without a word to anybody."""
    state = stage._servers[-1][0].server_state
    for connection in list(state.connections):
        connection.transport.abort()  # type: ignore[union-attr]
    for task in list(state.tasks):
        task.cancel()


def in_line(stage: Stage) -> list[str | None]:
    return [item.session_id for item in stage.gateway.pool.get_queue_status().items]


@resumable
async def test_positions_are_retained_for_every_protocol(stage: Stage) -> None:
    first = Caller(stage, "/ws/duplex/adx_first")
    await first.dial("")
    await prepare(first)
    callers = [Caller(stage, path) for path in PATHS]
    tickets = [await wait_in_line(caller) for caller in callers]
    waiting = in_line(stage)
    assert len(waiting) == len(PATHS)
    after = Stage(stage.settings, 1, HURRY)
    await after.start()
    try:
        killed(stage)
        stranger = Caller(after, "/ws/duplex/adx_new")
        await stranger.dial("resumable=1")
        await stranger.hear("queued")
        for caller, ticket in reversed(list(zip(callers, tickets, strict=True))):
            caller.stage = after
            await come_back(caller, ticket)
        assert in_line(after) == [*waiting, "adx_new"]
        assert not after.worker.sockets, "nobody is assigned while it gathers"
        after.gateway.pool._end_hold()
        await until(lambda: after.worker.sockets)
        assert list(after.worker.sockets) == [waiting[0]]
        for caller in (*callers, stranger):
            assert caller.socket is not None
            await caller.socket.close()
        await after.check_quiet()
    finally:
        await after.stop()


@resumable
async def test_a_chat_socket_is_promised_no_place(stage: Stage) -> None:
    """Each has a new session id, and a ticket is valid for one session only."""
    async with stage.client("/ws/duplex/adx_first") as first, stage.client("/ws/chat") as chat:
        await first.expect("queue_done")
        await chat.connection.send(json.dumps(PREFILL))
        assert (await chat.expect("queued"))["return_ticket"] == ""


@resumable
async def test_the_next_gateway_awaits_returns_unless_nobody_was_waiting(
    stage: Stage,
) -> None:
    file = stage.settings.service.data_dir / TICKET_FILE
    assert not stage.gateway.pool.tickets.awaits_returns, "there was no gateway before"
    key = file.read_text()

    async def restart(*, has_waiting: bool) -> bool:
        another = Stage(stage.settings, 1, HURRY)
        await another.start()
        awaits_returns = another.gateway.pool.tickets.awaits_returns
        another.gateway.pool._end_hold()
        callers = [Caller(another, f"/ws/duplex/adx_{number}") for number in range(2)]
        for caller in callers if has_waiting else ():
            await caller.dial("")
            await caller.hear("queue_done", "queued")
        await another.stop()
        return awaits_returns

    assert await restart(has_waiting=False), "the gateway before has not ended"
    assert not file.exists()
    assert not await restart(has_waiting=True)
    assert file.read_text() not in ("", key)
    assert await restart(has_waiting=False), "somebody was sent away"
    assert not file.exists()
