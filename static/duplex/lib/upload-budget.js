// @ts-check
/**
 * How much of a call may wait to be sent: three units, as many as the server keeps. Pictures are left
 * out from half of it on, whole chunks from all of it on, the newest first, because what was handed to
 * the browser cannot be taken back. Pure.
 */

const BACKLOG_UNITS = 3;
const FLOOR_BYTES = 256 * 1024;

/** For one session. */
export class UploadBudget {
  #largestUnitBytes = 0;
  #pictureBytes = 0; // of the unit whose sound was not sent yet

  /** @param {number} waitingBytes */
  allowsPicture(waitingBytes) {
    return waitingBytes <= this.#mostBytes / 2;
  }

  /** @param {number} waitingBytes */
  allowsChunk(waitingBytes) {
    return waitingBytes <= this.#mostBytes;
  }

  /** @param {number} bytes */
  notePicture(bytes) {
    this.#pictureBytes += bytes;
  }

  /** @param {number} bytes */
  noteChunk(bytes) {
    this.#largestUnitBytes = Math.max(this.#largestUnitBytes, this.#pictureBytes + bytes);
    this.#pictureBytes = 0;
  }

  get #mostBytes() {
    return Math.max(FLOOR_BYTES, BACKLOG_UNITS * this.#largestUnitBytes);
  }
}
