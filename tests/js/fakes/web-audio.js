/** Just enough of Web Audio to drive the player and the microphone: time moves when the test says so. */

/** @typedef {{when: number, offset: number, stopAt: number | null, source: FakeSourceNode}} Started */

class FakeParam {
  value = 1;
  /** @param {number} value */
  setTargetAtTime(value) {
    this.value = value;
  }
}

class FakeNode {
  /** @param {FakeContext} context */
  constructor(context) {
    this.context = context;
  }
  /** @type {FakeNode[]} */
  targets = [];
  /** @param {FakeNode} target @returns {FakeNode} */
  connect(target) {
    this.targets.push(target);
    return target;
  }
  disconnect() {
    this.targets = [];
  }
}

class FakeGainNode extends FakeNode {
  gain = new FakeParam();
}

class FakeAnalyserNode extends FakeNode {
  /** @param {Float32Array} samples */
  getFloatTimeDomainData(samples) {
    samples.fill(0);
  }
}

class FakeBuffer {
  /** @param {{length: number, sampleRate: number}} options */
  constructor({ length, sampleRate }) {
    this.samples = new Float32Array(length);
    this.sampleRate = sampleRate;
  }
  /** @param {Float32Array} samples */
  copyToChannel(samples) {
    this.samples.set(samples);
  }
}

class FakeSourceNode extends FakeNode {
  /** @type {(() => void) | null} */
  onended = null;
  /** @param {FakeContext} context @param {{buffer: FakeBuffer}} options */
  constructor(context, { buffer }) {
    super(context);
    this.buffer = buffer;
  }
  /** @param {number} when @param {number} offset */
  start(when, offset) {
    this.context.started.push({ when, offset, stopAt: null, source: this });
  }
  /** @param {number} at */
  stop(at) {
    const started = this.context.started.find(({ source }) => source === this);
    if (started) started.stopAt = at;
  }
}

/** A context whose clock the test moves. */
export class FakeContext extends EventTarget {
  /** Every context made since `installWebAudio`. @type {FakeContext[]} */
  static made = [];
  currentTime = 0;
  state = "running";
  /** @type {Started[]} */
  started = [];
  destination = new FakeNode(this);
  audioWorklet = { addModule: async () => {} };

  /** @param {{sampleRate?: number}} [options] */
  constructor({ sampleRate = 24_000 } = {}) {
    super();
    this.sampleRate = sampleRate;
    FakeContext.made.push(this);
  }
  createMediaStreamSource() {
    return new FakeNode(this);
  }
  async resume() {
    this.#enter("running");
  }
  async suspend() {
    this.#enter("suspended");
  }
  async close() {
    this.#enter("closed");
  }
  /** @param {string} state */
  #enter(state) {
    this.state = state;
    this.dispatchEvent(new Event("statechange"));
  }
}

/** A worklet whose messages the test sends. */
export class FakeWorkletNode extends FakeNode {
  /** @type {FakeWorkletNode[]} */
  static made = [];
  /** @type {{type: string}[]} */
  commands = [];
  port = {
    /** @type {((event: {data: object}) => void) | null} */
    onmessage: null,
    postMessage: (/** @type {{type: string}} */ command) => {
      this.commands.push(command);
      if (command.type === "stop") this.port.onmessage?.({ data: { type: "stopped" } });
    },
  };
  /** @param {FakeContext} context */
  constructor(context) {
    super(context);
    FakeWorkletNode.made.push(this);
  }
  /** @param {object} message */
  send(message) {
    this.port.onmessage?.({ data: message });
  }
}

/** Put the fakes where the modules look for the real ones. */
export function installWebAudio() {
  FakeContext.made = [];
  FakeWorkletNode.made = [];
  Object.assign(globalThis, {
    AudioContext: FakeContext,
    AudioWorkletNode: FakeWorkletNode,
    GainNode: FakeGainNode,
    AnalyserNode: FakeAnalyserNode,
    AudioBuffer: FakeBuffer,
    AudioBufferSourceNode: FakeSourceNode,
    addEventListener: () => {},
    removeEventListener: () => {},
  });
}
