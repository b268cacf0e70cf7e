// Gives back into the microphone what the page plays, before any script of the page runs. ECHO says how
// loud: {plain, cancelled}, as factors, without and with the browser's echo cancellation.
(() => {
  const echo = ECHO;
  const { connect } = AudioNode.prototype;
  const room = new AudioContext({ sampleRate: 48000 });
  const back = new GainNode(room, { gain: 0 });
  const microphone = room.createMediaStreamDestination();
  connect.call(back, microphone);

  navigator.mediaDevices.getUserMedia = async ({ audio }) => {
    await room.resume();
    back.gain.value = audio.echoCancellation ? echo.cancelled : echo.plain;
    return new MediaStream(microphone.stream.getTracks().map((track) => track.clone()));
  };
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode && target.context !== room) {
      const ear = target.context.createMediaStreamDestination();
      connect.call(this, ear);
      connect.call(room.createMediaStreamSource(ear.stream), back);
    }
    return connect.call(this, target, ...rest);
  };
})();
