import OpenAI from "openai";

const messages = [{ role: "user", content: "What is seven plus five?" }];
const client = new OpenAI({ baseURL: "http://localhost:8006/v1", apiKey: "none" });
const answer = await client.chat.completions.create({ model: "minicpm-o-4.5", messages, stream: true });
for await (const { choices } of answer) process.stdout.write(choices[0]?.delta.content ?? "");
