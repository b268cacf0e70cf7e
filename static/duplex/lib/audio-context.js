// @ts-check
/**
 * Sound contexts that may start suspended: open them, keep them running. Device.
 * A browser runs a context only after a gesture; we try at once and again at each gesture.
 */

const GESTURES = ["pointerdown", "keydown", "touchend"];

/**
 * Keep a context running: resume now, at each gesture and whenever the system suspends it.
 * @param {AudioContext} context
 * @param {EventTarget} [gestureTarget] where gestures are heard; the window by default
 * @returns {() => void} ends the watch
 */
export function keepRunning(context, gestureTarget = globalThis) {
  const tryResume = () => {
    // Safari says "interrupted" after a phone call; the type of the standard has no such word.
    if (context.state === "running" || context.state === "closed") return;
    context.resume().catch(() => undefined); // refused without a gesture: the next one tries again
  };
  for (const type of GESTURES) gestureTarget.addEventListener(type, tryResume, { passive: true });
  context.addEventListener("statechange", tryResume);
  tryResume();
  return () => {
    for (const type of GESTURES) gestureTarget.removeEventListener(type, tryResume);
    context.removeEventListener("statechange", tryResume);
  };
}

/**
 * Wait until a context runs.
 * @param {AudioContext} context
 * @param {AbortSignal} [signal] ends the wait
 * @returns {Promise<void>}
 */
export function untilRunning(context, signal) {
  return new Promise((resolve, reject) => {
    const check = () => {
      if (context.state !== "running") return;
      context.removeEventListener("statechange", check);
      resolve();
    };
    context.addEventListener("statechange", check);
    signal?.addEventListener("abort", () => {
      context.removeEventListener("statechange", check);
      reject(signal.reason);
    });
    check();
  });
}
