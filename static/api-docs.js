// @ts-check
/**
 * Shows /api/openapi.json: every route with its parameters, its request, its answers. Text only.
 */

import { byId, h } from "./shared/dom.js";

const DESCRIPTION = "/api/openapi.json";

/**
 * A part of an OpenAPI document, as far as it is shown.
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

/**
 * The name of a schema, or its type in words.
 *
 * @param {Schema | undefined} schema
 * @returns {string}
 */
function schemaWords(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1) ?? "";
  if (schema.items) return `list of ${schemaWords(schema.items)}`;
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(schemaWords).join(" or ");
  return schema.type ?? "anything";
}

/** @param {Schema} schema */
function fieldTable(schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const kind = schemaWords(field) + (required.has(name) ? "" : " (optional)");
    const heading = h("th", { scope: "row" }, h("code", {}, name));
    return h("tr", {}, heading, h("td", {}, kind), h("td", {}, field.description ?? ""));
  });
  return h("table", {}, ...rows);
}

/**
 * The schema of a body or an answer, its fields included if it has a name.
 *
 * @param {Content | undefined} content
 * @param {Record<string, Schema>} schemas
 */
function contentParts(content, schemas) {
  return Object.entries(content ?? {}).flatMap(([mediaType, { schema }]) => {
    const words = schemaWords(schema);
    const known = schemas[words];
    const line = h("p", {}, `${words} `, h("code", {}, mediaType));
    return known?.properties ? [line, fieldTable(known)] : [line];
  });
}

/**
 * Everything about one route.
 *
 * @param {string} method
 * @param {string} path
 * @param {Route} route
 * @param {Record<string, Schema>} schemas
 */
function routeDetails(method, path, route, schemas) {
  const name = h("code", {}, `${method.toUpperCase()} ${path}`);
  const details = h("details", {}, h("summary", {}, name, ` ${route.description ?? ""}`));
  for (const { name: parameter, in: place, schema } of route.parameters ?? []) {
    details.append(h("p", {}, h("code", {}, parameter), ` in ${place}: `, schemaWords(schema)));
  }
  if (route.requestBody) {
    details.append(h("h3", {}, "Request"), ...contentParts(route.requestBody.content, schemas));
  }
  for (const [status, answer] of Object.entries(route.responses ?? {})) {
    details.append(h("h3", {}, `${status} ${answer.description ?? ""}`));
    if (status.startsWith("2")) details.append(...contentParts(answer.content, schemas));
  }
  return details;
}

async function show() {
  const about = byId("about", HTMLElement);
  const answer = await fetch(DESCRIPTION);
  if (!answer.ok) {
    about.textContent = `The description cannot be read: HTTP ${answer.status}.`;
    return;
  }
  /** @type {Description} */
  const { info, paths, components } = await answer.json();
  about.textContent = info.description;
  /** @type {Map<string, HTMLElement[]>} */
  const byTag = new Map();
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const tag = route.tags?.[0] ?? "other";
      const details = routeDetails(method, path, route, components.schemas);
      byTag.set(tag, [...(byTag.get(tag) ?? []), details]);
    }
  }
  for (const [tag, routes] of byTag) {
    byId("routes", HTMLElement).append(h("h2", {}, tag), ...routes);
  }
  document.documentElement.dataset.ready = "true";
}

void show();
