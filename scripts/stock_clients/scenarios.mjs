// What the programs of node's clients share; the same as scenarios.py.
import { readFileSync } from "node:fs";

const LIMIT_MS = 120_000; // ends what hangs
const PIECE_BYTES = 4_800; // 100 ms

export function pieces(server) {
  const pcm = readFileSync(server.speech);
  const spoken = [];
  for (let at = 0; at < pcm.length; at += PIECE_BYTES) spoken.push(pcm.subarray(at, at + PIECE_BYTES));
  return [...spoken, ...Array.from({ length: 15 }, () => Buffer.alloc(PIECE_BYTES))];
}

// Events of a client, in order, until one is the last.
export class Inbox {
  #events = [];
  #wake = () => {};
  put = (event) => {
    this.#events.push(event);
    this.#wake();
  };
  async until(isLast) {
    for (;;) {
      while (this.#events.length) {
        const event = this.#events.shift();
        if (event.problem) throw new Error(event.problem);
        if (isLast(event)) return event;
      }
      await new Promise((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

export async function main(scenarios) {
  const server = JSON.parse(process.argv[2]);
  for (const [scenario, run] of Object.entries(scenarios)) {
    let timer;
    const limit = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("it hangs")), LIMIT_MS);
    });
    let problem = "";
    try {
      await Promise.race([run(server), limit]);
    } catch (error) {
      problem = String(error?.stack ?? error);
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ scenario, problem }));
  }
  process.exit(0);
}
