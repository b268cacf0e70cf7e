"""The WebRTC process: media over UDP to clients, WebSockets to the gateway."""
