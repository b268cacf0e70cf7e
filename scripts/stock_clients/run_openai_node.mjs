// openai-node: `OpenAIRealtimeWS`, which insists on TLS, and `LiveWS`.
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { LiveWS } from "openai/resources/live/ws";
import { Inbox, main, pieces } from "./scenarios.mjs";

const TOOLS = [{ type: "function", name: "look_up", parameters: { type: "object", properties: { city: { type: "string" } } } }];

async function realtime(server, use) {
  const client = new OpenAI({ apiKey: "sk-any", baseURL: server.tls_url });
  const options = { ca: readFileSync(server.certificate) };
  const socket = new OpenAIRealtimeWS({ model: "gpt-realtime", options }, client);
  const inbox = new Inbox();
  socket.on("error", (error) => inbox.put({ problem: String(error) }));
  socket.on("event", inbox.put);
  const until = (kind) => inbox.until((event) => event.type === kind);
  await until("session.created");
  try {
    await use(socket, until);
  } finally {
    socket.close();
  }
}

function ask(socket, text) {
  const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
  socket.send({ type: "conversation.item.create", item });
  socket.send({ type: "response.create" });
}

function speak(socket, server) {
  for (const piece of pieces(server)) {
    socket.send({ type: "input_audio_buffer.append", audio: piece.toString("base64") });
  }
}

const hello = (server) =>
  realtime(server, async (socket, until) => {
    ask(socket, "Hello!");
    await until("response.output_audio.delta");
    const { response } = await until("response.done");
    if (response.status !== "completed") throw new Error(response.status);
  });

async function live(server, use) {
  const client = new OpenAI({ apiKey: "sk-any", baseURL: server.url });
  const socket = new LiveWS(client);
  const inbox = new Inbox();
  socket.on("error", (error) => inbox.put({ problem: String(error) }));
  socket.on("event", inbox.put);
  socket.send({ type: "session.start", session: { model: "gpt-live-1" } });
  await inbox.until((event) => event.type === "session.started");
  const silence = Buffer.alloc(4_800).toString("base64");
  const feeding = setInterval(() => {
    socket.send({ type: "session.input_audio.append", audio: silence });
  }, 100);
  const isAudible = (wanted) => (event) =>
    event.type === "session.output_audio.delta" && Buffer.from(event.delta, "base64").some((byte) => byte !== 0) === wanted;
  try {
    await use(socket, (wanted) => inbox.until(isAudible(wanted)), feeding);
    clearInterval(feeding);
    socket.send({ type: "session.close" });
    await inbox.until((event) => event.type === "session.closed");
  } finally {
    clearInterval(feeding);
    socket.close();
  }
}

const liveHello = (server) =>
  live(server, async (socket, hear) => {
    const content = "Say hello.";
    socket.send({ type: "session.commentary.append", content, delegation_id: null });
    await hear(true);
  });

await main({
  "Realtime/hello": hello,
  "Realtime/VAD turn": (server) =>
    realtime(server, async (socket, until) => {
      speak(socket, server);
      await until("input_audio_buffer.speech_stopped");
      await until("response.output_audio.delta");
    }),
  "Realtime/barge-in": (server) =>
    realtime(server, async (socket, until) => {
      ask(socket, "Tell me something.");
      const { item_id } = await until("response.output_audio.delta");
      speak(socket, server);
      await until("input_audio_buffer.speech_started");
      socket.send({ type: "conversation.item.truncate", item_id, content_index: 0, audio_end_ms: 300 });
      await until("conversation.item.truncated");
      await until("response.output_audio.delta");
    }),
  "Realtime/tool call": (server) =>
    realtime(server, async (socket, until) => {
      socket.send({ type: "session.update", session: { type: "realtime", tools: TOOLS } });
      ask(socket, "What is the weather in Paris?");
      const call = await until("response.function_call_arguments.done");
      await until("response.done");
      if (call.name !== "look_up") throw new Error(call.name);
      const item = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
      socket.send({ type: "conversation.item.create", item });
      socket.send({ type: "response.create" });
      await until("response.output_audio.delta");
    }),
  "Realtime/reconnect": async (server) => {
    await realtime(server, async (socket, until) => {
      ask(socket, "Hello!");
      await until("response.output_audio.delta");
    });
    await hello(server);
  },
  "GPT-Live/hello": liveHello,
  "GPT-Live/VAD turn": (server) =>
    live(server, async (_socket, hear) => {
      await hear(true);
      await hear(false);
      await hear(true);
    }),
  "GPT-Live/barge-in": (server) =>
    live(server, async (socket, hear, feeding) => {
      await hear(true);
      clearInterval(feeding);
      for (const piece of pieces(server)) {
        socket.send({ type: "session.input_audio.append", audio: piece.toString("base64") });
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      await hear(false);
    }),
  "GPT-Live/reconnect": async (server) => {
    await live(server, (_socket, hear) => hear(true));
    await liveHello(server);
  },
});
