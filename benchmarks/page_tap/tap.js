// Measures what a page plays: everything that goes to a loudspeaker passes a meter, before any script
// of the page runs. Tests reach it as `__tap`.
(() => {
  const meterUrl = () =>
    URL.createObjectURL(new Blob([window.__meter], { type: "text/javascript" }));
  const { connect, disconnect } = AudioNode.prototype;
  const buses = new WeakMap(); // an AudioContext -> the node everything goes through
  const frames = [];

  function busOf(context) {
    let bus = buses.get(context);
    if (bus) return bus;
    bus = new GainNode(context);
    buses.set(context, bus);
    connect.call(bus, context.destination);
    context.audioWorklet.addModule(meterUrl()).then(() => {
      const meter = new AudioWorkletNode(context, "test-meter");
      meter.port.onmessage = ({ data }) => {
        // Rendered now, heard a little later.
        const laterMs = (context.outputLatency || 0) * 1000 - performance.timeOrigin;
        frames.push(...data.map(([atMs, rms, soundMs]) => ({ atMs: atMs + laterMs, rms, soundMs })));
      };
      const silence = new GainNode(context, { gain: 0 });
      connect.call(bus, meter);
      connect.call(meter, silence);
      connect.call(silence, context.destination);
    });
    return bus;
  }

  const isSpeaker = (node) =>
    node instanceof AudioDestinationNode && node.context instanceof AudioContext;

  AudioNode.prototype.connect = function (target, ...rest) {
    if (!isSpeaker(target)) return connect.call(this, target, ...rest);
    connect.call(this, busOf(target.context), ...rest);
    return target;
  };
  AudioNode.prototype.disconnect = function (target, ...rest) {
    const isOurs = isSpeaker(target) && buses.has(target.context);
    if (isOurs) return disconnect.call(this, busOf(target.context), ...rest);
    return target === undefined ? disconnect.call(this) : disconnect.call(this, target, ...rest);
  };

  window.__tap = { frames };
})();
