// @ts-check
/**
 * Puts text on the clipboard, or selects it where the browser does not allow that.
 */

/**
 * @param {string} text
 * @param {HTMLInputElement} [field] that shows the text; it is selected if copying fails
 * @returns {Promise<boolean>} whether it was copied
 */
export async function copyText(text, field) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    field?.focus();
    field?.select();
    return field !== undefined && copySelection();
  }
}

/** The old way: the only one on pages without TLS. */
function copySelection() {
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  }
}
