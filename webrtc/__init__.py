"""The WebRTC process: media over UDP on one side, the gateway's own WebSockets on the other."""
