/**
 * A WebSocket without a network: the test opens it, speaks for the server and loses it. Device.
 */

/** @import { VisibilitySource } from "../../../static/shared/page-visibility.js" */

const CONNECTING = 0;
const OPEN = 1;
const CLOSED = 3;

export class FakeSocket extends EventTarget {
  readyState = CONNECTING;
  bufferedAmount = 0;
  /** @type {Array<Record<string, any>>} any: whatever the client said */
  sent = [];
  isClosedByClient = false;

  /** @param {string} url */
  constructor(url) {
    super();
    this.url = url;
  }

  /** @param {string} text */
  send(text) {
    if (this.readyState !== OPEN) throw new Error("not open");
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.isClosedByClient = true;
    this.readyState = CLOSED;
  }

  open() {
    this.readyState = OPEN;
    this.dispatchEvent(new Event("open"));
  }

  /** The server says something. @param {...(object | string)} messages */
  hear(...messages) {
    for (const message of messages) {
      const data = typeof message === "string" ? message : JSON.stringify(message);
      this.dispatchEvent(Object.assign(new Event("message"), { data }));
    }
  }

  /** The socket closes from outside. @param {number} [code] @param {string} [reason] */
  vanish(code = 1006, reason = "") {
    this.readyState = CLOSED;
    this.dispatchEvent(new Event("error"));
    this.dispatchEvent(Object.assign(new Event("close"), { code, reason }));
  }

  /** Types of what the client said. */
  get kinds() {
    return this.sent.map((message) => message.type);
  }

  /** What the client said last. */
  get last() {
    return this.sent.at(-1) ?? {};
  }
}

/**
 * Sockets as a session opens them.
 * @returns {{all: FakeSocket[], factory: (url: string) => WebSocket, last: () => FakeSocket}}
 */
export function fakeSockets() {
  /** @type {FakeSocket[]} */
  const all = [];
  return {
    all,
    factory(url) {
      const socket = new FakeSocket(url);
      all.push(socket);
      return /** @type {WebSocket} */ (/** @type {unknown} */ (socket));
    },
    last() {
      const socket = all.at(-1);
      if (!socket) throw new Error("no socket was opened");
      return socket;
    },
  };
}

/** A clock the test moves. */
export class FakeClock {
  atMs = 1_000;

  nowMs = () => this.atMs;
  unixMs = () => 1_700_000_000_000 + this.atMs;
}

/** A page the test hides and leaves. */
export class FakePage {
  #isHidden = false;
  /** @type {Set<(isHidden: boolean) => void>} */
  #onChange = new Set();
  /** @type {Set<() => void>} */
  #onHide = new Set();

  /** @type {VisibilitySource} */
  source = {
    isHidden: () => this.#isHidden,
    onChange: (listener) => {
      this.#onChange.add(listener);
      return () => this.#onChange.delete(listener);
    },
    onPageHide: (listener) => {
      this.#onHide.add(listener);
      return () => this.#onHide.delete(listener);
    },
  };

  /** @param {boolean} isHidden */
  set(isHidden) {
    this.#isHidden = isHidden;
    for (const listener of this.#onChange) listener(isHidden);
  }

  leave() {
    for (const listener of this.#onHide) listener();
  }

  get listeners() {
    return this.#onChange.size + this.#onHide.size;
  }
}

/**
 * Collect what a session emits.
 * @param {EventTarget} source
 * @param {...string} types
 * @returns {Array<{type: string, detail: any}>} any: each test knows what it waits for
 */
export function collect(source, ...types) {
  /** @type {Array<{type: string, detail: any}>} */
  const events = [];
  for (const type of types) {
    source.addEventListener(type, (event) => {
      events.push({ type, detail: /** @type {CustomEvent} */ (event).detail });
    });
  }
  return events;
}

/** Let what was promised happen. */
export async function settle() {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
}
