// @openai/agents: a `RealtimeSession` over WebSocket, with an agent and a function.
import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents/realtime";
import { z } from "zod";
import { Inbox, main, pieces } from "./scenarios.mjs";

const lookUp = tool({
  name: "look_up",
  description: "Look the weather up.",
  parameters: z.object({ city: z.string() }),
  execute: async () => "sunny",
});

async function session(server, tools, use) {
  const agent = new RealtimeAgent({ name: "helper", instructions: "Be brief.", tools });
  const made = new RealtimeSession(agent, { transport: "websocket", tracingDisabled: true });
  const inbox = new Inbox();
  made.on("error", (error) => inbox.put({ problem: JSON.stringify(error) }));
  made.on("audio", () => inbox.put({ type: "audio" }));
  made.on("audio_interrupted", () => inbox.put({ type: "audio_interrupted" }));
  made.on("agent_tool_end", (_context, _agent, _tool, result) => inbox.put({ type: "tool", result }));
  made.on("transport_event", (event) => inbox.put({ type: `server ${event.type}` }));
  const url = `${server.url.replace("http", "ws")}/realtime?model=gpt-realtime`;
  await made.connect({ apiKey: "sk-any", url });
  try {
    await use(made, (kind) => inbox.until((event) => event.type === kind));
  } finally {
    made.close();
  }
}

function speak(made, server) {
  for (const piece of pieces(server)) {
    made.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
  }
}

const hello = (server) =>
  session(server, [], async (made, until) => {
    made.sendMessage("Hello!");
    await until("audio");
    await until("server response.done");
  });

await main({
  "Realtime/hello": hello,
  "Realtime/VAD turn": (server) =>
    session(server, [], async (made, until) => {
      speak(made, server);
      await until("server input_audio_buffer.speech_stopped");
      await until("audio");
    }),
  "Realtime/barge-in": (server) =>
    session(server, [], async (made, until) => {
      made.sendMessage("Tell me something.");
      await until("audio");
      speak(made, server);
      await until("audio_interrupted");
      await until("server conversation.item.truncated");
      await until("audio");
    }),
  "Realtime/tool call": (server) =>
    session(server, [lookUp], async (made, until) => {
      made.sendMessage("What is the weather in Paris?");
      const { result } = await until("tool");
      if (result !== "sunny") throw new Error(result);
      await until("audio");
    }),
  "Realtime/reconnect": async (server) => {
    await session(server, [], async (made, until) => {
      made.sendMessage("Hello!");
      await until("audio");
    });
    await hello(server);
  },
});
