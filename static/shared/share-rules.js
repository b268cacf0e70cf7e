// @ts-check
/** Which of the browser's recordings the server takes. Pure. */

/** Source: the server's own list; sound in an MP4 box is the same box as a picture's. */
const TAKEN = Object.freeze({
  "video/webm": "video/webm",
  "audio/webm": "audio/webm",
  "video/mp4": "video/mp4",
  "audio/mp4": "video/mp4",
  "audio/wav": "audio/wav",
  "audio/wave": "audio/wav",
  "audio/x-wav": "audio/wav",
});

export const MAX_UPLOAD_BYTES = 209_715_200; // the server's default; it reports its own
export const MAX_COMMENT_CHARS = 2_000; // the server's default; it reports its own

/** Null if the server does not take it. @param {string} mimeType as the browser names it, with or without codecs */
export function uploadType(mimeType) {
  const kind = mimeType.split(";")[0].trim().toLowerCase();
  return Object.entries(TAKEN).find(([name]) => name === kind)?.[1] ?? null;
}

/** Null if it can be sent. @param {{type: string, size: number}} blob @param {number} [maxBytes] */
export function uploadProblem({ type, size }, maxBytes = MAX_UPLOAD_BYTES) {
  if (uploadType(type) === null) return "kind";
  return size > maxBytes || size === 0 ? "size" : null;
}
