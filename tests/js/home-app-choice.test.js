import assert from "node:assert/strict";
import { test } from "node:test";

import { chooseStart, inOrder } from "../../static/shared/apps.js";

/** @param {string[]} ids */
const apps = (...ids) => ids.map((id) => ({ app_id: id, name: id, route: `/${id}` }));

test("the voice call is offered first, video and chat beside it", () => {
  const { primary, secondary } = chooseStart(apps("turnbased", "half_duplex_audio", "omni", "audio_duplex"));
  assert.equal(primary?.app_id, "audio_duplex");
  assert.deepEqual(
    secondary.map(({ app_id: id }) => id),
    ["omni", "turnbased"],
  );
});

test("what is switched off is not offered", () => {
  const { primary, secondary } = chooseStart(apps("turnbased", "half_duplex_audio"));
  assert.equal(primary?.app_id, "half_duplex_audio");
  assert.deepEqual(
    secondary.map(({ app_id: id }) => id),
    ["turnbased"],
  );
  assert.deepEqual(chooseStart(apps("turnbased")).secondary, []);
});

test("an app we do not know is offered when there is no other", () => {
  assert.equal(chooseStart(apps("karaoke")).primary?.app_id, "karaoke");
  assert.equal(chooseStart([]).primary, null);
});

test("apps have one order, unknown ones last", () => {
  const order = inOrder(apps("karaoke", "turnbased", "omni", "audio_duplex")).map(({ app_id: id }) => id);
  assert.deepEqual(order, ["audio_duplex", "omni", "turnbased", "karaoke"]);
});
