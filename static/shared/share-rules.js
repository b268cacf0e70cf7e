/** Rules for uploads of the browser's recordings. Pure. */

/** Source: the server's own list; audio-only MP4 uses the same container as video. */
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

/** Upload type of a recording; null if the server does not accept it. @param {string} mimeType as the browser names it, with or without codecs */
export function uploadType(mimeType) {
  const kind = mimeType.split(";")[0].trim().toLowerCase();
  return Object.entries(TAKEN).find(([name]) => name === kind)?.[1] ?? null;
}

/** What prevents an upload; null if nothing does. @param {{type: string, size: number}} blob @param {number} [maxBytes] */
export function uploadProblem({ type, size }, maxBytes = MAX_UPLOAD_BYTES) {
  if (uploadType(type) === null) return "kind";
  return size > maxBytes || size === 0 ? "size" : null;
}
