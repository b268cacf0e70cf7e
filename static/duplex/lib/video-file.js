/** A video file as the source of a call. Device. */

import { CodedError } from "../../shared/texts.js";
import { videoEvent } from "../../shared/decode-sound.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { VIDEO_MAX_S, decodeSound, openFileSource, withMicrophone } from "./file-source.js";
import { measureLufs } from "./lufs.js";
import { openMicrophone } from "./microphone.js";
import { MixerController } from "./mixer-controller.js";

/** @import { FileSource } from "./file-source.js" */
/** @import { MixSettings, VideoSourceOptions } from "../../../types/devices.js" */

const METADATA_LIMIT_MS = 15_000;
const FAR_S = 1e7; // Beyond any video: files of recorders reveal their duration only after a seek to the end

/** @param {HTMLVideoElement} video @param {string} url @returns {Promise<number>} seconds */
export async function showVideo(video, url) {
  const known = videoEvent(video, "loadeddata", METADATA_LIMIT_MS);
  video.srcObject = null;
  video.muted = true;
  video.preload = "auto";
  video.src = url;
  await known;
  if (!Number.isFinite(video.duration)) {
    const sought = videoEvent(video, "seeked", METADATA_LIMIT_MS);
    video.currentTime = FAR_S;
    await sought;
    video.currentTime = 0;
  }
  return video.duration;
}

/** @param {File} file @param {HTMLVideoElement} video shows it afterwards @throws {Error}  */
export async function readVideoFile(file, video) {
  if (file.size === 0) throw new CodedError("empty");
  const url = URL.createObjectURL(file);
  try {
    const durationS = await showVideo(video, url);
    if (durationS > VIDEO_MAX_S) throw new CodedError("too_long");
    const { videoWidth: widthPx, videoHeight: heightPx } = video;
    if (widthPx === 0) throw new CodedError("no_picture");
    const decoder = new OfflineAudioContext(1, 1, CAPTURE_RATE_HZ);
    const sound = await decodeSound(file, decoder, { isVideo: true, durationS });
    const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
    const lufs = measureLufs(channels, sound.sampleRate);
    return { name: file.name, url, durationS, widthPx, heightPx, sound, lufs };
  } catch (error) {
    URL.revokeObjectURL(url);
    video.removeAttribute("src");
    video.load();
    throw error;
  }
}

// Opens a video file as source: its picture, and the audio of file, microphone or both.

/** @param {MixerController} mixer @param {Omit<MixSettings, "mode">} settings */
export function setMixer(mixer, { trimFileDb, trimMicrophoneDb, microphoneLufs, volume }) {
  mixer.setTrim({ fileDb: trimFileDb, microphoneDb: trimMicrophoneDb });
  mixer.noteMicrophone(microphoneLufs);
  mixer.setMonitorVolume(volume);
}

/** @param {VideoSourceOptions} options @returns {Promise<FileSource & {isMicrophone: boolean}>} */
export async function openVideoSource({ mix, microphone: wish, ...options }) {
  // In its own context, which stays active while a pause suspends the file's.
  const microphone = mix.mode !== "file" ? await openMicrophone(wish) : null;
  const context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
  const mixer = new MixerController(context, { mode: mix.mode });
  setMixer(mixer, mix);
  const source = await openFileSource({ ...options, context, mixer, ...(microphone && { microphone: microphone.stream }) });
  return withMicrophone(source, microphone);
}
