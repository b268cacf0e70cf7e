import asyncio

from agents.realtime import RealtimeAgent, RealtimeRunner

URL = "ws://localhost:8006/v1/realtime?model=minicpm-o-4.5"


async def main():
    runner = RealtimeRunner(RealtimeAgent(name="helper", instructions="Be brief."))
    async with await runner.run(model_config={"url": URL, "api_key": "none"}) as session:
        await session.send_message("What is seven plus five?")
        async for event in session:
            if event.type == "history_updated":
                print(event.history[-1:])
            if event.type == "agent_end":
                break


asyncio.run(main())
