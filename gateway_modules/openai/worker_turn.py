"""One chat request at a worker: a place in the queue, its socket, and the messages of the reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError
from websockets.exceptions import ConnectionClosed

from core import errors
from core.errors import (
    CloseCode,
    NoWorkerError,
    OmniError,
    WorkerLostError,
)
from core.schemas.chat import ChatChunk, ChatDone, ChatPrefillDone, ServerMessage
from core.schemas.queue import ErrorMessage, RequestType
from gateway_modules.queue.tokens import new_session_secret
from gateway_modules.relay.relay import STOP_TEXT
from gateway_modules.relay.worker_link import parts
from gateway_modules.service import Gateway
from gateway_modules.single_request import Assignment, replies
from gateway_modules.web.kinds import SocketKind, worker_query

CHAT: Final = RequestType.CHAT
MESSAGE: Final[TypeAdapter[ServerMessage]] = TypeAdapter(ServerMessage)
ERROR_OF_CODE: Final = MappingProxyType(
    {
        kind.code: kind
        for kind in reversed(vars(errors).values())
        if isinstance(kind, type) and issubclass(kind, OmniError)
    }
)

ReplyMessage = ChatPrefillDone | ChatChunk | ChatDone


async def reply(
    gateway: Gateway, body: str, client: str, is_over: Callable[[], bool]
) -> AsyncGenerator[ReplyMessage]:
    """Wait for a worker and yield what it replies, `ChatDone` last.

    Closing the generator, or cancelling the task that waits for it, leaves the queue or ends the
    reply.

    Args:
        gateway: Has the workers.
        body: JSON of a `ChatSocketRequest`.
        client: Whom the wait counts against.
        is_over: Asked after each message; once it is true, the worker ends the reply early.

    Raises:
        OmniError: The queue is full, no worker could be reached, or the worker failed.
    """
    work = partial(_served, gateway, body, is_over)
    async with aclosing(replies(gateway, client, work)) as messages:
        async for message in messages:
            yield message


async def _served(
    gateway: Gateway, body: str, is_over: Callable[[], bool], assignment: Assignment
) -> AsyncGenerator[ReplyMessage]:
    ticket = assignment.ticket
    async with gateway.pool.client.connected(
        ticket.worker,
        SocketKind.CHAT.path,
        worker_query(assignment.session_id, CHAT),
        session_secret=new_session_secret(),
        tries=gateway.timing.connect_tries,
    ) as socket:
        ticket.note_started()
        try:
            await socket.send(parts(body))
            has_told = False
            while True:
                message = MESSAGE.validate_json(await socket.recv(decode=False))
                if isinstance(message, ErrorMessage):
                    raise ERROR_OF_CODE[message.code](message.message)
                if isinstance(message, ReplyMessage):
                    yield message
                if isinstance(message, ChatDone):
                    return
                if is_over() and not has_told:
                    has_told = True
                    await socket.send(STOP_TEXT)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == CloseCode.TRY_LATER:
                raise NoWorkerError("The worker is busy. Please try again later.") from closed
            raise WorkerLostError() from closed
        except ValidationError as error:
            raise WorkerLostError("The worker answered with something else.") from error
