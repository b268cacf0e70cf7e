/** Shows /api/openapi.json: every route with its parameters, its request, its answers. Text only. */

import { byId, html, nothing, render } from "./shared/lit.js";

const DESCRIPTION = "/api/openapi.json";

/**
 * The parts of an OpenAPI document that are shown.
 *
 * @typedef {{$ref?: string, items?: Schema, anyOf?: Schema[], oneOf?: Schema[], type?: string,
 *   description?: string, required?: string[], properties?: Record<string, Schema>}} Schema
 * @typedef {Record<string, {schema: Schema}>} Content  by media type
 * @typedef {{description?: string, content?: Content}} Answer
 * @typedef {{name: string, in: string, schema: Schema}} Parameter
 * @typedef {{description?: string, tags?: string[], parameters?: Parameter[],
 *   requestBody?: {content: Content}, responses?: Record<string, Answer>}} Route
 * @typedef {{info: {description: string}, paths: Record<string, Record<string, Route>>,
 *   components: {schemas: Record<string, Schema>}}} Description
 */

/** Name of a schema, or its type. @param {Schema | undefined} schema @returns {string} */
function schemaWords(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1) ?? "";
  if (schema.items) return `list of ${schemaWords(schema.items)}`;
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(schemaWords).join(" or ");
  return schema.type ?? "anything";
}

function fieldTable(/** @type {Schema} */ { required = [], properties = {} }) {
  const rows = Object.entries(properties).map(
    ([name, field]) =>
      html`<tr>
        <th scope="row"><code>${name}</code></th>
        <td>${schemaWords(field)}${required.includes(name) ? "" : " (optional)"}</td>
        <td>${field.description ?? ""}</td>
      </tr>`,
  );
  return html`<table>
    ${rows}
  </table>`;
}

/** A schema, with its fields if it has a name. @param {Content | undefined} content @param {Record<string, Schema>} schemas */
const contentParts = (content, schemas) =>
  Object.entries(content ?? {}).map(([mediaType, { schema }]) => {
    const known = schemas[schemaWords(schema)];
    return html`<p>${schemaWords(schema)} <code>${mediaType}</code></p>
      ${known?.properties ? fieldTable(known) : nothing}`;
  });

/** @param {string} method @param {string} path @param {Route} route @param {Record<string, Schema>} schemas */
const routeDetails = (method, path, { description, parameters, requestBody, responses }, schemas) =>
  html`<details>
    <summary><code>${method.toUpperCase()} ${path}</code> ${description ?? ""}</summary>
    ${(parameters ?? []).map(({ name, in: place, schema }) => html`<p><code>${name}</code> in ${place}: ${schemaWords(schema)}</p>`)}
    ${
      requestBody
        ? html`<h3>Request</h3>
            ${contentParts(requestBody.content, schemas)}`
        : nothing
    }
    ${Object.entries(responses ?? {}).map(
      ([status, answer]) =>
        html`<h3>${status} ${answer.description ?? ""}</h3>
          ${status.startsWith("2") ? contentParts(answer.content, schemas) : nothing}`,
    )}
  </details>`;

async function show() {
  const about = byId("about");
  const answer = await fetch(DESCRIPTION);
  if (!answer.ok) {
    about.textContent = `The description cannot be read: HTTP ${answer.status}.`;
    return;
  }
  /** @type {Description} */ const { info, paths, components } = await answer.json();
  about.textContent = info.description;
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => ({
      tag: route.tags?.[0] ?? "other",
      view: routeDetails(method, path, route, components.schemas),
    })),
  );
  const tags = [...new Set(routes.map(({ tag }) => tag))];
  const views = tags.map((tag) => [html`<h2>${tag}</h2>`, routes.filter((route) => route.tag === tag).map(({ view }) => view)]);
  render(views, byId("routes"));
  document.documentElement.dataset.ready = "true";
}

void show();
