import asyncio

from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService


async def main():
    model = OpenAIRealtimeLLMService(api_key="none", base_url="ws://localhost:8006/v1/realtime")
    context = LLMContext([{"role": "user", "content": "What is seven plus five?"}])
    sides = LLMContextAggregatorPair(context)
    task = PipelineTask(Pipeline([sides.user(), model, sides.assistant()]), idle_timeout_secs=5)
    await task.queue_frame(LLMRunFrame())
    await PipelineRunner().run(task)
    print(context.messages)


asyncio.run(main())
