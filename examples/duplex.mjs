import { readFileSync } from "node:fs";
import { Client, play, readWav } from "../static/client/index.js";

const call = new Client("http://localhost:8006").duplex();
for await (const { result } of play(call, readWav(readFileSync("examples/hello.wav")))) {
    console.log(result.is_listen ? "listens" : `says '${result.text}'`);
}
