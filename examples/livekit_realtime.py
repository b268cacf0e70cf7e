import asyncio

from livekit.agents import Agent, AgentSession, utils
from livekit.plugins.openai.realtime import RealtimeModel


async def main():
    async with utils.http_context.open():
        model = RealtimeModel(base_url="http://localhost:8006/v1", api_key="none")
        async with AgentSession(llm=model) as session:
            await session.start(Agent(instructions="Be brief."))
            print((await session.generate_reply(user_input="What is seven plus five?")).chat_items)


asyncio.run(main())
