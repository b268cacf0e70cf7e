/** What microphone, camera, files and player take and deliver. */

import type { MixMode, MixerController } from "../static/duplex/lib/mixer-controller.js";
import type { Microphone } from "../static/duplex/lib/capture.js";
import type { Facing } from "../static/duplex/lib/camera.js";

export type CaptureChunk = {
  audio: Float32Array; // 16 kHz mono
  endTimeS: number; // context time at its end, seconds
};

export type CaptureLevel = {
  rms: number;
  peak: number;
  isSilent: boolean; // every sample was exactly zero
};

export type MicrophoneOptions = {
  deviceId?: string; // the system's default when left out
  echoCancellation?: boolean; // on by default; headphones switch it off
  noiseSuppression?: boolean; // on by default
  autoGainControl?: boolean; // on by default
  chunkSamples?: number; // samples of a chunk at 16 kHz; one second by default
};

export type PlayerGap = {
  gapIndex: number; // from 1
  gapMs: number;
  totalShiftMs: number;
  chunkIndex?: number; // in its turn, from 0
  turn?: number;
};

export type Queued = {
  buffer: AudioBuffer;
  source: AudioBufferSourceNode | null; // null while held
};

export type Frame = {
  base64: string; // JPEG
  widthPx: number;
  heightPx: number;
  bytes: number;
};

export type CameraOptions = {
  facing?: Facing; // "user" by default; a wish, not a demand
  deviceId?: string; // this camera and no other
  video?: HTMLVideoElement; // shows it; one outside the page when left out
};

export type FileSourceOptions = {
  sound: AudioBuffer;
  context: AudioContext; // its own, so that a pause may suspend it; closed by `close`
  microphone: Microphone | null; // mixed in as the mixer's mode says; closed by `close`
  mixer: MixerController;
  video?: HTMLVideoElement; // played along, muted
  paddingBeforeS: number; // 0 to 30
  paddingAfterS: number; // 0 to 30, or Infinity: it never ends by itself
  chunkSamples?: number; // 16 000
};

export type SoundFileOptions = {
  sound: AudioBuffer;
  hasMicrophone: boolean;
  microphone: MicrophoneOptions;
  paddingBeforeS: number;
  paddingAfterS: number; // Infinity: it never ends by itself
  chunkSamples?: number; // 16 000
  onProgress?: (progress: {elapsedS: number, totalS: number}) => void;
};

export type VideoFile = {
  name: string;
  url: string; // of the object; to be revoked
  durationS: number;
  widthPx: number;
  heightPx: number;
  sound: AudioBuffer; // silence where the file has none
  lufs: number; // -Infinity where it is silent
};

/** What the mixer is set to. */
export type MixSettings = {
  mode: MixMode;
  trimFileDb: number;
  trimMicrophoneDb: number;
  microphoneLufs: number; // as measured before; -Infinity if it was not
  volume: number; // how loud the user hears the file, 0 to 1
};

export type VideoSourceOptions = {
  sound: AudioBuffer;
  video: HTMLVideoElement;
  mix: MixSettings;
  microphone: MicrophoneOptions;
  paddingBeforeS: number;
  paddingAfterS: number;
};

export type VideoRecorderOptions = {
  picture: HTMLVideoElement;
  user: AudioNode | null | undefined; // left
  answer: AudioNode | null; // right
  isMuted: boolean; // the user, at the start
  formatId?: string;
  bitrate: number; // bits per second
  draw?: (canvas: CanvasRenderingContext2D, widthPx: number, heightPx: number) => void; // paints subtitles over each picture
};

export type BenchOptions = {
  mix: MixSettings;
  sound: AudioBuffer | null; // of the file
  microphone: MicrophoneOptions;
};
