/** An EventTarget with typed events. Pure. */

/** @template {Record<string, any>} Events Detail of each event by its type. `any`: each subclass says. */
export class Emitter extends EventTarget {
  /** @template {keyof Events & string} Type @param {Type} type @param {(detail: Events[Type]) => void} listener */
  on(type, listener) {
    const forward = (/** @type {Event} */ event) => listener(/** @type {CustomEvent<Events[Type]>} */ (event).detail);
    this.addEventListener(type, forward);
    return () => this.removeEventListener(type, forward);
  }

  /** @template {keyof Events & string} Type @param {Type} type @param {Events[Type]} detail */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
