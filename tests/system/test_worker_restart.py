"""A worker is restarted by an administrator: the real launcher starts the real program again."""

from __future__ import annotations

from benchmarks.launched import wait_until
from tests.system.client import DuplexClient
from tests.system.loops import in_loop, new_id
from tests.system.running import LIMIT_S, RunningSystem


@in_loop
async def test_a_restarted_worker_lets_its_session_end_and_comes_back(crowd: RunningSystem) -> None:
    workers = {one["worker_id"]: one for one in crowd.get("/workers")["workers"]}
    assert all(one["can_restart"] for one in workers.values())
    assert crowd.get("/status")["model"]["kind"] == "fake"
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        name = (await client.hear("queue_done"))["worker_id"]
        before = {each: crowd.pid(each) for each in crowd.names}
        await client.say("prepare", system_prompt="Talk.")
        await client.hear("prepared")
        answer = await crowd.call("POST", f"/api/admin/workers/{name}/restart")
        assert answer.status_code == 200 and answer.json()["is_restarting"] is True
        again = await crowd.call("POST", f"/api/admin/workers/{name}/restart")
        assert again.status_code == 429
        await client.say("stop")
        await client.hear("stopped")

    def is_back() -> bool:
        one = {each["worker_id"]: each for each in crowd.get("/workers")["workers"]}[name]
        return one["status"] == "idle" and not one["is_restarting"] and one["free_slots"] > 0

    wait_until(f"{name} is back", is_back, LIMIT_S)
    after = {each: crowd.pid(each) for each in crowd.names}
    assert {each for each in after if after[each] != before[each]} == {name}
    (entry,) = crowd.ask("GET", "/api/admin/audit?limit=1").json()["entries"]
    assert (entry["target"], entry["status"]) == (name, 429)
    lines = crowd.ask("GET", f"/api/admin/logs?source={name}").json()["lines"]
    assert any("draining" in line["text"] for line in lines)
