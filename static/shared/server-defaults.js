// @ts-check
/** What the server says pages start from; requested once, as soon as this module is loaded. */

import { getJson } from "./api.js";

/** @type {Promise<Http.FrontendDefaults | null>} null if the server was not reached */
export const serverDefaults = getJson("/api/frontend_defaults").catch(() => null);
