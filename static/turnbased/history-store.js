/** Stores conversations and drafts in this browser, within bounds. Pure: the page passes the database. */

import { remember, remembered } from "../shared/memory.js";

/** @import { Head, MediaPart } from "../../types/chat.js" */
/** @import { SmallStorage } from "../shared/memory.js" */

const DATABASE = "minicpmo_turnbased";
const VERSION = 1;
const HEADS = "heads"; // small: data of the list
const BODIES = "bodies"; // large: the messages with their media
const DRAFTS = "drafts"; // of messages being written

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function answered(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

const randomWord = () => Math.random().toString(36).slice(2);

/** @template Body @typedef {Awaited<ReturnType<typeof openHistory<Body>>>} HistoryStore */

/** @template Body @param {IDBFactory} factory @throws {DOMException} storage is blocked */
export async function openHistory(factory) {
  const opening = factory.open(DATABASE, VERSION);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore(HEADS, { keyPath: "id" });
    opening.result.createObjectStore(BODIES);
    opening.result.createObjectStore(DRAFTS);
  };
  const database = await answered(opening);
  database.onversionchange = () => database.close();
  /** Where what this tab has last read or written is stored. @type {Map<string, {id: string, revision?: string}>} */
  const places = new Map();

  const read = (/** @type {string} */ name) => database.transaction(name).objectStore(name);
  /** @param {string[]} names @param {(...stores: IDBObjectStore[]) => void} work @returns {Promise<void>} */
  const change = (names, work) =>
    new Promise((resolve, reject) => {
      const transaction = database.transaction(names, "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
      work(...names.map((name) => transaction.objectStore(name)));
    });
  /** Newest first. @returns {Promise<Head[]>} */
  const list = async () => (await answered(read(HEADS).getAll())).sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  return {
    list,
    /** @param {string} id @returns {Promise<Body | null>} */
    async read(id) {
      const transaction = database.transaction([HEADS, BODIES]);
      const [head, body] = await Promise.all([HEADS, BODIES].map((name) => answered(transaction.objectStore(name).get(id))));
      places.set(id, { id, revision: head?.revision });
      return body ?? null;
    },
    /**
     * Deletes others where there is no room.
     * @param {Head} head
     * @param {Body} body
     * @returns {Promise<Head>} as stored: with the title chosen in any tab, and with a new id if another tab has changed the
     *   conversation, so that both are kept
     */
    async write(head, body) {
      const kept = { ...head, revision: randomWord() };
      await change([HEADS, BODIES], (heads, bodies) => {
        const listing = heads.getAll();
        listing.onsuccess = () => {
          const place = places.get(head.id) ?? { id: head.id };
          const before = listing.result.find(({ id }) => id === place.id);
          const isOthers = before && before.revision !== place.revision;
          if (before?.hasOwnTitle) Object.assign(kept, { title: before.title, hasOwnTitle: true });
          kept.id = isOthers ? `c${randomWord()}` : place.id;
          const others = listing.result.filter(({ id }) => id !== kept.id);
          for (const id of conversationsToDrop([...others, kept], kept.id)) for (const store of [heads, bodies]) store.delete(id);
          heads.put(kept);
          bodies.put(body, kept.id);
        };
      });
      places.set(head.id, kept).set(kept.id, kept);
      return kept;
    },
    rename: (/** @type {string} */ id, /** @type {string} */ title) =>
      change([HEADS], (heads) => {
        const head = heads.get(id);
        head.onsuccess = () => head.result && heads.put({ ...head.result, title, hasOwnTitle: true });
      }),
    remove: (/** @type {string} */ id) => change([HEADS, BODIES], (...stores) => stores.forEach((store) => store.delete(id))),
    clear: () => change([HEADS, BODIES], (...stores) => stores.forEach((store) => store.clear())),
    /** @param {string} key @returns {Promise<unknown>} */
    readDraft: async (key) => (await answered(read(DRAFTS).get(key))) ?? null,
    /** @param {string} key @param {unknown} draft null removes it */
    writeDraft: (key, draft) => change([DRAFTS], (drafts) => (draft === null ? drafts.delete(key) : drafts.put(draft, key))),
  };
}

/** A store for browsers without storage: always empty. @template Body @returns {HistoryStore<Body>} */
export function forgetfulHistory() {
  const ignored = async () => {};
  const empty = async () => null;
  const changes = { rename: ignored, remove: ignored, clear: ignored, writeDraft: ignored };
  return { list: async () => [], read: empty, readDraft: empty, write: async (head) => head, ...changes };
}

// Retention: at most 50 conversations and 200 MiB; the least recently used are deleted first.

export const MOST_CONVERSATIONS = 50;
export const MOST_BYTES = 200 * 1024 * 1024;

/**
 * Returns what to delete. The current conversation always stays, however large.
 * @param {readonly Pick<Head, "id" | "updatedAtMs" | "sizeBytes">[]} kept
 * @param {string} currentId
 * @param {{mostCount?: number, mostBytes?: number}} [rule]
 * @returns {string[]}
 */
export function conversationsToDrop(kept, currentId, { mostCount = MOST_CONVERSATIONS, mostBytes = MOST_BYTES } = {}) {
  const others = kept.filter(({ id }) => id !== currentId).sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  const current = kept.find(({ id }) => id === currentId);
  const mostOthers = mostCount - (current ? 1 : 0);
  let bytes = current?.sizeBytes ?? 0;
  const first = others.findIndex(({ sizeBytes }, index) => index >= mostOthers || (bytes += sizeBytes) > mostBytes);
  // Everything older than a deleted one is deleted too, so that the rule is predictable.
  return first < 0 ? [] : others.slice(first).map(({ id }) => id);
}

// Drafts, which survive a reload: text in the tab's storage, and for new tabs in local storage; attachments in the database.

const TEXT_KEY = "turnbased_draft";
const MEDIA_KEY = "media";

/** @returns {SmallStorage | null} null if it is blocked */
export function tabStorage() {
  try {
    return globalThis.sessionStorage;
  } catch {
    return null;
  }
}

/**
 * @param {Pick<HistoryStore<unknown>, "readDraft" | "writeDraft">} store
 * @param {SmallStorage} [storage] of all tabs; the browser's own if left out
 * @param {SmallStorage | null} [own] of this tab; the browser's own if left out
 */
export function openDraft(store, storage, own = tabStorage()) {
  let keptText = "";
  /** @type {readonly MediaPart[]} */ let keptMedia = [];
  return {
    async read() {
      const media = /** @type {MediaPart[] | null} */ (await store.readDraft(MEDIA_KEY).catch(() => null)) ?? [];
      keptMedia = media;
      keptText = remembered(TEXT_KEY, own) ?? remembered(TEXT_KEY, storage) ?? "";
      return { text: keptText, media };
    },
    keep(/** @type {string} */ text, /** @type {readonly MediaPart[]} */ media) {
      remember(TEXT_KEY, text, own); // an empty one as well, so that a reload does not bring another tab's
      // Emptied here, another tab's text stays for new tabs.
      if (text || remembered(TEXT_KEY, storage) === keptText) remember(TEXT_KEY, text || null, storage);
      keptText = text;
      if (media === keptMedia || (media.length === 0 && keptMedia.length === 0)) return;
      keptMedia = media;
      // Storage may be full; the draft stays on the page.
      store.writeDraft(MEDIA_KEY, media.length > 0 ? media : null).catch(() => {});
    },
  };
}
