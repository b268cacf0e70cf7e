"""What keeps a cluster as it should be, over an engine that only writes down what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from config import Settings
from launcher.conductor import NO_MACHINE, Conductor, Engine
from launcher.posts import Cluster
from launcher.run_folder import Phase
from launcher.scaling import DOWN_AFTER_S, FRONT, SETTLE_S, Bounds, PostStatus

CLUSTER = Cluster(Settings(), "{}", {}, "", None, "v")


@dataclass
class FakeEngine(Engine):
    """Machines with room for so many seats.

    Attributes:
        room: seats beyond it wait for a machine.
        posts: what each says; a seat is ready at once.
        silent: these do not answer.
        listed: what the front was told last.
        kill_failures: So many kills fail, as while the head restarts.
    """

    room: int = 9
    posts: dict[str, PostStatus] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    listed: Sequence[str] | None = None
    waiting: int = 0
    requested: list[int] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    is_front_away: bool = False
    is_front_moving: bool = False
    kill_failures: int = 0

    def names(self) -> list[str]:
        return list(self.posts)

    def create(self, name: str, cluster: Cluster) -> None:
        assert cluster is CLUSTER and name not in self.posts
        address = f"10.0.0.{len(self.posts)}:22400"
        self.posts[name] = PostStatus(name, Phase.READY, f"node {name}", address, slots=4)
        if len(self.posts) - 1 > self.room:
            self.silent.add(name)

    def kill(self, name: str) -> None:
        if self.kill_failures:
            self.kill_failures -= 1
            raise ConnectionError("the head does not answer")
        self.posts.pop(name, None)

    def draining_nodes(self) -> set[str]:
        return self.draining

    def request(self, seats: int) -> None:
        self.requested.append(seats)

    async def status(self, name: str) -> PostStatus:
        if name in self.silent:
            await asyncio.Event().wait()
        return self.posts[name]

    async def list_workers(self, name: str, addresses: Sequence[str]) -> int | None:
        assert name == FRONT
        if self.is_front_moving:
            raise ConnectionError("the actor is being restarted")
        if self.is_front_away:
            return None
        self.listed = list(addresses)
        return self.waiting

    async def stop(self, name: str) -> None:
        self.stopped.append(name)

    def talk(self, name: str, sessions: int) -> None:
        """Have a seat hold so many sessions."""
        self.posts[name] = replace(self.posts[name], sessions=sessions)


@dataclass
class Scene:
    """A conductor whose rounds the test makes."""

    engine: FakeEngine
    conductor: Conductor
    now: list[float]

    async def rounds(self, count: int = 3) -> None:
        for _ in range(count):
            await self.conductor.step()
            await asyncio.sleep(0)


def play(
    bounds: str, act: Callable[[Scene], Coroutine[Any, Any, None]], engine: FakeEngine | None = None
) -> None:
    """Make a conductor whose own loop rests, and do something with it."""

    async def run() -> None:
        made, now = engine or FakeEngine(), [0.0]
        conductor = Conductor(made, CLUSTER, Bounds.parse(bounds), clock=lambda: now[0])
        await conductor.close()
        await act(Scene(made, conductor, now))
        await conductor.close()

    asyncio.run(run())


def test_an_empty_cluster_gets_a_front_and_its_seats_and_the_front_lists_them() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        posts = scene.engine.posts
        assert sorted(posts) == [FRONT, "seat_0", "seat_1"]
        assert scene.engine.listed == [posts["seat_0"].address, posts["seat_1"].address]
        assert scene.engine.requested == [2]
        assert (await scene.conductor.status()).is_serving

    play("2", act)


def test_a_seat_without_a_machine_is_demand_and_not_listed() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        status = await scene.conductor.status()
        assert [post.note for post in status.posts if post.name == "seat_1"] == [NO_MACHINE]
        assert scene.engine.listed == [scene.engine.posts["seat_0"].address]
        assert len(scene.engine.posts) == 3  # and no other is made in its place
        assert scene.engine.requested == [2]

    play("2", act, FakeEngine(room=1))


@dataclass
class SlowToEnd(FakeEngine):
    """Its silent posts end a question in more than one turn of the loop."""

    order: list[str] = field(default_factory=list)

    async def status(self, name: str) -> PostStatus:
        self.order.append(f"{name} asked")
        try:
            return await super().status(name)
        finally:
            if name in self.silent:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self.order.append(f"{name} ended")


def test_a_question_to_a_post_that_is_gone_has_ended_before_the_next_ones() -> None:
    engine = SlowToEnd()

    async def act(scene: Scene) -> None:
        await scene.rounds()
        engine.silent.add("seat_0")
        await scene.conductor.step()
        del engine.posts["seat_0"]
        engine.order.clear()
        await scene.conductor.step()
        assert engine.order == ["seat_0 ended", f"{FRONT} asked"]

    play("1", act, engine)


def test_a_seat_that_moved_is_listed_where_it_is_and_a_silent_one_where_it_was() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        seat = scene.engine.posts["seat_0"]
        scene.engine.silent.add("seat_0")
        await scene.rounds(2)
        assert scene.engine.listed == [seat.address]
        scene.engine.silent.clear()
        await scene.conductor.close()  # what was asked of the dead one ends with it
        scene.conductor._asked.clear()
        scene.engine.posts["seat_0"] = replace(seat, address="10.9.9.9:1")
        await scene.rounds(2)
        assert scene.engine.listed == ["10.9.9.9:1"]

    play("1", act)


def test_people_who_wait_bring_seats_up_to_the_most() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        scene.engine.waiting = 50
        await scene.rounds()
        assert len(scene.engine.posts) == 1 + 3
        assert scene.engine.requested == [1, 3]

    play("1:3", act)


def test_a_gateway_that_is_away_changes_nothing() -> None:
    async def act(scene: Scene) -> None:
        scene.engine.waiting = 50
        await scene.rounds()
        scene.engine.is_front_away = True
        await scene.rounds()
        assert (await scene.conductor.status()).waiting == 50

    play("1:3", act)


def test_seats_are_ended_also_while_the_front_moves() -> None:
    async def act(scene: Scene) -> None:
        scene.engine.waiting = 4
        await scene.rounds()
        assert sorted(scene.engine.posts) == [FRONT, "seat_0", "seat_1"]
        scene.engine.waiting = 0
        await scene.rounds(2)
        scene.now[0] += DOWN_AFTER_S
        await scene.rounds(1)
        scene.engine.is_front_moving = True
        scene.now[0] += SETTLE_S
        await scene.rounds()
        assert len(scene.engine.posts) == 2

    play("1:2", act)


def test_a_front_that_was_killed_for_good_is_made_again() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        scene.engine.kill(FRONT)
        await scene.rounds(1)
        assert FRONT in scene.engine.posts

    play("1", act)


def test_a_seat_is_delisted_then_empty_then_stopped_then_ended() -> None:
    async def act(scene: Scene) -> None:
        scene.engine.waiting = 8
        await scene.rounds(4)
        assert sorted(scene.engine.posts) == [FRONT, "seat_0", "seat_1", "seat_2"]
        scene.engine.waiting = 0
        for name, sessions in (("seat_0", 1), ("seat_1", 2), ("seat_2", 1)):
            scene.engine.talk(name, sessions)
        await scene.rounds(2)
        assert len(scene.engine.listed or ()) == 3
        scene.now[0] += DOWN_AFTER_S
        await scene.rounds(2)
        others = [scene.engine.posts[name].address for name in ("seat_1", "seat_2")]
        assert scene.engine.listed == others
        scene.now[0] += 10 * SETTLE_S
        await scene.rounds(2)
        assert not scene.engine.stopped  # its session is not over
        scene.engine.talk("seat_0", 0)
        await scene.rounds(2)
        await asyncio.gather(*scene.conductor._ending.values())
        assert scene.engine.stopped == ["seat_0"]
        assert sorted(scene.engine.posts) == [FRONT, "seat_1", "seat_2"]

    play("1:3", act)


def test_a_seat_that_could_not_be_ended_is_ended_later() -> None:
    async def act(scene: Scene) -> None:
        scene.engine.waiting = 4
        await scene.rounds()
        scene.engine.waiting = 0
        await scene.rounds(2)
        scene.now[0] += DOWN_AFTER_S
        await scene.rounds(1)
        scene.now[0] += SETTLE_S
        scene.engine.kill_failures = 1
        for _ in range(2):
            await scene.rounds(1)
            await asyncio.gather(*scene.conductor._ending.values(), return_exceptions=True)
        assert len(scene.engine.posts) == 2

    play("1:2", act)


def test_seats_of_a_machine_that_will_be_taken_away_are_replaced_first() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        scene.engine.talk("seat_0", 1)
        scene.engine.draining.add("node seat_0")
        await scene.rounds(2)
        assert scene.engine.listed == [scene.engine.posts["seat_1"].address]
        assert "seat_0" in scene.engine.posts

    play("1", act)


def test_a_new_conductor_knows_what_the_posts_say() -> None:
    async def act(scene: Scene) -> None:
        await scene.rounds()
        before = dict(scene.engine.posts)
        cluster, bounds = await scene.conductor.orders()
        successor = Conductor(scene.engine, cluster, bounds, clock=lambda: 0.0)
        await successor.close()
        scene.engine.listed = None
        await successor.step()
        assert scene.engine.posts == before
        assert scene.engine.listed == [before["seat_0"].address, before["seat_1"].address]

    play("2", act)
