// Passes sound on and posts [Date.now() at its start, RMS, its place in the sound in ms] of every
// 10 ms. The clock is late when the thread was; the place in the sound never is.
const PIECE_S = 0.01;
const PIECES_A_POST = 2;

registerProcessor("test-meter", class extends AudioWorkletProcessor {
  squares = 0;
  count = 0;
  pieces = [];

  process([input], [output]) {
    const length = output[0].length;
    input.forEach((samples, channel) => output[channel]?.set(samples));
    const heard = input[0];
    for (let index = 0; heard && index < length; index += 1) this.squares += heard[index] ** 2;
    this.count += length;
    if (this.count >= PIECE_S * sampleRate) {
      const durationMs = (this.count / sampleRate) * 1000;
      const soundMs = ((currentFrame + length) / sampleRate) * 1000 - durationMs;
      this.pieces.push([Date.now() - durationMs, Math.sqrt(this.squares / this.count), soundMs]);
      this.squares = 0;
      this.count = 0;
      if (this.pieces.length >= PIECES_A_POST) this.port.postMessage(this.pieces.splice(0));
    }
    return true;
  }
});
