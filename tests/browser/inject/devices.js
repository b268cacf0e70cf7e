// Stands between a page and its devices, before any script of the page runs. PLAN says how they are.
// Tests reach it as `__devices`.
(() => {
  const plan = PLAN;
  const media = navigator.mediaDevices;
  if (!media) return;
  const ask = media.getUserMedia.bind(media);
  const list = media.enumerateDevices.bind(media);
  const RealContext = window.AudioContext;
  const connect = AudioNode.prototype.connect;
  const meterUrl = () =>
    URL.createObjectURL(new Blob([window.__meter], { type: "text/javascript" }));
  const LOOKAHEAD_S = 0.05;
  const KINDS = { audioinput: "microphone", videoinput: "camera" };
  const given = new Map(); // a track -> "microphone" or "camera"
  const voices = new Map(); // name -> AudioBuffer
  let scripted = null;

  const refusal = (kind) => {
    if (plan[kind] === "none") return new DOMException("Requested device not found", "NotFoundError");
    if (plan[kind] === "busy") return new DOMException(`Could not start ${kind}`, "NotReadableError");
    return null;
  };

  async function startScripted() {
    const context = new RealContext({ sampleRate: 48000 });
    await context.audioWorklet.addModule(meterUrl());
    const meter = new AudioWorkletNode(context, "test-meter");
    const out = context.createMediaStreamDestination();
    connect.call(meter, out);
    const waiting = [];
    const frames = [];
    meter.port.onmessage = ({ data }) => {
      frames.push(...data.map(([atMs, rms]) => ({ atMs: atMs - performance.timeOrigin, rms })));
      for (const check of [...waiting]) check();
    };
    scripted = { context, meter, out, frames, waiting };
    return scripted;
  }

  // A file of the test's own, in a loop; the browser's own file serves all other tests.
  async function startLooped() {
    const context = new RealContext({ sampleRate: 48000 });
    const bytes = Uint8Array.from(atob(plan.speech), (letter) => letter.charCodeAt(0));
    const buffer = await context.decodeAudioData(bytes.buffer);
    const out = context.createMediaStreamDestination();
    const source = new AudioBufferSourceNode(context, { buffer, loop: true });
    connect.call(source, out);
    source.start();
    return { context, out };
  }

  const loopedReady = plan.speech ? startLooped() : null;
  const scriptedReady = plan.microphone === "scripted" ? startScripted() : null;

  media.getUserMedia = async (wanted = {}) => {
    if (wanted.audio && refusal("microphone")) throw refusal("microphone");
    if (wanted.video && refusal("camera")) throw refusal("camera");
    let stream;
    const ownSound = scriptedReady ?? loopedReady;
    if (wanted.audio && ownSound) {
      const { context, out } = await ownSound;
      await context.resume();
      stream = new MediaStream(out.stream.getAudioTracks().map((track) => track.clone()));
      if (wanted.video) {
        const pictures = await ask({ video: wanted.video });
        pictures.getVideoTracks().forEach((track) => stream.addTrack(track));
      }
    } else {
      stream = await ask(wanted);
    }
    for (const track of stream.getTracks()) {
      given.set(track, track.kind === "audio" ? "microphone" : "camera");
    }
    return stream;
  };

  media.enumerateDevices = async () => {
    const devices = await list();
    return devices.filter((device) => plan[KINDS[device.kind]] !== "none");
  };

  const startOf = (frames, fromMs) => frames.find((frame) => frame.atMs >= fromMs && frame.rms > 0.003);

  window.__devices = {
    /** The user pulls the plug. */
    unplug(kind) {
      plan[kind] = "none";
      for (const [track, its] of given) {
        if (its !== kind || track.readyState === "ended") continue;
        track.stop();
        track.dispatchEvent(new Event("ended"));
      }
      media.dispatchEvent(new Event("devicechange"));
    },
    /** Changes how a device is from now on: "file", "none" or "busy". */
    become(kind, state) {
      plan[kind] = state;
      media.dispatchEvent(new Event("devicechange"));
    },
    /** How many tracks of a kind the page holds open. */
    held(kind) {
      return [...given].filter(([track, its]) => its === kind && track.readyState === "live").length;
    },
    /** Keeps a voice for `say`: float32 samples as Base64. */
    async keep(name, base64, rateHz) {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const samples = new Float32Array(bytes.buffer);
      const buffer = new AudioBuffer({ length: samples.length, sampleRate: rateHz });
      buffer.copyToChannel(samples, 0);
      voices.set(name, buffer);
    },
    /** Plays a voice; resolves to when its first audible sound left the microphone, performance.now(). */
    async say(name) {
      const { context, meter, frames, waiting } = await scriptedReady;
      await context.resume();
      const fromMs = performance.now();
      const source = new AudioBufferSourceNode(context, { buffer: voices.get(name) });
      connect.call(source, meter);
      source.start(context.currentTime + LOOKAHEAD_S);
      return new Promise((resolve) => {
        const check = () => {
          const first = startOf(frames, fromMs);
          if (!first) return;
          waiting.splice(waiting.indexOf(check), 1);
          resolve(first.atMs);
        };
        waiting.push(check);
        check();
      });
    },
    /** What left the scripted microphone, in pieces of 10 ms. */
    said: () => scripted?.frames ?? [],
  };
})();
