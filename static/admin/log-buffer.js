// @ts-check
/**
 * The lines of a log that are kept: at most so many, the oldest go first. Pure.
 */

/** @typedef {"debug" | "info" | "warning" | "error"} Severity */
/** @typedef {Http.LogLine & {id: number, severity: Severity}} KeptLine */
/** @typedef {{text: string, least: Severity}} LogFilter */

const ORDER = /** @type {const} */ (["debug", "info", "warning", "error"]);
/** @type {Record<string, Severity>} */
const SEVERITIES = {
  debug: "debug",
  warning: "warning",
  warn: "warning",
  error: "error",
  critical: "error",
  exception: "error",
  fatal: "error",
};
/** That the log was looked at is no news to who looks at it. */
const OWN_LOOK = /\bpath=\/api\/admin\/logs\b.*\bstatus=200\b/;
const TROUBLE = /^(?:Traceback \(most recent call last\)|\w*(?:Error|Exception): )/;

/**
 * @param {Http.LogLine} line
 * @returns {Severity}
 */
export function severityOf({ level, text }) {
  if (OWN_LOOK.test(text)) return "debug";
  if (level) return SEVERITIES[level.toLowerCase()] ?? "info";
  return TROUBLE.test(text) ? "error" : "info";
}

export class LogBuffer {
  /** @param {number} maxLines */
  constructor(maxLines) {
    /** @type {KeptLine[]} */
    this.lines = [];
    this._maxLines = maxLines;
    this._nextId = 0;
  }

  /**
   * Adds lines.
   *
   * @param {readonly Http.LogLine[]} lines oldest first
   * @returns {{added: KeptLine[], droppedCount: number}} what to show more, and how many to take away
   */
  add(lines) {
    const fresh = lines.map((line) => ({ ...line, id: this._nextId++, severity: severityOf(line) }));
    const all = [...this.lines, ...fresh];
    this.lines = all.slice(-this._maxLines);
    const droppedCount = Math.min(all.length - this.lines.length, all.length - fresh.length);
    return { added: fresh.slice(-this._maxLines), droppedCount };
  }

  clear() {
    this.lines = [];
  }
}

/**
 * @param {KeptLine} line
 * @param {LogFilter} filter
 * @returns {boolean}
 */
export function isMatch(line, { text, least }) {
  if (ORDER.indexOf(line.severity) < ORDER.indexOf(least)) return false;
  const wanted = text.trim().toLowerCase();
  return wanted === "" || `${line.time ?? ""} ${line.level ?? ""} ${line.text}`.toLowerCase().includes(wanted);
}
